"""The net change of few rows, computed by this process: one Spark job instead of six.

Spark groups by all columns in a job with a shuffle, asks twice whether a side is empty, and collects each
side. Few rows are collected at once, with their signs, and grouped by Arrow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as compute
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as spark

from tautochrone.model.names import quoted
from tautochrone.model.reason import Reason, ReasonCode

__all__ = ["CollectedRows", "net_rows"]

_SIGN = "__taut_sign"
_GROUPED = (
    spark.BooleanType,
    spark.ByteType,
    spark.ShortType,
    spark.IntegerType,
    spark.LongType,
    spark.FloatType,
    spark.DoubleType,
    spark.DecimalType,
    spark.BinaryType,
    spark.DateType,
    spark.TimestampType,
    spark.TimestampNTZType,
)


class CollectedRows:
    """Rows that this process has as an Arrow table. A DataFrame of them is made only if one is needed."""

    def __init__(self, table: pa.Table, frame: Callable[[pa.Table], DataFrame]) -> None:
        self._table = table
        self._frame = frame

    @property
    def columns(self) -> list[str]:
        return list(self._table.column_names)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def toArrow(self) -> pa.Table:  # noqa: N802
        return self._table

    def toLocalIterator(self) -> Iterator[Any]:  # noqa: N802
        return self._frame(self._table).toLocalIterator()

    def mapInArrow(self, *arguments: Any, **named: Any) -> DataFrame:  # noqa: N802
        return self._frame(self._table).mapInArrow(*arguments, **named)


def net_rows(added: DataFrame, removed: DataFrame) -> tuple[CollectedRows, CollectedRows] | Reason:
    """Both relations without the rows that are in both, copy by copy, as `multiset_diff.consolidated`.

    Returns:
        A reason why Spark has to do it: Arrow does not group by the type of a column.

    Example:
        ============ ============== =================
        added        removed        net
        a, a, b      a, c           +a +b -c
        ============ ============== =================
    """
    schema = added.schema
    for field in schema.fields:
        if not _is_grouped(field.dataType):
            kind = field.dataType.simpleString()
            return Reason.of(ReasonCode.COLUMN_COMPARED_BY_SPARK, column=field.name, type=kind)
    columns = [sf.col(quoted(name)) for name in added.columns]
    both = added.select(*columns, sf.lit(1).alias(_SIGN)).unionAll(
        removed.select(*columns, sf.lit(-1).alias(_SIGN))
    )
    session = added.sparkSession

    def frame(table: pa.Table) -> DataFrame:
        return session.createDataFrame(table, schema)

    net = _grouped(both.toArrow())
    return CollectedRows(_side(net, 1), frame), CollectedRows(_side(net, -1), frame)


def _is_grouped(kind: spark.DataType) -> bool:
    if isinstance(kind, spark.StringType):
        # Other collations hold different texts for the same.
        return kind == spark.StringType()
    return isinstance(kind, _GROUPED)


def _grouped(both: pa.Table) -> pa.Table:
    """Each row once, with the sum of its signs in the last column."""
    names = both.column_names
    arrays = [_normalized(column) for column in both.columns]
    # Aggregates are named after their column: names of the user could be the same.
    positions = [str(position) for position in range(len(names))]
    *keys, sign = positions
    table = pa.table(arrays, names=positions)
    return (
        table.group_by(keys, use_threads=False)
        .aggregate([(sign, "sum")])
        .select([*keys, f"{sign}_sum"])
        .rename_columns(names)
    )


def _normalized(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Floats as Spark groups them: 0.0 and -0.0 are the same, and so are all NaN."""
    if not pa.types.is_floating(column.type):
        return column
    numbers = compute.add(column, pa.scalar(0.0, column.type))
    return compute.if_else(compute.is_nan(numbers), pa.scalar(math.nan, column.type), numbers)


def _side(net: pa.Table, sign: int) -> pa.Table:
    """The rows with this sign, each as often as its copies."""
    copies = compute.multiply(net.column(_SIGN), sign).to_pylist()
    rows = [row for row, count in enumerate(copies) for _ in range(count)]
    return net.drop_columns([_SIGN]).take(pa.array(rows, pa.int64()))

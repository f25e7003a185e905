"""The net change of few rows, computed by this process: one Spark job instead of six, or none.

Spark groups by all columns in a job with a shuffle, asks twice whether a side is empty, and collects each
side. Few rows are collected at once, with their signs, and grouped by Arrow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as compute
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as spark

from tautochrone.model.names import quoted
from tautochrone.model.reason import Reason, ReasonCode

__all__ = ["CollectedRows", "net_rows", "net_tables"]

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
        A reason why Spark has to do it: this process does not compare values of the type of a column.

    Example:
        ============ ============== =================
        added        removed        net
        a, a, b      a, c           +a +b -c
        ============ ============== =================
    """
    schema = added.schema
    for field in schema.fields:
        if not _is_grouped(field.dataType):
            return _compared_by_spark(field.name, field.dataType.simpleString())
    columns = [sf.col(quoted(name)) for name in added.columns]
    both = added.select(*columns, sf.lit(1).alias(_SIGN)).unionAll(
        removed.select(*columns, sf.lit(-1).alias(_SIGN))
    )
    session = added.sparkSession

    def frame(table: pa.Table) -> DataFrame:
        return session.createDataFrame(table, schema)

    net = _net(both.toArrow())
    if isinstance(net, Reason):
        return net
    return CollectedRows(net[0], frame), CollectedRows(net[1], frame)


def net_tables(added: pa.Table, removed: pa.Table) -> tuple[pa.Table, pa.Table] | Reason:
    """The same of rows that this process has. A column that one side lacks is NULL in it."""
    both = pa.concat_tables([added, removed], promote_options="default")
    signs = [1] * added.num_rows + [-1] * removed.num_rows
    return _net(both.append_column(_SIGN, pa.array(signs, pa.int32())))


def _compared_by_spark(column: str, kind: str) -> Reason:
    return Reason.of(ReasonCode.COLUMN_COMPARED_BY_SPARK, column=column, type=kind)


def _is_grouped(kind: spark.DataType) -> bool:
    if isinstance(kind, spark.StringType):
        # Other collations hold different texts for the same.
        return kind == spark.StringType()
    if isinstance(kind, spark.ArrayType):
        return _is_grouped(kind.elementType)
    if isinstance(kind, spark.MapType):
        return _is_grouped(kind.keyType) and _is_grouped(kind.valueType)
    if isinstance(kind, spark.StructType):
        return all(_is_grouped(field.dataType) for field in kind.fields)
    return isinstance(kind, _GROUPED)


def _net(both: pa.Table) -> tuple[pa.Table, pa.Table] | Reason:
    """The rows that remain of each sign, each as often as its copies.

    Args:
        both: with the sign of each row in the last column.
    """
    *names, sign = both.column_names
    keys: list[Any] = []
    for name, column in zip(names, both.columns, strict=False):
        key = _key(column)
        if key is None:
            return _compared_by_spark(name, str(column.type))
        keys.append(key)
    # Names of the user could be those of aggregates.
    positions = [str(position) for position in range(len(keys))]
    table = pa.table(
        [*keys, both.column(len(names)), pa.array(range(both.num_rows), pa.int64())],
        names=[*positions, "sign", "row"],
    )
    groups = table.group_by(positions, use_threads=False).aggregate([("sign", "sum"), ("row", "min")])
    rows, copies = groups["row_min"].to_pylist(), groups["sign_sum"].to_pylist()
    normalized = pa.table([_normalized(column) for column in both.columns], names=[*names, sign])
    normalized = normalized.drop_columns([sign])
    return _copies(normalized, rows, copies), _copies(normalized, rows, [-count for count in copies])


def _copies(rows: pa.Table, positions: Sequence[int], counts: Sequence[int]) -> pa.Table:
    taken = [position for position, count in zip(positions, counts, strict=True) for _ in range(count)]
    return rows.take(pa.array(taken, pa.int64()))


def _key(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array | None:
    """What is equal for equal values; None: their type is compared by Spark only."""
    if not pa.types.is_nested(column.type):
        return _normalized(column)
    try:
        return pa.array([repr(_comparable(value, column.type)) for value in column.to_pylist()], pa.string())
    except (ValueError, OverflowError):
        # Python has no such time or text.
        return None


def _comparable(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return [_comparable(value[field.name], field.type) for field in kind]
    if pa.types.is_map(kind):
        entries = [
            (_comparable(key, kind.key_type), _comparable(item, kind.item_type)) for key, item in value
        ]
        # A map has no order.
        return sorted(entries, key=repr)
    if pa.types.is_nested(kind):
        return [_comparable(item, kind.value_type) for item in value]
    # 0.0 and -0.0 are the same; all NaN have one text.
    return value + 0.0 if isinstance(value, float) else value


def _normalized(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Floats as Spark groups them: 0.0 and -0.0 are the same, and so are all NaN."""
    if not pa.types.is_floating(column.type):
        return column
    numbers = compute.add(column, pa.scalar(0.0, column.type))
    return compute.if_else(compute.is_nan(numbers), pa.scalar(math.nan, column.type), numbers)

"""The net change of few rows is what Spark computes of it, and takes one job."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections import Counter
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as spark_types
from tests.support.change_conformance import spark_jobs

from tautochrone.model import limits
from tautochrone.model.lake import RowChange
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.runtime.delivery import deltas
from tautochrone.runtime.delivery.deltas import CollectedRows, net_rows
from tautochrone.spark.execute.multiset_diff import consolidated

VALUES: list[tuple[spark_types.DataType, list[Any]]] = [
    (spark_types.LongType(), [1, -(2**63), None]),
    (spark_types.BooleanType(), [True, None]),
    (spark_types.DoubleType(), [math.nan, 0.0, -0.0, 1.5, None]),
    (spark_types.FloatType(), [0.0, -0.0, None]),
    (spark_types.DecimalType(12, 2), [Decimal("1.50"), None]),
    (spark_types.StringType(), ["a", "A", "", None]),
    (spark_types.BinaryType(), [bytearray(b"\x00"), bytearray()]),
    (spark_types.DateType(), [dt.date(1500, 1, 1), None]),
    (spark_types.TimestampType(), [dt.datetime(2026, 3, 29, 2, 30, tzinfo=dt.UTC), None]),
    (spark_types.TimestampNTZType(), [dt.datetime(2026, 3, 29, 2, 30)]),  # noqa: DTZ001
]
SCHEMA = spark_types.StructType(
    # One name is what Arrow would call an aggregate.
    [spark_types.StructField(f"{number}_sum", kind) for number, (kind, _) in enumerate(VALUES)]
)


def frames(spark: SparkSession) -> tuple[DataFrame, DataFrame]:
    chance = random.Random(5)
    several = [tuple(chance.choice(values) for _, values in VALUES) for _ in range(12)]
    added, removed = (chance.choices(several, k=20) for _ in range(2))
    return spark.createDataFrame(added, SCHEMA), spark.createDataFrame(removed, SCHEMA)


def copies(rows: Any) -> Counter[str]:
    """The rows, each as often as it is there; floats with their signs."""
    return Counter(map(str, rows.toArrow().to_pylist()))


def test_net_rows_are_what_spark_computes(spark: SparkSession) -> None:
    added, removed = frames(spark)
    net, expected = net_rows(added, removed), consolidated(added, removed)
    assert not isinstance(net, Reason)
    for side, expected_side in zip(net, expected, strict=True):
        assert expected_side is not None
        assert copies(side) == copies(expected_side)
        assert len(side) == expected_side.count()
        assert side.toArrow().schema.names == SCHEMA.names
    # Who needs Spark's rows gets them.
    netted = Counter(map(str, net[0].toLocalIterator()))
    assert netted == Counter(map(str, expected[0].toLocalIterator()))  # type: ignore[union-attr]
    assert net[1].mapInArrow(lambda batches: batches, SCHEMA).count() == len(net[1])


def test_a_delivery_nets_few_rows_by_one_job(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    added, removed = frames(spark)
    before = spark_jobs(spark)
    change = deltas._net_change(RowChange(added=added, removed=removed, rows=40))
    assert isinstance(change.added, CollectedRows)
    assert isinstance(change.removed, CollectedRows)
    assert change.rows == len(change.added) + len(change.removed) < 40
    change.added.toArrow()
    change.removed.toArrow()
    assert spark_jobs(spark) - before == 1
    # A side that has nothing left is None, as everywhere.
    nothing = deltas._net_change(RowChange(added=added, removed=added, rows=40))
    assert (nothing.added, nothing.removed, nothing.rows) == (None, None, 0)
    change = deltas._net_change(RowChange(added=added, removed=removed, rows=40, carried=True))
    assert isinstance(change.added, DataFrame)
    monkeypatch.setattr(limits, "MAX_DRIVER_ROWS", 39)
    change = deltas._net_change(RowChange(added=added, removed=removed, rows=40))
    assert isinstance(change.added, DataFrame)
    only_added = deltas._net_change(RowChange(added=added, rows=40))
    assert only_added.added is added


NESTED = [
    "array(1.0D, CAST(NULL AS DOUBLE), double('NaN'))",
    "array(1.0D, -0.0D)",
    "array(1.0D, 0.0D)",
    "map('a', named_struct('at', try_to_timestamp('1500-01-01 00:00:00')), 'b', NULL)",
    "map('b', NULL, 'a', named_struct('at', try_to_timestamp('1500-01-01 00:00:00')))",
    "named_struct('a', CAST(1 AS DECIMAL(9, 2)), 'b', array(X'00'))",
    "named_struct('a', CAST(NULL AS DECIMAL(9, 2)), 'b', CAST(NULL AS ARRAY<BINARY>))",
]


@pytest.mark.parametrize("values", [NESTED[:3], NESTED[3:5], NESTED[5:]], ids=["array", "map", "struct"])
def test_arrays_maps_and_structs_are_netted_as_spark_does(spark: SparkSession, values: list[str]) -> None:
    added = spark.sql(" UNION ALL ".join(f"SELECT {value} AS v" for value in [*values, values[0]]))
    removed = spark.sql(" UNION ALL ".join(f"SELECT {value} AS v" for value in [values[-1], "NULL"]))
    net, expected = net_rows(added, removed), consolidated(added, removed)
    assert not isinstance(net, Reason)
    for side, expected_side in zip(net, expected, strict=True):
        assert expected_side is not None
        assert Counter(map(_texts, side.toArrow().to_pylist())) == Counter(
            map(_texts, expected_side.toArrow().to_pylist())
        )


def _texts(row: dict[str, Any]) -> str:
    """The row, with maps in order and one zero."""
    (value,) = row.values()
    is_map = isinstance(value, list) and bool(value) and isinstance(value[0], tuple)
    return str(sorted(value) if is_map else value).replace("-0.0", "0.0")


@pytest.mark.parametrize("kind", ["string collate UNICODE_CI", "array<string collate UNICODE_CI>"])
def test_types_that_arrow_does_not_group_are_left_to_spark(spark: SparkSession, kind: str) -> None:
    rows = spark.sql(f"SELECT CAST(NULL AS {kind}) AS a")
    (field,) = rows.schema.fields
    kind = field.dataType.simpleString()
    assert net_rows(rows, rows) == Reason.of(ReasonCode.COLUMN_COMPARED_BY_SPARK, column="a", type=kind)


def test_times_that_python_lacks_are_compared_by_spark(spark: SparkSession) -> None:
    rows = spark.sql("SELECT array(date'9999-12-31' + 1) AS a")
    net = net_rows(rows, rows)
    assert isinstance(net, Reason)
    assert net.code is ReasonCode.COLUMN_COMPARED_BY_SPARK

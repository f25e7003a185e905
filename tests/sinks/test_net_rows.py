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

from tautochrone.model import limits
from tautochrone.model.lake import RowChange
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.runtime.delivery import deltas
from tautochrone.runtime.delivery.net_rows import CollectedRows, net_rows
from tautochrone.spark.execute.multiset_diff import consolidated
from tautochrone.testing.change_conformance import spark_jobs

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
    change, left_to_spark = deltas._net(RowChange(added=added, removed=removed, rows=40))
    assert left_to_spark is None
    assert isinstance(change.added, CollectedRows)
    assert isinstance(change.removed, CollectedRows)
    assert change.rows == len(change.added) + len(change.removed) < 40
    change.added.toArrow()
    change.removed.toArrow()
    assert spark_jobs(spark) - before == 1
    # A side that has nothing left is None, as everywhere.
    nothing, _ = deltas._net(RowChange(added=added, removed=added, rows=40))
    assert (nothing.added, nothing.removed, nothing.rows) == (None, None, 0)
    carried = RowChange(added=added, removed=removed, rows=40, carried=True)
    change, left_to_spark = deltas._net(carried)
    assert isinstance(change.added, DataFrame)
    assert left_to_spark == Reason.of(ReasonCode.ROWS_CARRIED_OVER)
    monkeypatch.setattr(limits, "MAX_DRIVER_ROWS", 39)
    change, left_to_spark = deltas._net(RowChange(added=added, removed=removed, rows=40))
    assert isinstance(change.added, DataFrame)
    assert left_to_spark == Reason.of(ReasonCode.MANY_ROWS_CHANGED, rows=40, limit=39)
    only_added, left_to_spark = deltas._net(RowChange(added=added, rows=40))
    assert (only_added.added, left_to_spark) == (added, None)


@pytest.mark.parametrize(
    "kind", ["array<int>", "map<string, int>", "struct<a: int>", "string collate UNICODE_CI"]
)
def test_types_that_arrow_does_not_group_are_left_to_spark(spark: SparkSession, kind: str) -> None:
    rows = spark.sql(f"SELECT CAST(NULL AS {kind}) AS a")
    (field,) = rows.schema.fields
    kind = field.dataType.simpleString()
    assert net_rows(rows, rows) == Reason.of(ReasonCode.COLUMN_COMPARED_BY_SPARK, column="a", type=kind)

"""The last event of each key, found on the driver, is the one that Spark finds."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tautochrone.model.auto_cdc import KeyedApply
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.runtime.merges.latest_events import (
    last_events,
    last_events_of_many,
    last_rows,
    latest_rows,
    summarize,
)
from tautochrone.spark.execute.materialize import materialize

pytestmark = pytest.mark.spark

APPLY = KeyedApply(
    keys=("seed", "a", "b"),
    sequence=("point", "sequence"),
    delete="operation = 'delete'",
    truncate="operation = 'truncate'",
    unchanged="unchanged",
    transaction="transaction",
    snapshot="snapshot",
    invalid="invalid",
    dropped=("point", "sequence", "operation", "transaction", "snapshot", "unchanged", "invalid"),
)
TYPES = ("TINYINT", "BIGINT", "STRING", "DECIMAL(10, 2)", "DATE", "TIMESTAMP", "BOOLEAN")
VALUES: dict[str, tuple[Any, ...]] = {
    "TINYINT": (None, -1, 0, 5),
    "BIGINT": (None, -(2**60), 3, 2**60),
    "STRING": (None, "", "é", "a b"),
    "DECIMAL(10, 2)": (None, Decimal("1.00"), Decimal("1"), Decimal("-99999999.99")),
    "DATE": (None, dt.date(1, 1, 1), dt.date(2024, 2, 29), dt.date(9999, 12, 31)),
    "TIMESTAMP": (None, *(dt.datetime(year, 10, 27, 2, 30, tzinfo=dt.UTC) for year in (1969, 2024, 2100))),
    "BOOLEAN": (None, True, False),
}


def random_events(spark: SparkSession, first: str, second: str) -> DataFrame:
    pick = random.Random(f"{first} {second}")
    rows: list[tuple[Any, ...]] = []
    for seed in range(8):
        for _ in range(pick.randint(1, 25)):
            operation = pick.choice(("insert", "update", "delete", None))
            rows.append(
                (
                    *(seed, pick.choice(VALUES[first]), pick.choice(VALUES[second]), len(rows)),
                    *(len(rows) // 3, len(rows) % 3, operation, 7, None, pick.choice(([], None)), []),
                )
            )
    pick.shuffle(rows)
    schema = (
        f"seed INT, a {first}, b {second}, value BIGINT, point BIGINT, sequence INT, operation STRING, "
        "transaction BIGINT, snapshot STRING, unchanged ARRAY<STRING>, invalid ARRAY<STRING>"
    )
    events, _ = materialize(spark.createDataFrame(rows, schema), max_rows=len(rows))
    return events


def test_last_events_are_those_that_spark_finds(spark: SparkSession) -> None:
    for first, second in zip(TYPES[::2], (*TYPES[1::2], TYPES[0]), strict=True):
        events = random_events(spark, first, second)
        by_spark = latest_rows(events, APPLY, summarize(events, APPLY), None)
        expected = Counter(by_spark.collect())
        keys = Counter(events.select(*APPLY.keys).distinct().collect())
        for last in (last_events(events, APPLY), last_events_of_many(events, APPLY)):
            assert not isinstance(last, Reason)
            rows = last.rows.drop(*APPLY.dropped)
            assert rows.columns == by_spark.columns
            assert Counter(rows.collect()) == expected, first
            assert Counter(spark.createDataFrame(last.keys).collect()) == keys
        handed_over = last_rows(events, [events[name] for name in by_spark.columns], APPLY)
        assert not isinstance(handed_over, Reason)
        stored = handed_over.rows.rename_columns(by_spark.columns)
        assert Counter(spark.createDataFrame(stored, by_spark.schema).collect()) == expected, first
        assert Counter(spark.createDataFrame(handed_over.keys).collect()) == keys


@pytest.mark.parametrize(
    ("special", "reason"),
    [
        ({"operation": "truncate"}, Reason.of(ReasonCode.TABLE_TRUNCATED)),
        ({"snapshot": "5:5:"}, Reason.of(ReasonCode.ROWS_COPIED)),
        ({"unchanged": ["value"]}, Reason.of(ReasonCode.VALUES_LEFT_UNCHANGED)),
        ({"invalid": ["b = x"]}, Reason.of(ReasonCode.VALUES_INVALID)),
        ({"point": None}, Reason.of(ReasonCode.EVENT_WITHOUT_SEQUENCE, column="point")),
    ],
)
def test_special_events_are_left_to_spark(
    spark: SparkSession, special: dict[str, Any], reason: Reason
) -> None:
    events = random_events(spark, "BIGINT", "STRING")
    names = events.columns
    row = dict(zip(names, events.collect()[0], strict=True)) | special
    more, _ = materialize(
        events.union(spark.createDataFrame([tuple(row[name] for name in names)], events.schema)),
        max_rows=1000,
    )
    assert last_events(more, APPLY) == reason
    assert last_events_of_many(more, APPLY) == reason
    assert last_rows(more, [more["value"]], APPLY) == reason


def test_keys_that_are_compared_otherwise_are_left_to_spark(spark: SparkSession) -> None:
    events, _ = materialize(spark.sql("SELECT double('NaN') AS a, 1L AS point, '1' AS text"), max_rows=1)
    for keys, sequence, column, kind in (
        (("a",), "point", "a", "double"),
        (("point",), "text", "text", "string"),
    ):
        apply = KeyedApply(keys=keys, sequence=(sequence,))
        reason = Reason.of(ReasonCode.COLUMN_COMPARED_BY_SPARK, column=column, type=kind)
        assert last_events(events, apply) == reason
        assert last_events_of_many(events, apply) == reason
        assert last_rows(events, [events["a"]], apply) == reason


def test_many_events_that_only_spark_orders(spark: SparkSession) -> None:
    events = random_events(spark, "BIGINT", "STRING")
    ties = events.union(events.limit(1))
    assert last_events_of_many(ties, APPLY) == Reason.of(ReasonCode.EVENTS_OF_EQUAL_SEQUENCE)
    assert last_rows(ties, [ties["value"]], APPLY) == Reason.of(ReasonCode.EVENTS_OF_EQUAL_SEQUENCE)
    random_values = events.selectExpr("* EXCEPT (value)", "CAST(rand() * 9 AS BIGINT) AS value")
    assert last_events_of_many(random_values, APPLY) == Reason.of(ReasonCode.EVENTS_NOT_DETERMINISTIC)

"""Rows of one copy are the table, as the merge with events would have it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from tautochrone.model import limits
from tautochrone.model.auto_cdc import KeyedApply
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.runtime.merges.copied_rows import CopiedRows, copied_rows
from tautochrone.runtime.merges.latest_events import InvalidValues, invalid_values, latest_rows, summarize

pytestmark = pytest.mark.spark

APPLY = KeyedApply(
    keys=("id", "day"),
    sequence=("point", "planned"),
    delete="operation = 'delete'",
    truncate="operation = 'truncate'",
    unchanged="unchanged",
    transaction="transaction",
    snapshot="snapshot",
    invalid="invalid",
    dropped=("point", "planned", "operation", "transaction", "snapshot", "unchanged", "invalid"),
)
# By two rounds of one copy; the second one saw more transactions.
COPIED: list[tuple[Any, ...]] = [
    (n, f"day {n % 3}", n * 10, 100 + n % 2, 7, "copy", None, f"{5 + n % 2}:9:7", None, ["v = x"][: n % 2])
    for n in range(50)
]
TRUNCATE: tuple[Any, ...] = (None, None, None, 200, 0, "truncate", 8, None, None, [])
SECOND_COPY: tuple[Any, ...] = (3, "day 0", 31, 300, 8, "copy", None, "9:9:", None, [])


def events(spark: SparkSession, *more: tuple[Any, ...], key_type: str = "INT") -> DataFrame:
    schema = (
        f"id {key_type}, day STRING, value BIGINT, point BIGINT, planned BIGINT, operation STRING, "
        "transaction BIGINT, snapshot STRING, unchanged ARRAY<STRING>, invalid ARRAY<STRING>"
    )
    rows = [*COPIED, *more]
    if key_type == "FLOAT":
        rows = [(float(row[0]), *row[1:]) for row in rows]
    return spark.createDataFrame(rows, schema)


def random_events(seed: int, *, leave_unchanged: bool) -> list[tuple[Any, ...]]:
    """Of some keys of the copy, and of others; the copies saw some of them."""
    pick = random.Random(seed)
    log = []
    for number in range(pick.randint(1, 60)):
        key = pick.randrange(60)
        operation = pick.choice(("insert", "update", "delete"))
        unchanged = ["value"] if leave_unchanged and operation == "update" and pick.random() < 0.5 else []
        value = None if unchanged or operation == "delete" else number
        invalid = ["v = a"] if pick.random() < 0.2 else []
        log.append(
            (
                *(key, f"day {pick.choice((key % 3, 4))}", value, 200 + number, 0, operation),
                *(pick.randint(3, 10), None, unchanged, invalid),
            )
        )
    return log


def test_rows_of_one_copy_are_the_table(spark: SparkSession) -> None:
    copied = copied_rows(events(spark), APPLY)
    assert isinstance(copied, CopiedRows)
    assert require_merged(copied, events(spark)) == InvalidValues(25, "v = x")
    valid = copied_rows(events(spark).where("size(invalid) = 0"), APPLY)
    assert isinstance(valid, CopiedRows)
    assert len(valid.rows.collect()) == 25
    assert valid.invalid() is None


@pytest.mark.parametrize(
    ("leave_unchanged", "seeds"),
    [
        (True, range(2)),
        pytest.param(True, range(2, 4), marks=pytest.mark.slow),
        pytest.param(False, range(4), marks=pytest.mark.slow),
    ],
)
def test_keys_with_events_are_merged(
    spark: SparkSession, leave_unchanged: bool, seeds: Sequence[int]
) -> None:
    for seed in seeds:
        all_events = events(spark, *random_events(seed, leave_unchanged=leave_unchanged))
        copied = copied_rows(all_events, APPLY)
        assert isinstance(copied, CopiedRows)
        assert require_merged(copied, all_events) is not None
        # Spark forgets what was held when it is told to.
        copied.release()


def require_merged(copied: CopiedRows, all_events: DataFrame) -> InvalidValues | None:
    """The rows and the invalid values are those of the merge of all events."""
    summary = summarize(all_events, APPLY)
    merged = latest_rows(all_events, APPLY, summary, None)
    assert copied.rows.columns == merged.columns
    rows = copied.rows.collect()
    assert Counter(rows) == Counter(merged.collect())
    assert len({row[:2] for row in rows}) == len(rows)
    invalid = copied.invalid()
    assert invalid == invalid_values(all_events, APPLY, summary)
    return invalid


def test_why_all_keys_are_merged(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def why(rows: DataFrame, apply: KeyedApply = APPLY) -> Reason | None:
        copied = copied_rows(rows, apply)
        assert not isinstance(copied, CopiedRows)
        return copied

    assert why(events(spark, TRUNCATE)) == Reason.of(ReasonCode.TABLE_TRUNCATED)
    assert why(events(spark, SECOND_COPY)) == Reason.of(ReasonCode.SEVERAL_COPIES)
    compared = Reason.of(ReasonCode.COLUMN_COMPARED_BY_SPARK, column="id", type="float")
    assert why(events(spark, key_type="FLOAT")) == compared
    assert isinstance(copied_rows(events(spark, key_type="BIGINT"), APPLY), CopiedRows)
    random_values = events(spark).withColumn("value", sf.rand())
    assert why(random_values) == Reason.of(ReasonCode.EVENTS_NOT_DETERMINISTIC)
    log = random_events(0, leave_unchanged=False)
    monkeypatch.setattr(limits, "MAX_BROADCAST_VALUES", 2 * len(log))
    assert isinstance(copied_rows(events(spark, *log), APPLY), CopiedRows)
    monkeypatch.setattr(limits, "MAX_BROADCAST_VALUES", 2 * len(log) - 1)
    many = Reason.of(ReasonCode.MANY_EVENTS_AFTER_COPY, rows=len(log), limit=len(log) - 1)
    assert why(events(spark, *log)) == many
    # Nothing was copied.
    assert why(events(spark, *log).where("snapshot IS NULL")) is None
    assert why(events(spark).where("false")) is None
    assert why(events(spark), replace(APPLY, snapshot=None)) is None
    assert why(events(spark), replace(APPLY, weight="1")) is None

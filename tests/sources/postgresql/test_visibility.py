"""The merge of copied rows with events, over random schedules of a real server."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import psycopg
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf

from tautochrone.model.auto_cdc import KeyedApply
from tautochrone.runtime.merges.copied_rows import CopiedRows, copied_rows
from tautochrone.runtime.merges.latest_events import latest_rows, summarize

from .schedules import Schedule, run_schedule

pytestmark = pytest.mark.spark
log = logging.getLogger(__name__)

APPLY = KeyedApply(
    keys=("schedule", "end", "id"),
    sequence=("point", "sequence"),
    delete="operation = 'delete'",
    truncate="operation = 'truncate'",
    unchanged="unchanged",
    transaction="transaction",
    snapshot="snapshot",
    dropped=("point", "sequence", "operation", "transaction", "snapshot", "unchanged"),
)
SCHEMA = (
    "schedule INT, id INT, n BIGINT, point BIGINT, sequence BIGINT, operation STRING, transaction BIGINT, "
    "snapshot STRING, unchanged ARRAY<STRING>"
)


def events_of(
    spark: SparkSession, schedules: Sequence[Schedule], points: Sequence[Sequence[int]]
) -> DataFrame:
    """Of each schedule its copied rows and its log, once up to each of these points."""
    rows = [
        (
            number,
            int(row["columns"]["id"]),
            None if row["columns"].get("n") is None else int(row["columns"]["n"]),
            *(row[name] for name in ("point", "sequence", "operation", "transaction", "snapshot")),
            [],
        )
        for number, schedule in enumerate(schedules)
        for row in schedule.rows
    ]
    ends = [(number, end) for number, of_schedule in enumerate(points) for end in of_schedule]
    in_log = sf.col("operation").eqNullSafe("copy") | (sf.col("point") <= sf.col("end"))
    return (
        spark.createDataFrame(rows, SCHEMA)
        .join(spark.createDataFrame(ends, "schedule INT, end BIGINT"), "schedule")
        .where(in_log)
    )


def tables_of(rows: Iterable[Row], points: Sequence[Sequence[int]]) -> list[dict[int, dict[int, int]]]:
    """Of each schedule its tables at these points of the log."""
    tables: list[dict[int, dict[int, int]]] = [{end: {} for end in of_schedule} for of_schedule in points]
    for row in rows:
        table = tables[row["schedule"]][row["end"]]
        assert row["id"] not in table
        table[row["id"]] = row["n"]
    return tables


@pytest.mark.parametrize("count", [6, pytest.param(1000, marks=pytest.mark.slow)])
def test_random_schedules(spark: SparkSession, database: psycopg.Connection, count: int) -> None:
    """At the end of every transaction at which a table may be published, and at the end."""
    info = database.info
    url = f"host={info.host} dbname={info.dbname} user=postgres"
    require_states_of_the_log(spark, run_schedules(lambda seed: run_schedule(url, seed), count))


def run_schedules(run: Callable[[int], Schedule], count: int) -> list[Schedule]:
    """This many schedules, and on a busy machine more: until one of them is wrong by watermarks."""
    schedules = [run(seed) for seed in range(count)]
    while len(schedules) < 10 * count and not any(map(wrong_by_watermark, schedules)):
        schedules.append(run(len(schedules)))
    return schedules


def wrong_by_watermark(schedule: Schedule) -> bool:
    return schedule.merged_by_watermark() != schedule.truth


def require_states_of_the_log(spark: SparkSession, schedules: Sequence[Schedule]) -> None:
    """By visibility the tables are states of the log, by watermarks some are not.

    `pytest --log-cli-level INFO` shows how many.
    """
    points = [schedule.transaction_ends() for schedule in schedules]
    events = events_of(spark, schedules, points)
    merged = tables_of(latest_rows(events, APPLY, summarize(events, APPLY), None).collect(), points)
    for seed, (schedule, tables) in enumerate(zip(schedules, merged, strict=True)):
        assert schedule.state_at(points[seed][-1]) == schedule.truth, seed
        for point, rows in tables.items():
            assert rows == schedule.state_at(point), (seed, point)
    wrong = [wrong_by_watermark(schedule) for schedule in schedules]
    assert any(wrong), "the schedules are too tame: watermarks were right every time"
    log.info(
        "%d schedules, %d states are right; watermarks are wrong in %d schedules",
        len(schedules),
        sum(map(len, points)),
        sum(wrong),
    )
    # A table is built at the first point, and a large one so:
    firsts = [[schedule.pass_at] for schedule in schedules]
    built = copied_rows(events_of(spark, schedules, firsts), APPLY)
    assert isinstance(built, CopiedRows)
    rows_of_tables = built.rows.collect()
    built.release()
    for schedule, tables in zip(schedules, tables_of(rows_of_tables, firsts), strict=True):
        assert tables[schedule.pass_at] == schedule.state_at(schedule.pass_at)


def test_truncates_and_unchanged_values(spark: SparkSession) -> None:
    """Transaction 5 truncates: one copied row was read before it, one behind it."""
    apply = replace(APPLY, keys=("schedule", "id"))
    events = spark.createDataFrame(
        [
            # schedule, id, n, point, sequence, operation, transaction, snapshot, unchanged
            (0, 1, 1, 10, 0, "copy", None, "5:5:", []),
            (0, 2, 2, 10, 0, "copy", None, "7:9:7", []),
            (0, 3, 3, 20, 0, "insert", 3, None, []),
            (0, None, None, 30, 0, "truncate", 5, None, None),
            (0, 4, 4, 40, 0, "insert", 6, None, []),
            (0, 4, None, 50, 0, "update", 7, None, ["n"]),
            (0, 2, None, 60, 0, "update", 7, None, ["n"]),
            (0, 5, None, 60, 1, "update", 8, None, ["n"]),
            (0, 6, None, 60, 2, "update", 8, None, []),
        ],
        SCHEMA,
    )
    summary = summarize(events, apply)
    assert summary.count == 9
    assert summary.leaves_unchanged
    stored = spark.createDataFrame([(0, 5, 50), (0, 6, 60)], "schedule INT, id INT, n BIGINT")
    rows = latest_rows(events, apply, summary, lambda _events: stored).collect()
    expected = [(0, 2, 2), (0, 4, 4), (0, 5, 50), (0, 6, None)]
    assert sorted(rows, key=lambda row: row["id"]) == [
        Row(schedule=schedule, id=key, n=value) for schedule, key, value in expected
    ]

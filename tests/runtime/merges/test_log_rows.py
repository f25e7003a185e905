"""The new rows of a change log are read once for all tables that take their events from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.sources.bank import Bank

from tautochrone.model import limits
from tautochrone.model.lake import AppendedRows
from tautochrone.model.names import TableName, Version
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.runtime.merges.log_rows import LogRange, LogRows, RelationRows
from tautochrone.testing.toy_database import Change

pytestmark = pytest.mark.spark

RANGE = LogRange(TableName("lake", ("default",), "log"), Version("1"), Version("2"))
RELATIONS = ("a", "b", "c", None)


@pytest.mark.parametrize(
    "counted",
    [
        pytest.param(Reason.of(ReasonCode.TABLE_PARTITIONED), id="counted by Spark"),
        pytest.param(AppendedRows(dict.fromkeys(RELATIONS, 5), 100), id="counted in files"),
    ],
)
@pytest.mark.parametrize(
    ("max_driver_rows", "max_held_rows"),
    [
        pytest.param(100, 0, id="on the driver"),
        pytest.param(0, 100, id="on the executors"),
        pytest.param(0, 0, id="in files"),
    ],
)
def test_relations_share_one_read(
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    max_driver_rows: int,
    max_held_rows: int,
    counted: AppendedRows | Reason,
) -> None:
    monkeypatch.setattr(limits, "MAX_DRIVER_ROWS", max_driver_rows)
    monkeypatch.setattr(limits, "MAX_HELD_LOG_ROWS", max_held_rows)
    rows = [(RELATIONS[n % 4], n, {"id": str(n)}) for n in range(20)]
    log = spark.createDataFrame(rows, "relation STRING, n INT, columns MAP<STRING, STRING>").repartition(3)
    reads: list[DataFrame] = []

    def read() -> DataFrame:
        reads.append(log)
        return log

    def count(max_bytes: int) -> AppendedRows | Reason:
        assert max_bytes == (limits.MAX_DRIVER_CHARACTERS if max_driver_rows else limits.MAX_ARROW_BYTES)
        return counted

    shared = LogRows()
    for number, relation in enumerate(("b", "a", "c")):
        jobs = _jobs(spark)
        relation_rows = shared.of_relation(RANGE, "relation", relation, 20, read, count)
        assert relation_rows is not None
        assert relation_rows.count == 5
        assert relation_rows.of == 20
        assert relation_rows.counted_by_spark == (counted if isinstance(counted, Reason) else None)
        stored = [(row.n, row.columns) for row in relation_rows.rows.collect()]
        assert sorted(stored) == [(n, {"id": str(n)}) for n in range(20) if RELATIONS[n % 4] == relation]
        if max_driver_rows and number:
            assert _jobs(spark) == jobs, "rows on the driver need no job"
    missing = shared.of_relation(RANGE, "relation", "d", 20, read, count)
    assert missing is not None
    assert missing.count == 0
    assert len(reads) == 1
    shared.forget()
    shared.of_relation(RANGE, "relation", "a", 20, read, count)
    assert len(reads) == 2
    shared.forget()


def test_why_rows_are_left_to_the_executors(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_DRIVER_ROWS", 2)
    monkeypatch.setattr(limits, "MAX_DRIVER_CHARACTERS", 10)
    for count, characters, reason in (
        (2, 10, None),
        (None, 10, Reason.of(ReasonCode.EVENTS_NOT_COUNTED)),
        (3, 10, Reason.of(ReasonCode.MANY_EVENTS, rows=3, limit=2)),
        (2, None, Reason.of(ReasonCode.LOG_ROWS_NOT_HELD, rows=7)),
        (2, 11, Reason.of(ReasonCode.LONG_EVENTS, characters=11, limit=10)),
    ):
        assert RelationRows(spark.range(1), count, characters, 7).left_to_executors == reason


@pytest.mark.slow
def test_rows_that_the_driver_does_not_hold(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank = Bank.make(spark, tmp_path / "bank")
    bank.run().require_completed()
    # Only one of the three relations changes: the tables of the others read nothing.
    bank.database.transaction(Change("transfers", 1, 5))
    attempt = bank.run()
    attempt.require_completed()
    modes = {event["dataset"].rpartition(".")[2]: event["mode"] for event in attempt.named("refresh")}
    assert modes["transfers"] == "incremental"
    assert modes["accounts"] == modes["savings"] == "no_data"
    monkeypatch.setattr(limits, "MAX_DRIVER_ROWS", 0)
    for max_held_rows, codes in ((1000, []), (0, [ReasonCode.VERY_MANY_EVENTS])):
        monkeypatch.setattr(limits, "MAX_HELD_LOG_ROWS", max_held_rows)
        bank.work()
        attempt = bank.run()
        attempt.require_completed()
        nodes = [node for event in attempt.named("refresh") for node in event["nodes"]]
        assert {node["reason_code"] for node in nodes if node["node"] == "last events of keys"} == {*codes}
    bank.check()


def _jobs(spark: SparkSession) -> int:
    context = spark.sparkContext
    number: Callable[[], int] = context._jsc.sc().dagScheduler().numTotalJobs
    return int(number())

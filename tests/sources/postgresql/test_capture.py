"""A PostgreSQL database is captured: at every checkpoint the tables are a state that it had."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import psycopg
import pytest
from pyspark.sql import SparkSession
from tests.crash.faults import Strike
from tests.sources.bank import Attempt

from tautochrone.model import limits
from tautochrone.model.effects import Step
from tautochrone.model.reason import ReasonCode
from tautochrone.runtime.merges.keyed_merge import KeyedMerge

from .captured_bank import CapturedBank

IN_THE_BULK = (
    Step.SOURCE_BEGIN,
    Step.LAKE_STAGE,
    Step.LAKE_PREPARE,
    Step.LAKE_COMMIT,
    Step.META_REPORT,
    Step.SOURCE_ACKNOWLEDGE,
)
IN_THE_TAIL = (
    *IN_THE_BULK[1:],
    Step.META_OPEN,
    Step.LAKE_COMMIT_STAGED,
    Step.META_VERSION,
    Step.META_PUBLISH,
)
WITH_COLUMNS = (*IN_THE_TAIL, Step.LAKE_REDEFINE)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture
def bank(spark: SparkSession, tmp_path: Path, database: psycopg.Connection) -> Iterator[CapturedBank]:
    # Crashes are meant: neither side shall write a stack for each.
    py4j = logging.getLogger("py4j.clientserver")
    spark.sparkContext.setLogLevel("OFF")
    py4j.disabled = True
    yield CapturedBank.of(spark, tmp_path / "bank", database)
    py4j.disabled = False
    spark.sparkContext.setLogLevel("ERROR")


def test_tables_are_states_of_the_database(bank: CapturedBank, database: psycopg.Connection) -> None:
    with bank.load():
        bank.run(Strike(Step.SOURCE_ACKNOWLEDGE, "before", "crash"))
        bank.run().require_completed()
    crash_while_columns_come(bank, (Step.LAKE_REDEFINE,), "after")
    # Large values that an update leaves unchanged are not in the log.
    database.execute("UPDATE accounts SET balance = balance, note = note")
    (count,) = database.execute("SELECT count(*) FROM accounts").fetchone() or ()
    database.execute("TRUNCATE accounts, savings")
    database.execute("INSERT INTO accounts (id, balance, note) VALUES (1, 2000, repeat('z', 4000))")
    database.execute("UPDATE accounts SET balance = 1999 WHERE id = 1")
    database.execute("UPDATE accounts SET balance = 2000 WHERE id = 1")
    attempt = bank.run()
    attempt.require_completed()
    refreshes = {refresh["dataset"].rpartition("_")[2]: refresh for refresh in attempt.named("refresh")}
    accounts = refreshes["accounts"]
    assert (accounts["rows_inserted"], accounts["rows_deleted"]) == (1, count)
    bank.check()
    attempt = bank.run(remembers=True)
    attempt.require_completed()
    assert not attempt.named("checkpoint"), "there was no news"
    news = bank.news()
    # The server itself writes some lines now and then.
    assert news.code is ReasonCode.NOTHING_SINCE_LAST_RUN or int(news.params["bytes"]) < 5_000, news
    database.execute("INSERT INTO accounts SELECT i, 1, repeat('y', 1000) FROM generate_series(200, 220) i")
    news = bank.news()
    assert (news.code, news.params["capture"]) == (ReasonCode.LOG_SINCE_LAST_RUN, "bank")
    assert int(news.params["bytes"]) > 20_000
    (kept_log,) = attempt.named("log_kept")
    assert "problem" not in kept_log
    assert (True, False) in [(entry["is_own"], entry["is_lost"]) for entry in kept_log["kept"]]


def test_first_build_takes_rows_as_they_were_copied(
    bank: CapturedBank, database: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the database is written to; or it is said why all keys are merged."""
    # As if there were more rows than the driver holds.
    monkeypatch.setattr(limits, "MAX_DRIVER_ROWS", 0)
    take_copied = KeyedMerge._take_copied
    with (
        bank.load(),
        patch.object(KeyedMerge, "_take_copied", autospec=True, side_effect=take_copied) as copied,
    ):
        # The log goes on behind the copies, and the tables are built when it has.
        bank.run(Strike(Step.META_OPEN, "before", "crash"))
        attempt = bank.run()
    attempt.require_completed()
    # Accounts may all be closed before they are copied.
    assert _steps_of_spark(attempt, "bank_savings") == {}
    assert "bank_savings" in [merge.task.name.table for merge, _rows in (c.args for c in copied.mock_calls)]
    database.execute("TRUNCATE accounts, savings")
    database.execute("INSERT INTO savings VALUES (1, 2000)")
    # With what was written while that run ended.
    bank.run().require_completed()
    attempt = bank.run(full_of=("bank_savings",))
    attempt.require_completed()
    assert _steps_of_spark(attempt, "bank_savings") == {
        "copied rows without events": ReasonCode.TABLE_TRUNCATED
    }
    bank.check()


def _steps_of_spark(attempt: Attempt, table: str) -> dict[str, str]:
    """The steps of a build that were done otherwise than usual, with the codes of the reasons."""
    (refresh,) = [
        event
        for event in attempt.named("refresh")
        if event["dataset"].endswith(f".{table}") and event["mode"] == "full"
    ]
    _apply, *steps = refresh["nodes"]
    assert all(step["reason"] in str(refresh["reason"]) for step in steps)
    return {step["node"]: step["reason_code"] for step in steps}


def crash_at_every_step(bank: CapturedBank, when: str) -> None:
    """Strike runs at every durable step while the database is written to."""
    with bank.load():
        for step in IN_THE_BULK:
            bank.run(Strike(step, when, "crash"))
    bank.run().require_completed()
    with bank.load():
        for step in IN_THE_TAIL:
            bank.run(Strike(step, when, "crash"))
    bank.work()
    bank.run().require_completed()
    bank.check()


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_crashes(bank: CapturedBank, when: str) -> None:
    crash_at_every_step(bank, when)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_crashes_while_columns_come_without_a_copy(bank: CapturedBank, when: str) -> None:
    bank.run().require_completed()
    crash_while_columns_come(bank, WITH_COLUMNS, when)


def crash_while_columns_come(bank: CapturedBank, steps: tuple[Step, ...], when: str) -> None:
    copied = bank.copied_rows()
    with bank.load():
        for step in steps:
            bank.add_column()
            bank.run(Strike(step, when, "crash"))
    bank.work()
    bank.run().require_completed()
    bank.check()
    assert bank.copied_rows() == copied, "nothing was copied again"


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_crashes_while_columns_are_ignored(
    bank: CapturedBank, database: psycopg.Connection, when: str
) -> None:
    """Columns come and go that the lake does not take."""
    bank.ignores_columns = True
    definition = bank.folder / "transformations" / "bank.py"
    definition.write_text(definition.read_text().replace("tables=", 'schema_changes="ignore", tables='))
    with bank.load():
        bank.run()
        for number, step in enumerate((*IN_THE_BULK, *IN_THE_TAIL)):
            table = "accounts" if number % 2 else "savings"
            database.execute(f"ALTER TABLE {table} ADD COLUMN c{number} int NOT NULL DEFAULT {number}")
            attempt = bank.run(Strike(step, when, "crash"))
            assert not attempt.named("columns_added")
            database.execute(f"ALTER TABLE {table} DROP COLUMN c{number}")
    bank.work()
    bank.run().require_completed()
    bank.check()

"""A log table loses rows that are older than its retention, and no table over it changes."""

from __future__ import annotations

import time

import pytest
from tests.crash.faults import Strike

from tautochrone.errors import DefinitionError
from tautochrone.model.effects import Step
from tautochrone.model.log_table import parse_log_retention

from .bank import Attempt, Bank

IN_THE_COPY = (
    Step.SOURCE_BEGIN,
    Step.LAKE_STAGE,
    Step.LAKE_PREPARE,
    Step.LAKE_COMMIT,
    Step.META_REPORT,
    Step.SOURCE_ACKNOWLEDGE,
)
MAINTENANCE = "[maintenance]\nkeep_last = 1\nkeep = '0s'\nevery = '0s'\nhistory = '0s'\nmin_versions = 1\n"
PLAIN = "@dp.table\ndef bank_log"


def keep(bank: Bank, retention: str) -> None:
    properties = {"tautochrone.commit-time": "committed_at", "tautochrone.log-retention": retention}
    bank.define(PLAIN, f"@dp.table(table_properties={properties})\ndef bank_log")


def work_days_ago(bank: Bank, days: int) -> None:
    bank.committed_at_ms = time.time_ns() // 1_000_000 - days * 86_400_000
    bank.work()


def modes(attempt: Attempt) -> set[str]:
    """How the captured tables were refreshed."""
    attempt.require_completed()
    refreshes = {event["dataset"].rpartition(".")[2]: event["mode"] for event in attempt.named("refresh")}
    return {refreshes["accounts"], refreshes["savings"]}


@pytest.mark.spark
@pytest.mark.crash
@pytest.mark.timeout(600)
@pytest.mark.parametrize("when", ["after", pytest.param("before", marks=pytest.mark.slow)])
def test_old_changes_are_dropped_through_a_crash(bank: Bank, when: str) -> None:
    keep(bank, "7 days")
    bank.set(MAINTENANCE)
    bank.run().require_completed()
    work_days_ago(bank, 8)
    bank.run(Strike(Step.LAKE_SHORTEN, when, "crash"))
    work_days_ago(bank, 1)
    attempt = bank.run()
    assert modes(attempt) == {"incremental"}
    # A commit that was not confirmed counts.
    assert bool(attempt.named("log_shortened")) == (when == "before")
    assert bank.log_points() == [5, 6, 7]
    bank.check()

    if when == "before":
        # The rows were dropped after the last checkpoint, whose version of the log has them.
        bank.run(full_of=("accounts",)).require_completed()
        bank.check()
        work_days_ago(bank, 1)
        bank.run().require_completed()
    # The log lacks rows of the table, and only a run of the log can copy it.
    attempt = bank.run(full_of=("accounts",))
    (refused,) = [event for event in attempt.named("refresh_failed") if "accounts" in event["dataset"]]
    assert "LOG_SHORTENED" in refused["error"]
    assert "`taut run`" in refused["hint"]
    # It is copied again, alone, also when the run is killed before.
    bank.run(Strike(Step.LAKE_STAGE, "before", "crash"))
    attempt = bank.run()
    attempt.require_completed()
    (again,) = attempt.named("bulk_again")
    assert again["relations"] == ["accounts"]
    assert "old changes of it were dropped" in str(again["reason"])
    # The log has all rows of it now.
    bank.run(full_of=("accounts",)).require_completed()
    bank.work()
    attempt = bank.run()
    attempt.require_completed()
    assert not attempt.named("bulk_again")
    bank.check()


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.crash
@pytest.mark.timeout(900)
@pytest.mark.parametrize("when", ["before", "after"])
def test_crashes_while_a_table_is_copied_that_the_log_lacks(bank: Bank, when: str) -> None:
    keep(bank, "7 days")
    bank.set(MAINTENANCE)
    bank.run().require_completed()
    for step in IN_THE_COPY:
        work_days_ago(bank, 8)
        attempt = bank.run()
        attempt.require_completed()
        assert attempt.named("log_shortened"), step
        # The rows were dropped after the last checkpoint, whose version of the log has them.
        work_days_ago(bank, 8)
        bank.run().require_completed()
        attempt = bank.run(full_of=("accounts",))
        (refused,) = [e for e in attempt.named("refresh_failed") if "accounts" in e["dataset"]]
        assert "LOG_SHORTENED" in refused["error"]
        # Once for the copy, and once for what follows it.
        for nth in (1, 2):
            bank.run(Strike(step, when, "crash", nth=nth), reached=nth == 1)
            work_days_ago(bank, 8)
        bank.run().require_completed()
        bank.check()
        assert bank.log_points() == [], step


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_changes_are_dropped_once_all_tables_have_them(bank: Bank) -> None:
    keep(bank, "0s")
    bank.set(MAINTENANCE)
    (bank.folder / "transformations" / "count.sql").write_text(
        "CREATE MATERIALIZED VIEW changes AS SELECT count(*) AS changes FROM bank_log;"
    )
    attempt = bank.run()
    attempt.require_completed()
    (event,) = attempt.named("log_not_shortened")
    assert event["reason"] == "lake.default.changes needs all rows of lake.default.bank_log"
    (bank.folder / "transformations" / "count.sql").unlink()
    for _ in range(2):
        bank.work()
        attempt = bank.run()
        attempt.require_completed()
        assert attempt.named("log_shortened")
        assert bank.log_points() == []
    bank.check()
    # A new copy of the database begins a whole log.
    bank.run(full=True).require_completed()
    bank.work()
    assert modes(bank.run()) == {"incremental"}
    bank.check()


def test_retention_is_a_duration() -> None:
    assert parse_log_retention("1.5 hours") == parse_log_retention("90m") == 5_400_000
    with pytest.raises(DefinitionError, match="no duration"):
        parse_log_retention("a week")

"""`schema_changes="ignore"`: the lake's tables keep their columns, whatever columns the database gets."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession
from tests.support.harness import Happened

from tautochrone.model.source_position import LogPosition
from tautochrone.sources.postgresql.change_log import PostgreSQLChangeLog

from .test_schema_changes import Captured

pytestmark = pytest.mark.spark


@pytest.fixture
def captured(database: psycopg.Connection, tmp_path: Path, spark: SparkSession) -> Iterator[Captured]:
    capture = Captured(database, tmp_path, spark)
    capture.define(', schema_changes="ignore"')
    yield capture
    capture.pipeline.close()


def _run(captured: Captured, monkeypatch: pytest.MonkeyPatch, *statements: str) -> Happened:
    """A run that has loaded its definitions when the database executes these."""
    resume = PostgreSQLChangeLog.resume

    def after_statements(
        log: PostgreSQLChangeLog, position: LogPosition, anew: Collection[str] = ()
    ) -> LogPosition:
        resumed = resume(log, position, anew)
        monkeypatch.setattr(PostgreSQLChangeLog, "resume", resume)
        for statement in statements:
            captured.database.execute(statement)
        return resumed

    monkeypatch.setattr(PostgreSQLChangeLog, "resume", after_statements)
    return captured.pipeline.run()


def test_ignored_columns_are_not_taken_over(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    captured.run()
    long = "repeat(md5(random()::text), 500)"
    happened = _run(
        captured,
        monkeypatch,
        "INSERT INTO accounts VALUES (21, 'old', 5)",
        "ALTER TABLE accounts ADD COLUMN tier text NOT NULL DEFAULT 'basic', ADD COLUMN big text",
        f"UPDATE accounts SET tier = 'gold', balance = 7, big = {long} WHERE id < 4",
        # The ignored value is large and left unchanged, while the key is another one.
        "UPDATE accounts SET id = 103 WHERE id = 3",
        "UPDATE accounts SET balance = 8 WHERE id = 2",
        "ALTER TABLE accounts RENAME COLUMN tier TO level",
        "INSERT INTO accounts VALUES (22, 'new', 6, 'x')",
        "ALTER TABLE accounts ADD COLUMN passing int, DROP COLUMN level",
        "DELETE FROM accounts WHERE id = 5",
        "ALTER TABLE accounts DROP COLUMN passing",
        "DELETE FROM notes WHERE id = 2",
    )
    assert happened.state == "COMPLETED", [event["error"] for event in happened if "error" in event]
    assert {event["relation"] for event in happened.of("schema_change_ignored")} == {"public.accounts"}
    assert not happened.of("bulk_again")
    captured.require_equal("accounts", "id, owner, balance")
    captured.require_equal("notes", "id, note")
    # Definitions that have the columns leave them out as well, and the lake keeps one that is gone.
    captured.database.execute(
        "ALTER TABLE notes RENAME COLUMN note TO text; INSERT INTO notes VALUES (3, 't')"
    )
    happened = _run(captured, monkeypatch, "UPDATE accounts SET big = 'y', balance = 9 WHERE id = 1")
    ignored = {event["dataset"].rpartition("_")[2]: event for event in happened.of("columns_ignored")}
    assert {name: (event["columns"], event["absent"]) for name, event in ignored.items()} == {
        "accounts": (["big"], []),
        "notes": (["text"], ["note"]),
    }
    assert [event["relations"] for event in happened.of("bulk_again")] in ([], [["public.notes"]])
    captured.require_equal("accounts", "id, owner, balance")
    captured.require_equal("notes", "id")
    assert captured.pipeline.query("SELECT DISTINCT note FROM bank_notes") == [(None,)]
    # Another policy later takes over what was ignored.
    captured.define()
    captured.run()
    captured.require_equal("accounts", "id, owner, balance, big")


@pytest.mark.slow
def test_columns_of_the_lake_go_and_come_back(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    captured.run()
    # This run stops, and the next one goes on without it.
    happened = _run(
        captured,
        monkeypatch,
        "ALTER TABLE notes RENAME COLUMN note TO text",
        "INSERT INTO notes VALUES (3, 'text')",
    )
    assert "CAPTURED_TABLE_CHANGED" in happened.failure("bank_log")
    captured.run()
    captured.require_equal("notes", "id")
    assert captured.pipeline.query("SELECT DISTINCT note FROM bank_notes") == [(None,)]
    # It comes back, by another name before it, and is taken over.
    captured.database.execute("ALTER TABLE notes RENAME COLUMN text TO note")
    captured.run()
    captured.require_equal("notes", "id, note")
    captured.database.execute("ALTER TABLE notes DROP COLUMN note, ADD COLUMN note text DEFAULT 'again'")
    captured.run()
    captured.require_equal("notes", "id, note")


@pytest.mark.slow
def test_tables_without_a_key_follow_columns(captured: Captured) -> None:
    """All columns identify their rows."""
    captured.database.execute("CREATE TABLE logs (line text); ALTER TABLE logs REPLICA IDENTITY FULL")
    captured.database.execute("INSERT INTO logs VALUES ('a'), ('a')")
    captured.run()
    captured.database.execute("ALTER TABLE logs ADD COLUMN number int DEFAULT 4")
    captured.database.execute("INSERT INTO logs VALUES ('b', 5)")
    captured.run()
    captured.require_equal("logs", "line, number")

"""Statements that change captured tables: each table is copied again, and equals the database in the end."""

from __future__ import annotations

import random
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pymysql
import pytest
from pyspark.sql import SparkSession
from tests.support import mariadb
from tests.support.harness import Happened, Pipeline

from tautochrone.model.source_position import LogPosition
from tautochrone.sources.mysql import bulk
from tautochrone.sources.mysql.change_log import MySQLChangeLog

from .conftest import Schema, on

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
_MARIADB = pytest.mark.parametrize("schema", ["mariadb"], indirect=True)

_ACCOUNTS = ", ".join(f"({number}, 'o{number}', 100)" for number in range(1, 201))
_NOTES = ", ".join(f"({number}, '{chr(96 + number) * 300}')" for number in range(1, 21))
_DDL = (
    "CREATE TABLE accounts (id INT PRIMARY KEY, owner VARCHAR(20), balance INT)",
    f"INSERT INTO accounts VALUES {_ACCOUNTS}",
    "CREATE TABLE notes (id INT PRIMARY KEY, note TEXT)",
    f"INSERT INTO notes VALUES {_NOTES}",
    "CREATE TABLE cards (number BIGINT PRIMARY KEY, account INT)",
    "INSERT INTO cards VALUES (7, 1), (8, 2)",
)
_CAPTURE = """
from tautochrone.sources import mysql

mysql.capture("bank", url="{url}", tables="{schema}.*"{more})
"""


class Captured:
    """A database and the pipeline that captures it."""

    def __init__(
        self, schema: Schema, folder: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.schema, self.monkeypatch = schema, monkeypatch
        self.pipeline = Pipeline(folder, spark)
        schema.run(*_DDL)
        self.define()

    def define(self, more: str = "") -> None:
        text = _CAPTURE.format(url=self.schema.server.server_url(), schema=self.schema.name, more=more)
        self.pipeline.write("definitions/bank.py", text)

    def run(self) -> Happened:
        happened = self.pipeline.run()
        assert happened.state == "COMPLETED", [event["error"] for event in happened if "error" in event]
        return happened

    def during_the_run(self, *statements: str) -> None:
        """The next run has loaded its definitions when the database executes these."""
        resume = MySQLChangeLog.resume

        def after_statements(
            log: MySQLChangeLog, position: LogPosition, anew: Collection[str] = ()
        ) -> LogPosition:
            resumed = resume(log, position, anew)
            self.monkeypatch.setattr(MySQLChangeLog, "resume", resume)
            self.schema.run(*statements)
            return resumed

        self.monkeypatch.setattr(MySQLChangeLog, "resume", after_statements)

    def require_equal(self, table: str, columns: str) -> None:
        """The table holds the rows of the database."""
        stored = self.pipeline.query(f"SELECT {columns} FROM bank_{table}")
        assert stored == sorted(self.schema.rows(f"SELECT {columns} FROM {table}"))


@pytest.fixture
def captured(
    schema: Schema, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Captured]:
    monkeypatch.setattr(bulk, "CHUNK_BYTES", 8 * 1024)
    capture = Captured(schema, tmp_path, spark, monkeypatch)
    yield capture
    capture.pipeline.close()


@pytest.mark.slow
@_MARIADB
def test_changed_tables_are_copied_again(captured: Captured) -> None:
    schema = captured.schema
    captured.run()
    # The last events with the old columns are read after the columns changed.
    schema.run(
        "DELETE FROM accounts WHERE id = 20",
        "ALTER TABLE accounts ADD COLUMN tier VARCHAR(9) NOT NULL DEFAULT 'basic'",
        "ALTER TABLE accounts RENAME COLUMN owner TO holder, MODIFY balance BIGINT",
        "UPDATE accounts SET tier = 'gold', id = 900 WHERE id = 3",
        "INSERT INTO notes VALUES (30, 'c')",
        "DELETE FROM notes WHERE id = 1",
        # It gets the rows of another table with the same columns: nothing of that is in the log as rows.
        "CREATE TABLE newer LIKE notes",
        "INSERT INTO newer SELECT id, CONCAT(note, '!') FROM notes WHERE id > 5",
        "RENAME TABLE notes TO older, newer TO notes",
        "DELETE FROM notes WHERE id = 7",
        "CREATE OR REPLACE TABLE cards (number BIGINT, account INT, PRIMARY KEY (account)) "
        "SELECT 9 AS number, 1 AS account",
    )
    captured.run()
    captured.require_equal("accounts", "id, holder, balance, tier")
    captured.require_equal("notes", "id, note")
    captured.require_equal("older", "id, note")
    captured.require_equal("cards", "number, account")
    schema.run(
        "ALTER TABLE accounts DROP COLUMN tier, ADD COLUMN tier VARCHAR(9)",
        "UPDATE accounts SET balance = 5 WHERE id < 10",
        "INSERT INTO cards VALUES (10, 2)",
        "TRUNCATE TABLE older",
        "INSERT INTO older VALUES (1, 'again')",
        "DELETE FROM notes WHERE id = 8",
    )
    captured.run()
    captured.require_equal("accounts", "id, holder, balance, tier")
    captured.require_equal("cards", "number, account")
    captured.require_equal("older", "id, note")
    captured.require_equal("notes", "id, note")


@pytest.mark.slow
@_MARIADB
def test_a_table_in_trouble_is_set_aside_and_comes_back(captured: Captured) -> None:
    """Views over it stay, and follow it again."""
    schema = captured.schema
    names = ", ".join(f'"{schema.name}.{table}"' for table in ("accounts", "notes", "cards"))
    url = schema.server.server_url()
    text = f'from tautochrone.sources import mysql\nmysql.capture("bank", url="{url}", tables=[{names}])\n'
    captured.pipeline.write("definitions/bank.py", text)
    query = "SELECT count(*) AS n FROM bank_cards JOIN bank_accounts ON account = id"
    captured.pipeline.write("definitions/joined.sql", f"CREATE MATERIALIZED VIEW joined AS {query};")
    captured.run()
    troubles = (
        ("DROP TABLE cards", "CREATE TABLE cards (number BIGINT PRIMARY KEY, account INT)"),
        ("ALTER TABLE cards DROP PRIMARY KEY", "ALTER TABLE cards ADD PRIMARY KEY (number)"),
    )
    for number, (trouble, mend) in enumerate(troubles):
        before = captured.pipeline.query("SELECT number, account FROM bank_cards")
        schema.run(trouble, f"INSERT INTO accounts VALUES ({1000 + number}, 'x', 1)")
        (aside,) = captured.run().of("table_set_aside")
        assert aside["relation"] == f"{schema.name}.cards"
        captured.require_equal("accounts", "id, owner, balance")
        assert captured.pipeline.query("SELECT number, account FROM bank_cards") == before
        schema.run(mend, f"INSERT INTO cards VALUES ({90 + number}, {1000 + number})")
        assert not captured.run().of("table_set_aside")
        captured.require_equal("cards", "number, account")
        assert captured.pipeline.query("SELECT n FROM joined") == captured.pipeline.query(query)


@pytest.mark.slow
@on("mysql")
def test_ignored_columns_are_not_taken_over(captured: Captured) -> None:
    schema, accounts = captured.schema, f"{captured.schema.name}.accounts"
    captured.define(', schema_changes="ignore"')
    captured.run()
    # The definitions are of before these statements; the run finds them in the log.
    captured.during_the_run(
        # Behind the others: images of rows get longer, and nothing is copied.
        "ALTER TABLE accounts ADD COLUMN tier VARCHAR(9) NOT NULL DEFAULT 'basic', ADD since DATETIME",
        "UPDATE accounts SET tier = 'gold', balance = 7, since = '2026-01-02' WHERE id = 3",
        "ALTER TABLE accounts RENAME COLUMN tier TO level, MODIFY since DATETIME COMMENT 'x'",
        "INSERT INTO accounts VALUES (901, 'new', 5, 'gold', NULL)",
        "ALTER TABLE notes COMMENT 'harmless'",
        "DELETE FROM notes WHERE id = 2",
    )
    happened = captured.run()
    events = {(event["relation"], event["reason_code"]) for event in happened.of("schema_change_ignored")}
    assert events == {(accounts, "COLUMNS_CHANGED_AT_SOURCE")}
    assert not happened.of("bulk_again")
    captured.require_equal("accounts", "id, owner, balance")
    captured.require_equal("notes", "id, note")
    # Before others: the log has no names of columns, so the run copies the table.
    captured.during_the_run(
        "ALTER TABLE accounts ADD COLUMN made DATETIME FIRST",
        "UPDATE accounts SET made = '2026-01-02', balance = 9 WHERE id = 4",
        "ALTER TABLE notes DROP COLUMN note",
        "INSERT INTO notes VALUES (77)",
    )
    happened = captured.run()
    (ignored,) = happened.of("columns_ignored")
    assert (ignored["columns"], ignored["absent"]) == (["level", "since"], [])
    assert ignored["reason_code"] == "TABLE_KEEPS_COLUMNS"
    assert {event["relation"] for event in happened.of("schema_change_ignored")} == {
        accounts,
        f"{schema.name}.notes",
    }
    assert {event["reason_code"] for event in happened.of("bulk_again")} == {"SEVERAL"}
    captured.require_equal("accounts", "id, owner, balance")
    captured.require_equal("notes", "id")
    assert captured.pipeline.query("SELECT DISTINCT note FROM bank_notes") == [(None,)]


@pytest.mark.slow
@on("mysql")
def test_columns_of_the_lake_go_and_come_back(captured: Captured) -> None:
    schema = captured.schema
    captured.define(', schema_changes="ignore"')
    captured.run()
    schema.run(
        "ALTER TABLE accounts ADD COLUMN tier VARCHAR(9)",
        "ALTER TABLE notes DROP COLUMN note",
        "INSERT INTO notes VALUES (77)",
    )
    assert ["note"] in [event["absent"] for event in captured.run().of("columns_ignored")]
    schema.run("ALTER TABLE cards DROP COLUMN account", "INSERT INTO cards VALUES (70)")
    captured.run()
    captured.require_equal("cards", "number")
    assert [row[0] for row in captured.pipeline.query("SELECT account FROM bank_cards")] == [None] * 3
    # Behind the others, but the lake's table has it: it is taken over, and the definitions must have it.
    captured.during_the_run("ALTER TABLE cards ADD COLUMN account INT NOT NULL DEFAULT 5")
    happened = captured.pipeline.run()
    assert "CAPTURED_TABLE_CHANGED" in str([event.get("error") for event in happened])
    schema.run("ALTER TABLE notes ADD COLUMN note TEXT", "UPDATE notes SET note = 'again' WHERE id = 77")
    captured.run()
    captured.require_equal("cards", "number, account")
    captured.require_equal("notes", "id, note")
    captured.define()
    captured.run()
    captured.require_equal("accounts", "id, owner, balance, tier")


def _statements(pick: random.Random) -> list[str]:
    """Changes of rows, and at times of a table."""
    key, number = pick.randint(1, 30), pick.randint(0, 10**6)
    table = pick.choice(("notes", "cards"))
    name, value = ("id", "note") if table == "notes" else ("number", "account")
    kind = pick.random()
    if kind < 0.5:
        return [f"REPLACE INTO {table} ({name}, {value}) VALUES ({key}, {number})"]
    if kind < 0.7:
        return [f"DELETE FROM {table} WHERE {name} = {key}"]
    if kind < 0.85:
        return [f"UPDATE IGNORE {table} SET {name} = {name} + 1 WHERE {name} > {key} ORDER BY {name} DESC"]
    extra = f"c{pick.randint(1, 2)}"
    return pick.choice(
        (
            [f"TRUNCATE TABLE {table}"],
            [f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {extra} INT DEFAULT {number}"],
            [f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {extra} VARCHAR(9) DEFAULT 't' FIRST"],
            [f"ALTER TABLE {table} DROP COLUMN IF EXISTS {extra}"],
            [f"ALTER TABLE {table} DROP COLUMN {value}, ADD COLUMN {value} INT DEFAULT {number}"],
            [f"ALTER TABLE {table} MODIFY {value} VARCHAR(30)"],
            [f"ALTER TABLE {table} ADD INDEX i{number} ({name})"],
            [f"ALTER TABLE {table} COMMENT '{number}'"],
            [
                f"CREATE TABLE shadow LIKE {table}",
                f"INSERT INTO shadow SELECT * FROM {table} WHERE {name} % 3 > 0",
                f"RENAME TABLE {table} TO gone, shadow TO {table}",
                "DROP TABLE gone",
            ],
            [
                f"DROP TABLE {table}",
                f"CREATE TABLE {table} ({name} INT PRIMARY KEY, {value} TEXT)",
                f"INSERT INTO {table} VALUES ({key}, 'anew')",
            ],
        )
    )


@contextmanager
def _changing(schema: str, pick: random.Random) -> Iterator[None]:
    """Statements all the time."""
    ended = threading.Event()

    def write() -> None:
        with mariadb.open_connection(database=schema) as connection:
            while not ended.wait(0.02):
                for statement in _statements(pick):
                    with suppress(pymysql.Error):
                        connection.cursor().execute(statement)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@_MARIADB
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_random_statements_while_runs_go_on(captured: Captured, seed: int) -> None:
    """Runs may stop because columns are others; nothing may be missing in the end."""
    pick = random.Random(seed)
    captured.define(', as_text=["*.note", "*.account", "*.c1", "*.c2"], exclude=["*.shadow", "*.gone"]')
    for _ in range(8):
        with _changing(captured.schema.name, pick):
            for _ in range(2):
                happened = captured.pipeline.run()
                errors = [event["error"] for event in happened if "error" in event]
                assert all(_is_expected(str(error)) for error in errors), errors
        for attempt in range(3):
            happened = captured.pipeline.run()
            if happened.state == "COMPLETED":
                break
            assert attempt < 2, [event["error"] for event in happened if "error" in event]
        for table in ("notes", "cards"):
            names = [row[0] for row in captured.schema.rows(f"SHOW COLUMNS FROM {table}")]
            selected = ", ".join(f"CAST({name} AS {{text}})" for name in sorted(names))
            stored = captured.pipeline.query(f"SELECT {selected.format(text='STRING')} FROM bank_{table}")
            rows = captured.schema.rows(f"SELECT {selected.format(text='CHAR')} FROM {table}")
            assert sorted(map(str, stored)) == sorted(map(str, rows)), table


def _is_expected(error: str) -> bool:
    return any(
        name in error for name in ("CAPTURED_TABLE_CHANGED", "CAPTURE_QUERY_FAILED", "CAPTURE_COPY_FAILED")
    )

"""Random statements that change tables while `schema_changes="ignore"` captures them: every checkpoint shows,
in the columns of the lake, the rows of one moment."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession
from tests.support.harness import Pipeline

from tautochrone.meta import MetaStore
from tautochrone.sources.mysql import bulk

from .conftest import Schema

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

_KEYS = {"notes": ("id", "note"), "cards": ("number", "account")}
"""Of each table the column of its key, and another one."""
_DDL = (
    "CREATE TABLE notes (id INT PRIMARY KEY, note VARCHAR(40), kind ENUM('x', 'y') DEFAULT 'y')",
    "INSERT INTO notes VALUES (1, 'a', 'x'), (2, 'b', 'y'), (3, NULL, NULL)",
    "CREATE TABLE cards (number BIGINT PRIMARY KEY, account INT)",
    "INSERT INTO cards VALUES (7, 1), (8, 2)",
)
_CAPTURE = """
from tautochrone.sources import mysql

mysql.capture("bank", url="{url}", tables="{schema}.*", exclude=["*.shadow", "*.gone"],
              as_text=["*.note", "*.account", "*.c1", "*.c2"], schema_changes="ignore")
"""
_Rows = frozenset[tuple[tuple[str, str | None], ...]]
_EXPECTED = ("CAPTURED_TABLE_CHANGED", "CAPTURE_QUERY_FAILED", "CAPTURE_COPY_FAILED")


def _statements(pick: random.Random) -> list[str]:
    table = pick.choice(tuple(_KEYS))
    name, value = _KEYS[table]
    key, number, extra = pick.randint(1, 30), pick.randint(0, 10**6), f"c{pick.randint(1, 2)}"
    kind = pick.random()
    if kind < 0.6:
        return [f"REPLACE INTO {table} ({name}, {value}) VALUES ({key}, {number}), ({key + 1}, {number})"]
    if kind < 0.7:
        return [f"DELETE FROM {table} WHERE {name} = {key}"]
    if kind < 0.8:
        return [f"UPDATE {table} SET {name} = {name} + 30 WHERE {name} < {key}"]
    if kind < 0.9:
        return [f"UPDATE {table} SET {extra} = {number % 1000} WHERE {name} > {key}"]
    alter = f"ALTER TABLE {table}"
    of_extra_columns = (
        [f"{alter} ADD COLUMN {extra} INT DEFAULT {number}"],
        [f"{alter} ADD {extra} INT DEFAULT {number % 7}, COMMENT 'x'"],
        [f"{alter} ADD (c1 INT DEFAULT 4, c2 VARCHAR(300) DEFAULT 'long')"],
        [f"{alter} DROP COLUMN {extra}"],
        [f"{alter} RENAME COLUMN c1 TO c2"],
        [f"{alter} MODIFY {extra} VARCHAR(30)", f"{alter} MODIFY {extra} VARCHAR(300) DEFAULT 'm'"],
        [f"{alter} ADD INDEX i{number} ({name})"],
        [f"TRUNCATE TABLE {table}", f"INSERT INTO {table} ({name}) VALUES ({key})"],
    )
    if kind < 0.97:
        return pick.choice(of_extra_columns)
    return pick.choice(
        (
            [f"{alter} ADD COLUMN {extra} VARCHAR(9) DEFAULT 't' FIRST"],
            [f"{alter} ADD {extra} INT DEFAULT {number % 7} AFTER {name}"],
            [f"{alter} RENAME COLUMN {value} TO c1"],
            [f"{alter} RENAME COLUMN c1 TO {value}"],
            [f"{alter} CHANGE c2 {value.upper()} INT"],
            [f"{alter} DROP COLUMN {value}, ADD COLUMN {value} INT DEFAULT {number}"],
            [f"{alter} DROP COLUMN {value}", f"{alter} ADD COLUMN {value} VARCHAR(40) DEFAULT 'back'"],
            [f"{alter} MODIFY {value} VARCHAR(41)"],
            [f"{alter} MODIFY {value} VARCHAR(40) CHARACTER SET latin1"],
            [f"{alter} MODIFY COLUMN {value} VARCHAR(40) FIRST"],
            ["ALTER TABLE notes MODIFY kind ENUM('y', 'x')"],
            ["ALTER TABLE notes MODIFY kind ENUM('x', 'y') DEFAULT 'x'"],
            [f"{alter} CONVERT TO CHARACTER SET {pick.choice(('latin1', 'utf8mb4'))}"],
            [
                f"RENAME TABLE {table} TO gone",
                f"UPDATE gone SET {value} = 5",
                f"RENAME TABLE gone TO {table}",
            ],
            [
                f"CREATE TABLE shadow LIKE {table}",
                f"INSERT INTO shadow SELECT * FROM {table} WHERE {name} % 3 > 0",
                f"RENAME TABLE {table} TO gone, shadow TO {table}",
                "DROP TABLE gone",
            ],
        )
    )


@dataclass
class _Writer:
    """One after the other, so that after each statement it sees what the database has.

    Attributes:
        states: of each table, in their order: what columns it had, and its rows.
    """

    schema: Schema
    pick: random.Random
    states: dict[str, list[tuple[frozenset[str], _Rows]]] = field(default_factory=dict)

    def note(self) -> None:
        for table in _KEYS:
            with self.schema.connection.cursor(pymysql.cursors.DictCursor) as cursor, suppress(pymysql.Error):
                cursor.execute(f"SHOW COLUMNS FROM {table}")
                columns = frozenset(row["Field"].lower() for row in cursor.fetchall())
                cursor.execute(f"SELECT * FROM {table}")
                self.states.setdefault(table, []).append((columns, _rows_of(cursor.fetchall())))

    @contextmanager
    def writing(self) -> Iterator[None]:
        ended = threading.Event()

        def write() -> None:
            while not ended.wait(0.04):
                for statement in _statements(self.pick):
                    with suppress(pymysql.Error):
                        self.schema.run(statement)
                        self.note()

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _rows_of(rows: Any, without: frozenset[str] = frozenset()) -> _Rows:
    """Each row by the names of its columns, in lower case; a column that is NULL is left out."""
    return frozenset(
        tuple(
            sorted(
                (name.lower(), str(value))
                for name, value in row.items()
                if value is not None and name.lower() not in without
            )
        )
        for row in rows
    )


def _only(rows: _Rows, columns: frozenset[str]) -> _Rows:
    return frozenset(tuple(cell for cell in row if cell[0] in columns) for row in rows)


@pytest.mark.parametrize("seed", range(2))
def test_checkpoints_under_random_alterations(
    schema: Schema, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(bulk, "CHUNK_BYTES", 1024)
    pipeline = Pipeline(tmp_path, spark)
    schema.run(*_DDL)
    pipeline.write("definitions/bank.py", _CAPTURE.format(url=schema.server.server_url(), schema=schema.name))
    writer = _Writer(schema, random.Random(seed))
    writer.note()
    newest, checked, ignored, again = dict.fromkeys(_KEYS, 0), 0, 0, 0
    for _ in range(8):
        with writer.writing():
            for _ in range(2):
                happened = pipeline.run()
                errors = [str(event["error"]) for event in happened if "error" in event]
                assert all(any(name in error for name in _EXPECTED) for error in errors), errors
                ignored += len(happened.of("schema_change_ignored"))
                again += len(happened.of("bulk_again"))
        for attempt in range(3):
            happened = pipeline.run()
            if happened.state == "COMPLETED":
                break
            assert attempt < 2, [event["error"] for event in happened if "error" in event]
        writer.note()
        checked += _check(tmp_path / "storage", writer, newest)
        assert newest == {table: len(states) - 1 for table, states in writer.states.items()}
    pipeline.close()
    assert checked > 10
    assert ignored
    assert again


def _check(storage: Path, writer: _Writer, newest: dict[str, int]) -> int:
    """Every version that a checkpoint has shows a state, later ones no older one.

    Args:
        newest: gets, for each table, the number of the newest state that its newest version shows.
    """
    catalog = SqlCatalog("lake", uri=f"sqlite:///{storage}/catalog.db", warehouse=f"{storage}/warehouse")
    checked = 0
    with MetaStore.open(f"sqlite:///{storage}/meta.db") as store:
        numbers = sorted(entry.number for entry in store.checkpoints.newest())
        for table, states in writer.states.items():
            iceberg, seen = catalog.load_table(f"default.bank_{table}"), None
            reached = 0
            for number in numbers:
                versions = {name.table: v for name, v in store.checkpoints.versions_at(number).items()}
                version = versions.get(f"bank_{table}")
                if version is None or version == seen:
                    continue
                seen = version
                scan = iceberg.scan(snapshot_id=int(version))
                columns = frozenset(name.lower() for name in scan.projection().column_names)
                rows = scan.to_arrow().to_pylist()
                shown = _rows_of(rows)
                assert len(shown) == len(rows)
                fitting = [
                    index
                    for index in range(reached, len(states))
                    if _only(states[index][1], columns) == shown
                ]
                assert fitting, (table, number, columns, sorted(shown), writer.states[table][reached:])
                reached, newest[table] = fitting[0], fitting[-1]
                checked += 1
    catalog.close()
    return checked

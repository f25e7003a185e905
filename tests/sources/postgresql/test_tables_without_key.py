"""Tables without a key: their rows may be equal, and each event adds or removes one of them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from tautochrone.errors import DefinitionError
from tautochrone.model.auto_cdc import KeyedApply
from tautochrone.runtime.merges.weighted_apply import weighted_change
from tautochrone.sources.postgresql.tables import captured_tables, read_tables

from .test_captured_values import Captured

APPLY = KeyedApply(
    keys=("a", "b"),
    sequence=("point", "sequence"),
    delete="operation = 'delete'",
    truncate="operation = 'truncate'",
    transaction="transaction",
    snapshot="snapshot",
    weight="CASE operation WHEN 'delete' THEN -1 WHEN 'update' THEN 0 ELSE 1 END",
    copied="operation = 'copied'",
    dropped=("point", "sequence", "operation", "transaction", "snapshot"),
)
SCHEMA = (
    "a INT, b STRING, point BIGINT, sequence BIGINT, operation STRING, transaction BIGINT, snapshot STRING"
)
DDL = """
CREATE TABLE moves (a int, b text, day date);
CREATE TABLE none (a int);
CREATE TABLE parts (a int, b text) PARTITION BY RANGE (a);
CREATE TABLE parts_low PARTITION OF parts FOR VALUES FROM (0) TO (10);
CREATE TABLE parts_high PARTITION OF parts FOR VALUES FROM (10) TO (99);
ALTER TABLE moves REPLICA IDENTITY FULL;
ALTER TABLE none REPLICA IDENTITY FULL;
ALTER TABLE parts REPLICA IDENTITY FULL;
ALTER TABLE parts_low REPLICA IDENTITY FULL;
ALTER TABLE parts_high REPLICA IDENTITY FULL;
INSERT INTO moves VALUES (1, 'x', NULL), (1, 'x', NULL), (1, 'x', NULL), (2, NULL, '2024-01-01'),
  (NULL, NULL, NULL), (NULL, NULL, NULL);
INSERT INTO parts VALUES (1, 'x'), (1, 'x'), (20, 'y')
"""


def require_equal(captured: Captured, table: str, columns: str) -> None:
    """The table holds the rows of the database, each as often."""
    rows: list[tuple[Any, ...]] = captured.database.execute(f"SELECT {columns} FROM {table}").fetchall()
    stored = map(tuple, captured.pipeline.reader.sql(f"SELECT {columns} FROM db_{table}").collect())
    assert Counter(stored) == Counter(rows)


@pytest.fixture
def captured(database: psycopg.Connection, tmp_path: Path, spark: SparkSession) -> Iterator[Captured]:
    capture = Captured(database, tmp_path, spark)
    database.execute(DDL)
    capture.define()
    yield capture
    capture.pipeline.close()


def test_tables_without_key_need_full_identity(database: psycopg.Connection) -> None:
    database.execute(
        "CREATE TABLE a (x int); CREATE TABLE b (x int); ALTER TABLE b REPLICA IDENTITY FULL;"
        "CREATE TABLE c (x int, g int GENERATED ALWAYS AS (x + 1) STORED PRIMARY KEY);"
        "CREATE TABLE d (x int); ALTER TABLE d ADD PRIMARY KEY (x) DEFERRABLE;"
        "CREATE TABLE e (x int) PARTITION BY RANGE (x); ALTER TABLE e REPLICA IDENTITY FULL;"
        "CREATE TABLE f PARTITION OF e DEFAULT"
    )
    tables = read_tables(database, "p")
    for name in ("public.a", "public.c", "public.d", "public.e"):
        with pytest.raises(DefinitionError, match=f"have no key: {name}") as raised:
            captured_tables(tables, [name], [], "c")
        assert raised.value.error_class == "CAPTURED_TABLE_WITHOUT_KEY"
    assert captured_tables(tables, ["public.b"], [], "c")[0].identifying_columns == ("x",)


@pytest.mark.spark
def test_weights_of_copies_events_and_truncates(spark: SparkSession) -> None:
    """Transactions 5 and 6 were not visible to the newest copy, though 5 is in the log before it."""
    copy = [
        (None, None, 30, 0, "copied", None, "5:9:5,6"),
        (1, "x", 30, 0, "copy", None, "5:9:5,6"),
        (1, "x", 30, 0, "copy", None, "5:9:5,6"),
        (2, "y", 30, 0, "copy", None, "5:9:5,6"),
    ]
    events = [
        (None, None, 10, 0, "copied", None, "3:3:"),
        (9, "z", 10, 0, "copy", None, "3:3:"),
        (2, "y", 15, 0, "insert", 4, None),
        (3, "n", 20, 0, "insert", 5, None),
        *copy,
        (1, "x", 40, 0, "delete", 9, None),
        (1, "x", 40, 1, "update", 9, None),
        (3, "n", 40, 2, "insert", 9, None),
        (2, "y", 50, 0, "delete", 6, None),
    ]
    change = weighted_change(spark.createDataFrame(events, SCHEMA), APPLY)
    assert change.replaces_all
    assert sorted(map(tuple, change.added().collect())) == [(1, "x"), (3, "n"), (3, "n")]
    truncate = (None, None, 60, 0, "truncate", 10, None)
    rest = [(4, "t", 70, 0, "insert", 11, None), (4, "t", 70, 1, "insert", 11, None)]
    change = weighted_change(spark.createDataFrame([*events, truncate, *rest], SCHEMA), APPLY)
    assert sorted(map(tuple, change.added().collect())) == [(4, "t"), (4, "t")]
    stored = spark.createDataFrame(
        [(1, "x", "f", 0), (1, "x", "f", 1), (None, "x", "f", 2), (None, None, "g", 0)],
        "a INT, b STRING, _file STRING, _pos BIGINT",
    )
    gone = [(1, "x", 80, 0, "delete", 12, None), (None, None, 80, 1, "delete", 12, None)]
    change = weighted_change(spark.createDataFrame(gone, SCHEMA), APPLY)
    assert not change.replaces_all
    removed = change.removed(stored)
    assert removed.positions == {"f": [0], "g": [0]}
    assert removed.missing == 0
    assert change.removed(stored.limit(0)).missing == 2


@pytest.mark.spark
@pytest.mark.parametrize("gets_columns", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_each_of_several_equal_rows_counts(captured: Captured, gets_columns: bool) -> None:
    database = captured.database
    captured.run()
    for table, columns in (("moves", "a, b, day"), ("none", "a"), ("parts", "a, b")):
        require_equal(captured, table, columns)
    first_row = "WHERE ctid = (SELECT ctid FROM {} WHERE a = 1 LIMIT 1)"
    database.execute(f"UPDATE moves SET b = 'changed' {first_row.format('moves')}")
    database.execute(f"DELETE FROM moves {first_row.format('moves')}")
    database.execute("DELETE FROM moves WHERE ctid = (SELECT ctid FROM moves WHERE a IS NULL LIMIT 1)")
    database.execute("UPDATE moves SET a = a; INSERT INTO none VALUES (1), (1), (NULL)")
    database.execute("UPDATE parts SET a = 30 WHERE ctid = (SELECT min(ctid) FROM parts_low)")
    captured.run()
    for table, columns in (("moves", "a, b, day"), ("none", "a"), ("parts", "a, b")):
        require_equal(captured, table, columns)
    if not gets_columns:
        return
    database.execute("TRUNCATE none; INSERT INTO none VALUES (5), (5); ALTER TABLE moves ADD COLUMN c int")
    database.execute("INSERT INTO moves VALUES (1, 'x', NULL, 7), (1, 'x', NULL, 7)")
    captured.run()
    require_equal(captured, "none", "a")
    require_equal(captured, "moves", "a, b, day, c")
    database.execute("DELETE FROM moves WHERE c = 7; UPDATE none SET a = 6")
    captured.run()
    require_equal(captured, "none", "a")
    require_equal(captured, "moves", "a, b, day, c")


@pytest.mark.slow
@pytest.mark.spark
def test_rows_written_during_the_copy_count_once(captured: Captured) -> None:
    ended = threading.Event()
    failures: list[BaseException] = []

    def write(number: int) -> None:
        try:
            with psycopg.connect(captured.database.info.dsn, host=captured.database.info.host) as connection:
                while not ended.wait(0.002):
                    connection.execute("INSERT INTO moves VALUES (%s, 'w'), (%s, 'w')", (number, number))
                    connection.execute(
                        "UPDATE moves SET b = 'u' WHERE ctid = (SELECT min(ctid) FROM moves WHERE a = %s)",
                        (number,),
                    )
                    connection.execute(
                        "DELETE FROM moves WHERE ctid = (SELECT max(ctid) FROM moves WHERE a = %s)", (number,)
                    )
                    connection.commit()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3, 6)]
    for thread in threads:
        thread.start()
    try:
        captured.run()
        captured.run()
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert not failures
    captured.run()
    require_equal(captured, "moves", "a, b, day")

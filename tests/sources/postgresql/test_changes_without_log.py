"""Rows that come and go without events in the log: tables are copied again, and lose what is gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from tautochrone.errors import DefinitionError, DefinitionsOutdatedError
from tautochrone.model.source_position import LogPosition
from tautochrone.sources.postgresql import copy_again
from tautochrone.sources.postgresql.change_log import PostgreSQLChangeLog
from tautochrone.sources.postgresql.tables import read_tables

from .test_change_log import capture_of, error_class
from .test_schema_changes import Captured

PARTITIONED = """
CREATE TABLE parts (id int, region text, v int, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
CREATE TABLE parts_a PARTITION OF parts FOR VALUES IN ('a');
CREATE TABLE parts_b PARTITION OF parts FOR VALUES IN ('b') PARTITION BY RANGE (id);
CREATE TABLE parts_b1 PARTITION OF parts_b FOR VALUES FROM (0) TO (10);
CREATE TABLE parts_b2 PARTITION OF parts_b FOR VALUES FROM (10) TO (100);
INSERT INTO parts SELECT i, CASE WHEN i % 2 = 0 THEN 'a' ELSE 'b' END, 0 FROM generate_series(1, 20) i
"""
_ATTACHED = "CREATE TABLE c (LIKE parts INCLUDING ALL); INSERT INTO c VALUES (1, 'c', 1), (2, 'c', 1);"
_ATTACH = "ALTER TABLE parts ATTACH PARTITION c FOR VALUES IN ('c')"


KEYED = "CREATE TABLE keyed (id int PRIMARY KEY, other int NOT NULL UNIQUE, v text)"


@contextmanager
def begun(database: psycopg.Connection) -> Iterator[tuple[PostgreSQLChangeLog, LogPosition]]:
    """Tables that are captured, as if their copy were complete."""
    database.execute("DROP TABLE IF EXISTS parts, parts_a, parts_b, c, keyed")
    database.execute(f"{PARTITIONED}; {KEYED}")
    log = PostgreSQLChangeLog(capture_of(database))
    position = log.begin("reader")
    yield log, replace(position, bulk=replace(position.bulk, pending={}))
    log.close()


CASES: list[tuple[list[str], str, int]] = [
    # Not copied: the log has all rows of partitions that are created, and TRUNCATE of a table.
    (
        ["CREATE TABLE c PARTITION OF parts FOR VALUES IN ('c')", "INSERT INTO parts VALUES (1, 'c')"],
        "",
        0,
    ),
    (["CREATE INDEX ON parts (v)", "ANALYZE parts", "VACUUM FULL keyed", "TRUNCATE keyed"], "", 0),
    # Only the partition is copied.
    ([_ATTACHED, _ATTACH], "parts", 1),
    # In one transaction: created, written to, attached.
    ([f"BEGIN; {_ATTACHED} {_ATTACH}; COMMIT"], "parts", 1),
    (["CREATE TABLE b3 PARTITION OF parts_b FOR VALUES FROM (100) TO (200)"], "", 0),
    # All is copied.
    (["ALTER TABLE parts DETACH PARTITION parts_a"], "parts", 1),
    (["ALTER TABLE parts DETACH PARTITION parts_a CONCURRENTLY"], "parts", 1),
    (["ALTER TABLE parts DETACH PARTITION parts_b"], "parts", 1),
    (["DROP TABLE parts_b2"], "parts", 1),
    (["TRUNCATE parts_b1"], "parts", 1),
    (
        [
            "ALTER TABLE parts DETACH PARTITION parts_b",
            "DELETE FROM parts_b1",
            "ALTER TABLE parts ATTACH PARTITION parts_b FOR VALUES IN ('b')",
        ],
        "parts",
        1,
    ),
    (
        [
            "ALTER PUBLICATION tautochrone_shop SET (publish = 'insert')",
            "ALTER PUBLICATION tautochrone_shop SET (publish = 'insert, update, delete, truncate')",
        ],
        "keyed parts",
        2,
    ),
]


def test_catalogs_show_what_the_log_does_not(database: psycopg.Connection) -> None:
    for statements, copied, chunks in CASES:
        with begun(database) as (log, position):
            for statement in statements:
                database.execute(statement)
            names = {f"public.{name}" for name in copied.split()}
            assert log.read(position, 100).copied_again.keys() == names, statements
            resumed = log.resume(position)
            assert resumed.bulk.waiting == names
            assert resumed.bulk.chunks_left == chunks
            assert log.read(resumed, 100).copied_again == {}
            is_whole = "ATTACH" not in statements[-1] or len(statements) == 3
            assert len(log.completed_rows(sorted(names), resumed)) == len(names) * (1 + is_whole)


def test_change_behind_the_comparison_of_resume(
    database: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    with begun(database) as (log, position):
        compare = copy_again._tables_to_copy

        def compare_then_change(*arguments: Any) -> Any:
            compared = compare(*arguments)
            database.execute("ALTER TABLE parts DETACH PARTITION parts_b")
            return compared

        with monkeypatch.context() as patch:
            patch.setattr(copy_again, "_tables_to_copy", compare_then_change)
            resumed = log.resume(position)
        assert set(log.read(resumed, 100).copied_again) == {"public.parts"}


def test_a_column_without_a_value_makes_no_shortened_log_whole(database: psycopg.Connection) -> None:
    """The table is complete with the next commit, but nothing was copied: the log lacks what it lacked."""
    with begun(database) as (_log, position):
        database.execute("ALTER TABLE keyed ADD COLUMN more int")
        log = PostgreSQLChangeLog(capture_of(database))
        resumed = log.resume(position)
        reached = log.read(resumed, 100).position
        reached = replace(reached, bulk=reached.bulk.at(reached.point))
        log.close()
    assert resumed.bulk.waiting == {"public.keyed"}
    assert not reached.bulk.waiting
    assert reached.copied_since(resumed) == frozenset()


def test_created_partition_that_is_dropped_is_missed(database: psycopg.Connection) -> None:
    with begun(database) as (log, position):
        database.execute("CREATE TABLE c PARTITION OF parts FOR VALUES IN ('c')")
        database.execute("INSERT INTO parts VALUES (1, 'c')")
        batch = log.read(position, 100)
        assert batch.rows.num_rows == 1
        database.execute("DROP TABLE c")
        assert set(log.read(batch.position, 100).copied_again) == {"public.parts"}


def test_other_replica_identity_for_a_while(database: psycopg.Connection) -> None:
    """The log has the other key of the rows that were deleted; catalogs show nothing afterwards."""
    with begun(database) as (log, position):
        database.execute("INSERT INTO keyed VALUES (1, 10, 'x'), (2, 20, 'x')")
        database.execute("ALTER TABLE keyed REPLICA IDENTITY USING INDEX keyed_other_key")
        database.execute("DELETE FROM keyed WHERE id = 1")
        database.execute("UPDATE keyed SET id = 3 WHERE id = 2")
        database.execute("ALTER TABLE keyed REPLICA IDENTITY DEFAULT")
        batch = log.read(position, 100)
        assert set(batch.copied_again) == {"public.keyed"}
        resumed = log.resume(batch.position)
        assert resumed.bulk.waiting == {"public.keyed"}
        batch = log.read(resumed, 100)
        assert batch.copied_again == {}
        # Nothing but what has the key, and all of it is before the copy.
        assert batch.rows["operation"].to_pylist() == ["insert", "insert"]
        assert (
            max(batch.rows["point"].to_pylist())
            < log.completed_rows(["public.keyed"], resumed)["point"][0].as_py()
        )


_COMES = "CREATE TABLE c PARTITION OF parts FOR VALUES IN ('c')"
_WRITTEN = "INSERT INTO parts VALUES (1, 'c', 1)"


@pytest.mark.parametrize(
    ("statements", "copied"),
    [
        ([_COMES, _WRITTEN, "DROP TABLE c"], {"parts"}),
        ([_COMES, _WRITTEN, "ALTER TABLE parts DETACH PARTITION c"], {"parts"}),
        ([_COMES, _WRITTEN, "TRUNCATE c", "INSERT INTO parts VALUES (2, 'c', 1)"], {"parts"}),
        ([_ATTACHED, _ATTACH, "DELETE FROM parts WHERE region = 'c' AND id = 1", "TRUNCATE c"], {"parts"}),
        # Both are captured, and each has its own rows in the end.
        (
            [
                "ALTER TABLE parts ATTACH PARTITION lone FOR VALUES IN ('c')",
                _WRITTEN,
                "ALTER TABLE parts DETACH PARTITION lone",
            ],
            {"parts", "lone"},
        ),
        # A column of an own type, of which the log says more.
        (
            [
                "CREATE TABLE sad PARTITION OF moods FOR VALUES IN ('sad')",
                "INSERT INTO moods VALUES (1, 'sad'), (2, 'ok')",
                "DROP TABLE sad",
            ],
            {"moods"},
        ),
        # Its key is not that of the table: the log has no region of the row that is deleted.
        (
            [
                "CREATE UNIQUE INDEX a_id ON parts_a (id)",
                "ALTER TABLE parts_a REPLICA IDENTITY USING INDEX a_id",
                "DELETE FROM parts WHERE id = 2",
                "ALTER TABLE parts_a REPLICA IDENTITY DEFAULT",
            ],
            {"parts"},
        ),
        # What stays is not copied.
        (
            [
                _COMES,
                _WRITTEN,
                "INSERT INTO moods VALUES (2, 'ok')",
                "TRUNCATE lone, keyed",
                "INSERT INTO lone VALUES (1, 'x', 1)",
            ],
            set(),
        ),
    ],
)
def test_partitions_that_come_and_go_between_two_reads(
    database: psycopg.Connection, statements: list[str], copied: set[str]
) -> None:
    database.execute("CREATE TABLE lone (id int, region text, v int, PRIMARY KEY (id, region))")
    database.execute("CREATE TYPE mood AS ENUM ('ok', 'sad')")
    database.execute("CREATE TABLE moods (id int, m mood, PRIMARY KEY (id, m)) PARTITION BY LIST (m)")
    database.execute("CREATE TABLE moods_ok PARTITION OF moods FOR VALUES IN ('ok')")
    with begun(database) as (log, position):
        for statement in statements:
            database.execute(statement)
        batch = log.read(position, 100)
        assert {name.removeprefix("public.") for name in batch.copied_again} == copied
        if copied:
            resumed = log.resume(batch.position)
            assert len(log.completed_rows(sorted(batch.copied_again), resumed)) == 2 * len(copied)
            assert log.read(resumed, 100).copied_again == {}


def test_partitions_must_have_the_key_of_their_table(database: psycopg.Connection) -> None:
    database.execute(f"{PARTITIONED}; CREATE UNIQUE INDEX a_id ON parts_a (id)")

    def has_key() -> bool:
        return read_tables(database, "none")["public.parts"].keys == ("id", "region")

    expected = {"DEFAULT": True, "FULL": True, "NOTHING": True, "USING INDEX a_id": False}
    for identity, has in expected.items():
        database.execute(f"ALTER TABLE parts_a REPLICA IDENTITY {identity}")
        assert has_key() is has, identity
    # The root's key is another one than that of its partitions.
    database.execute("ALTER TABLE parts_a REPLICA IDENTITY DEFAULT; ALTER TABLE parts ALTER v SET NOT NULL")
    database.execute("CREATE UNIQUE INDEX by_v ON parts (region, id, v)")
    database.execute("ALTER TABLE parts REPLICA IDENTITY USING INDEX by_v")
    assert read_tables(database, "none")["public.parts"].keys == ()


@pytest.mark.parametrize(
    ("away", "back", "meanwhile", "copied"),
    [
        (["keyed RENAME TO aside"], ["aside RENAME TO keyed"], "aside", {"keyed"}),
        (["keyed SET SCHEMA aside"], ["aside.keyed SET SCHEMA public"], "aside.keyed", {"keyed"}),
        (
            ["keyed RENAME TO aside", "twin RENAME TO keyed", "aside RENAME TO twin"],
            ["keyed RENAME TO aside", "twin RENAME TO keyed", "aside RENAME TO twin"],
            "keyed",
            {"keyed", "twin"},
        ),
    ],
    ids=["name", "schema", "exchanged"],
)
def test_other_name_for_a_while(
    database: psycopg.Connection, away: list[str], back: list[str], meanwhile: str, copied: set[str]
) -> None:
    """The log has its rows under the other name; catalogs show nothing afterwards."""
    database.execute("DROP TABLE IF EXISTS twin; CREATE TABLE twin (id int PRIMARY KEY, other int, v text)")
    database.execute("CREATE SCHEMA IF NOT EXISTS aside")
    with begun(database) as (log, position):
        database.execute("INSERT INTO keyed VALUES (1, 10, 'x')")
        for statement in away:
            database.execute(f"ALTER TABLE {statement}")
        database.execute(f"INSERT INTO {meanwhile} VALUES (2, 20, 'x')")
        for statement in back:
            database.execute(f"ALTER TABLE {statement}")
        batch = log.read(position, 100)
        assert {name.removeprefix("public.") for name in batch.copied_again} == copied
        resumed = log.resume(batch.position)
        assert log.read(resumed, 100).copied_again == {}
        # Also while it is copied: these rows are behind what the copy saw.
        for statement in (*away, *back):
            database.execute(f"ALTER TABLE {statement}")
            if statement == away[-1]:
                database.execute(f"INSERT INTO {meanwhile} VALUES (3, 30, 'x')")
        assert {name.removeprefix("public.") for name in log.read(resumed, 100).copied_again} == copied


def test_table_without_key_that_gets_columns_is_copied_once(database: psycopg.Connection) -> None:
    """The log has older updates without the column, which is of the key of this table. The copy saw them."""
    database.execute("CREATE TABLE moves (a int, b int); ALTER TABLE moves REPLICA IDENTITY FULL")
    database.execute("INSERT INTO moves VALUES (1, 1), (2, 2)")
    log = PostgreSQLChangeLog(capture_of(database))
    position = log.begin("reader")
    log.close()
    position = replace(position, bulk=replace(position.bulk, pending={}))
    database.execute("UPDATE moves SET b = 3 WHERE a = 1")
    database.execute("ALTER TABLE moves ADD COLUMN c int DEFAULT 7")
    log = PostgreSQLChangeLog(capture_of(database))
    position = log.resume(position)
    (relation, chunk) = position.bulk.next_chunks(1)[0]
    rows, pass_at = log.read_chunk(relation, chunk)
    assert (relation, len(rows)) == ("public.moves", 3)
    position = replace(position, bulk=position.bulk.copied(relation, chunk, pass_at))
    batch = log.read(position, 100)
    assert batch.copied_again == {}
    assert batch.position.point >= pass_at
    assert log.completed_rows([relation], batch.position)["operation"].to_pylist() == ["completed"]
    log.close()


@pytest.mark.spark
def test_tables_lose_rows_that_are_gone(
    database: psycopg.Connection, tmp_path: Path, spark: SparkSession
) -> None:
    captured = Captured(database, tmp_path, spark)
    database.execute(PARTITIONED)
    database.execute(KEYED)
    database.execute("INSERT INTO keyed SELECT i, i * 10, 'x' FROM generate_series(1, 9) i")
    columns = {
        "parts": "id, region, v",
        "keyed": "id, other, v",
        "notes": "id, note",
        "accounts": "id, owner",
    }

    def require_equal() -> None:
        captured.run()
        for table, names in columns.items():
            captured.require_equal(table, names)

    require_equal()
    # Rows that the log brought, rows of before, and rows that come by another way, all in one partition.
    database.execute("INSERT INTO parts VALUES (30, 'b', 1)")
    database.execute("ALTER TABLE parts DETACH PARTITION parts_b")
    database.execute("INSERT INTO parts VALUES (31, 'a', 1)")
    database.execute(f"{_ATTACHED}{_ATTACH}")
    database.execute("UPDATE parts SET v = v + 1 WHERE id < 3")
    # Another table of this name, with other columns.
    database.execute("DROP TABLE notes; CREATE TABLE notes (id int PRIMARY KEY, more int, note text)")
    database.execute("INSERT INTO notes VALUES (7, 1, 'new')")
    # Nothing is published for a while.
    database.execute("ALTER PUBLICATION tautochrone_bank SET (publish = 'insert')")
    database.execute("DELETE FROM accounts WHERE id < 5")
    database.execute("ALTER PUBLICATION tautochrone_bank SET (publish = 'insert, update, delete, truncate')")
    database.execute("ALTER TABLE keyed REPLICA IDENTITY USING INDEX keyed_other_key")
    database.execute("DELETE FROM keyed WHERE id = 1")
    database.execute("UPDATE keyed SET id = 30 WHERE id = 2")
    database.execute("ALTER TABLE keyed REPLICA IDENTITY DEFAULT")
    require_equal()
    # Only the partition is copied; its rows changed meanwhile.
    database.execute("DELETE FROM parts_b WHERE id = 1; INSERT INTO parts_b VALUES (50, 'b', 5)")
    database.execute("ALTER TABLE parts ATTACH PARTITION parts_b FOR VALUES IN ('b')")
    database.execute("UPDATE parts SET v = v + 1")
    database.execute("DELETE FROM parts WHERE id = 50")
    # For a while under a name that no pattern matches.
    database.execute("CREATE SCHEMA aside; ALTER TABLE accounts SET SCHEMA aside")
    database.execute("DELETE FROM aside.accounts WHERE id = 7; UPDATE aside.accounts SET owner = 'other'")
    database.execute("ALTER TABLE aside.accounts SET SCHEMA public; DROP SCHEMA aside")
    database.execute("TRUNCATE notes CASCADE; INSERT INTO notes VALUES (8, 1, 'newer')")
    require_equal()
    captured.pipeline.close()


def test_partitions_without_log_are_refused(database: psycopg.Connection) -> None:
    """Their rows would be copied, and their changes missed."""
    database.execute(PARTITIONED)
    with begun(database) as (log, position):
        database.execute("CREATE UNLOGGED TABLE parts_c PARTITION OF parts FOR VALUES IN ('c')")
        database.execute("INSERT INTO parts VALUES (99, 'c', 0)")
        with pytest.raises(DefinitionsOutdatedError, match="parts_c") as raised:
            log.read(position, 100)
        assert error_class(raised) == "CAPTURED_TABLE_NOT_LOGGED"
        with pytest.raises(DefinitionError, match="parts_c"):
            capture_of(database, None, "public.parts")
        # As the hint says; its rows are copied then.
        database.execute("ALTER TABLE parts_c SET LOGGED")
        assert "public.parts" in log.read(position, 100).copied_again

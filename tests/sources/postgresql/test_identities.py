"""Slots, publications, tables and databases that have the name of the captured ones and are others: what was
captured is right afterwards, or the run stops with an error whose hint helps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import count, product

import psycopg
import pytest
from _pytest.mark import ParameterSet

from tautochrone.sources.postgresql import bulk

from .followed import Followed

_RELATIONS = ("public.a", "public.b")
_FILL = "CREATE TABLE {0} (id int PRIMARY KEY, v text NOT NULL, w int)"
_ALL = "insert, update, delete, truncate"
_DROP, _CREATE = (
    "SELECT pg_drop_replication_slot('{slot}')",
    "SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')",
)
_PUBLISH = "CREATE PUBLICATION followed FOR TABLE a, b WITH (publish_via_partition_root = true)"
_SET = "ALTER PUBLICATION followed SET"
_WAYS = ("living", "at each step", "reopened", "during the copy")
"""When the run reads: behind all, or between the statements too; or another process does; or it reads nothing
before."""
_UNWRITTEN = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.UniqueViolation,
    psycopg.errors.ObjectNotInPrerequisiteState,
)
"""The table is away or another one, or it refuses an update that would not be logged."""
WRITE = "write"
"""Rows of all tables come, change and go."""
DAMAGES: dict[str, list[str]] = {
    "nothing": [WRITE],
    # The slot.
    "slot dropped": [WRITE, _DROP],
    "slot made anew": [_DROP, _CREATE],
    "slot made anew behind changes": [WRITE, _DROP, _CREATE],
    "slot made anew before changes": [_DROP, _CREATE, WRITE],
    "slot made anew between changes": [_DROP, WRITE, _CREATE, WRITE],
    "slot with two phases": [WRITE, _DROP, _CREATE.replace("'pgoutput'", "'pgoutput', false, true"), WRITE],
    "temporary slot": [WRITE, _DROP, _CREATE.replace("'pgoutput'", "'pgoutput', true"), WRITE],
    "physical slot": [WRITE, _DROP, "SELECT pg_create_physical_replication_slot('{slot}')", WRITE],
    "slot moved": [WRITE, "SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())", WRITE],
    "slot read": [
        WRITE,
        "SELECT pg_logical_slot_get_binary_changes('{slot}', NULL, NULL, 'proto_version', '1', "
        "'publication_names', 'followed')",
        WRITE,
    ],
    "slot copied": [
        WRITE,
        "SELECT pg_copy_logical_replication_slot('{slot}', '{slot}_copy')",
        _DROP,
        "SELECT pg_copy_logical_replication_slot('{slot}_copy', '{slot}')",
        "SELECT pg_drop_replication_slot('{slot}_copy')",
        WRITE,
    ],
    # The publication.
    "publication dropped": ["DROP PUBLICATION followed", WRITE],
    "publication made anew": ["DROP PUBLICATION followed", _PUBLISH, WRITE],
    "publication made anew behind changes": ["DROP PUBLICATION followed", WRITE, _PUBLISH, WRITE],
    "publication made anew at once": [f"BEGIN; DROP PUBLICATION followed; {_PUBLISH}; COMMIT", WRITE],
    "publication of all tables": [
        "DROP PUBLICATION followed",
        WRITE,
        "CREATE PUBLICATION followed FOR ALL TABLES WITH (publish_via_partition_root = true)",
        WRITE,
    ],
    "publication of the schema": [
        "DROP PUBLICATION followed",
        WRITE,
        "CREATE PUBLICATION followed FOR TABLES IN SCHEMA public WITH (publish_via_partition_root = true)",
        WRITE,
    ],
    "publication renamed": ["ALTER PUBLICATION followed RENAME TO away", WRITE],
    "publication renamed and back": [
        "ALTER PUBLICATION followed RENAME TO away",
        WRITE,
        "ALTER PUBLICATION away RENAME TO followed",
        WRITE,
    ],
    "publication in its place": [
        "ALTER PUBLICATION followed RENAME TO away",
        WRITE,
        _PUBLISH,
        WRITE,
        "DROP PUBLICATION away",
    ],
    "publication without a table": ["ALTER PUBLICATION followed DROP TABLE a", WRITE],
    "publication without a table for a while": [
        "ALTER PUBLICATION followed DROP TABLE a",
        WRITE,
        "ALTER PUBLICATION followed ADD TABLE a",
        WRITE,
    ],
    "publication of other tables for a while": [f"{_SET} TABLE b", WRITE, f"{_SET} TABLE a, b", WRITE],
    "publication of another owner": ["ALTER PUBLICATION followed OWNER TO CURRENT_USER", WRITE],
    "publication by partitions": [
        f"{_SET} (publish_via_partition_root = false)",
        WRITE,
        f"{_SET} (publish_via_partition_root = true)",
        WRITE,
    ],
    **{
        f"publication without {left_out}": [
            f"{_SET} (publish = '{', '.join(set(_ALL.split(', ')) - {left_out})}')",
            WRITE,
            f"{_SET} (publish = '{_ALL}')",
            WRITE,
        ]
        for left_out in _ALL.split(", ")
    },
    "publication of inserts": [f"{_SET} (publish = 'insert')", WRITE],
    "rows filtered": [f"{_SET} TABLE a WHERE (id > 2), b", WRITE],
    "rows filtered for a while": [f"{_SET} TABLE a WHERE (id > 2), b", WRITE, f"{_SET} TABLE a, b", WRITE],
    "columns listed": [f"{_SET} TABLE a (id, v), b", WRITE],
    "columns listed for a while": [f"{_SET} TABLE a (id, v), b", WRITE, f"{_SET} TABLE a, b", WRITE],
    # Tables.
    "table made anew": ["DROP TABLE a", _FILL.format("a"), WRITE],
    "table made anew and published": [
        "DROP TABLE a",
        _FILL.format("a"),
        "ALTER PUBLICATION followed ADD TABLE a",
        WRITE,
    ],
    "table made anew at once": [
        f"BEGIN; DROP TABLE a; {_FILL.format('a')}; ALTER PUBLICATION followed ADD TABLE a; COMMIT",
        WRITE,
    ],
    "table restored from a dump": [
        "CREATE TABLE kept AS SELECT * FROM a",
        WRITE,
        "DROP TABLE a",
        "CREATE TABLE a (id int, v text NOT NULL, w int)",
        "ALTER PUBLICATION followed ADD TABLE a",
        "INSERT INTO a SELECT * FROM kept",
        "ALTER TABLE a ADD PRIMARY KEY (id)",
        "DROP TABLE kept",
        WRITE,
    ],
    "tables swapped": [
        "BEGIN; ALTER TABLE a RENAME TO c; ALTER TABLE b RENAME TO a; ALTER TABLE c RENAME TO b; COMMIT",
        WRITE,
    ],
    "tables swapped twice": [
        "BEGIN; ALTER TABLE a RENAME TO c; ALTER TABLE b RENAME TO a; ALTER TABLE c RENAME TO b; COMMIT",
        WRITE,
        "BEGIN; ALTER TABLE a RENAME TO c; ALTER TABLE b RENAME TO a; ALTER TABLE c RENAME TO b; COMMIT",
        WRITE,
    ],
    "table in its place": ["ALTER TABLE a RENAME TO c", WRITE, _FILL.format("a"), WRITE],
    "table in its place for a while": [
        "ALTER TABLE a RENAME TO c",
        _FILL.format("a"),
        WRITE,
        "DROP TABLE a",
        "INSERT INTO c VALUES (91, 'c', 9)",
        "ALTER TABLE c RENAME TO a",
        WRITE,
    ],
    "table in another schema for a while": [
        "CREATE SCHEMA s",
        "ALTER TABLE a SET SCHEMA s",
        "INSERT INTO s.a VALUES (92, 'c', 9)",
        "ALTER TABLE s.a SET SCHEMA public",
        WRITE,
    ],
    "schema in its place": [
        "ALTER SCHEMA public RENAME TO was",
        "CREATE SCHEMA public",
        _FILL.format("public.a"),
        _FILL.format("public.b"),
        WRITE,
    ],
    "unlogged for a while": [
        "ALTER PUBLICATION followed DROP TABLE a; ALTER TABLE a SET UNLOGGED",
        WRITE,
        "ALTER TABLE a SET LOGGED",
        "ALTER PUBLICATION followed ADD TABLE a",
        WRITE,
    ],
    "truncated": [WRITE, "TRUNCATE a", WRITE],
    "truncated and written at once": ["BEGIN; TRUNCATE a; INSERT INTO a VALUES (1, 'z', 1); COMMIT", WRITE],
    "written anew by the server": [WRITE, "VACUUM FULL a", WRITE, "CLUSTER a USING a_pkey", WRITE],
    "identity full for a while": [
        "ALTER TABLE a REPLICA IDENTITY FULL",
        WRITE,
        "ALTER TABLE a REPLICA IDENTITY DEFAULT",
        WRITE,
    ],
    "identity nothing for a while": [
        "ALTER TABLE a REPLICA IDENTITY NOTHING",
        "INSERT INTO a VALUES (93, 'n', 9)",
        "ALTER TABLE a REPLICA IDENTITY DEFAULT",
        WRITE,
    ],
    "key made anew": ["ALTER TABLE a DROP CONSTRAINT a_pkey; ALTER TABLE a ADD PRIMARY KEY (id)", WRITE],
    "key of another column for a while": [
        "CREATE UNIQUE INDEX av ON a (v); ALTER TABLE a REPLICA IDENTITY USING INDEX av",
        "UPDATE a SET id = id + 1000 WHERE id = 2",
        "UPDATE a SET v = v || '!' WHERE id = 3",
        "DELETE FROM a WHERE id = 1",
        "ALTER TABLE a REPLICA IDENTITY DEFAULT",
        WRITE,
    ],
    "key of another column": [
        WRITE,
        "UPDATE a SET v = 'v' || id; ALTER TABLE a DROP CONSTRAINT a_pkey; ALTER TABLE a ADD PRIMARY KEY (v)",
        "INSERT INTO a (id, v) VALUES (1, 'other')",
        "DELETE FROM a WHERE v = 'v2'",
        "INSERT INTO b (id, v) VALUES (95, 'b')",
    ],
    "key of more columns": [
        WRITE,
        "ALTER TABLE a DROP CONSTRAINT a_pkey; ALTER TABLE a ADD PRIMARY KEY (id, v)",
        "INSERT INTO a (id, v) VALUES (1, 'other')",
        WRITE,
    ],
    "key of another type": [WRITE, "ALTER TABLE a ALTER id TYPE bigint", WRITE],
    "table without a key": [WRITE, "ALTER TABLE a DROP CONSTRAINT a_pkey", WRITE],
    "table dropped": [WRITE, "DROP TABLE a", WRITE],
    "table renamed": [WRITE, "ALTER TABLE a RENAME TO c", WRITE],
    "column dropped": ["ALTER TABLE a DROP w", WRITE],
    "column renamed": ["ALTER TABLE a RENAME w TO x", WRITE],
    "column of another type": ["ALTER TABLE a ALTER w TYPE text", WRITE],
    "columns swapped": [
        "BEGIN; ALTER TABLE a RENAME v TO x; ALTER TABLE a RENAME w TO v; ALTER TABLE a RENAME x TO w; "
        "ALTER TABLE a ALTER v TYPE text USING coalesce(v::text, ''), "
        "ALTER w TYPE int USING length(w); ALTER TABLE a ALTER v SET NOT NULL, ALTER w DROP NOT NULL; COMMIT",
        WRITE,
    ],
    "column made anew": ["ALTER TABLE a DROP w; ALTER TABLE a ADD w int", WRITE],
    "column with other values": ["ALTER TABLE a ALTER w TYPE int USING coalesce(w, 0) + 1", WRITE],
    "partitioned in its place": [
        "BEGIN; ALTER TABLE a RENAME TO old; "
        "CREATE TABLE a (id int PRIMARY KEY, v text NOT NULL, w int) PARTITION BY RANGE (id); "
        "ALTER TABLE a ATTACH PARTITION old DEFAULT; COMMIT",
        WRITE,
    ],
    "written as a replica": [
        "BEGIN; SET LOCAL session_replication_role = replica; INSERT INTO a VALUES (94, 'r', 1); COMMIT",
        WRITE,
    ],
    "frozen copy": [
        "BEGIN; TRUNCATE a; COPY a FROM PROGRAM 'echo 1,f,7' WITH (FORMAT csv, FREEZE); COMMIT",
        WRITE,
    ],
}


class Damaged:
    """A database with a capture of two tables.

    Args:
        is_copied: otherwise the capture has begun, and no row is copied yet.
    """

    def __init__(self, database: psycopg.Connection, *, is_copied: bool = True) -> None:
        info = database.info
        self.database = database
        self._numbers = count(5)
        for relation in _RELATIONS:
            database.execute(_FILL.format(relation).encode())
            database.execute(
                f"INSERT INTO {relation} VALUES (1, 'x', 1), (2, 'y', NULL), (3, 'z', 3)".encode()
            )
        url = f"host={info.host} dbname={info.dbname} user=postgres"
        self.slot = f"f_{info.dbname[-8:]}"
        self.lake = Followed(url, self.slot, _RELATIONS)
        if not is_copied:
            self.lake.begin()
            return
        self.lake.run()
        self.write()
        self.lake.run()
        assert self.lake.problem is None
        self.require_equal()

    def write(self) -> None:
        number = next(self._numbers)
        for relation in _RELATIONS:
            for statement in (
                f"INSERT INTO {relation} (id, v) VALUES ({number}, 'n'), ({number + 100}, 'm{number}')",
                f"UPDATE {relation} SET w = '{number}' WHERE id IN (2, 3)",
                f"UPDATE {relation} SET v = 'u{number}' WHERE id = {number + 100}",
                f"DELETE FROM {relation} WHERE id = {number - 1}",
            ):
                try:
                    self.database.execute(statement.encode())
                except _UNWRITTEN:
                    self.database.execute("ROLLBACK")

    def damage(self, statements: list[str], each: bool = False) -> None:
        """
        Args:
            each: the run reads between the statements.
        """
        for statement in statements:
            if statement == WRITE:
                self.write()
            else:
                # The run may have done it already.
                with suppress(psycopg.errors.DuplicateObject):
                    self.database.execute(statement.format(slot=f"{self.slot}_reader").encode())
            if each and self.lake.problem is None:
                self.lake.run()

    def require_equal(self) -> None:
        """The lake has what the source has, now and behind later changes; or there is a problem, and its hint
        ends it."""
        for _ in range(2):
            if self.lake.problem is not None:
                self.follow_hint()
            assert not self.lake.difference(self.database)
            self.write()
            self.lake.run()

    def follow_hint(self) -> None:
        problem = self.lake.problem
        assert problem is not None
        hint = str(problem.hint)
        statement = re.search(r"(SELECT pg_drop_replication_slot|ALTER PUBLICATION)[^;]*?\)", hint)
        if statement:
            self.database.execute(statement[0].encode())
        if "no row filters, no column lists" in hint:
            self.database.execute("ALTER PUBLICATION followed SET TABLE a, b")
        if "--full-refresh" in hint:
            self.lake.full_refresh()
        else:
            self.lake.run(anew=True)
        if self.lake.problem is not None and "capture(…, slot=…)" in str(self.lake.problem.hint):
            # The hint of another error, which only shows now.
            self.lake.slot += "_own"
            self.lake.full_refresh()
        assert self.lake.problem is None, (problem, self.lake.problem)


@pytest.fixture(autouse=True)
def without_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    Followed.without_datasets(monkeypatch)


def _cases() -> Iterator[ParameterSet]:
    """Each damage in each way; some of them, all ways among them, in the short form."""
    for number, (damage, way) in enumerate(product(DAMAGES, _WAYS)):
        yield pytest.param(damage, way, marks=() if number % 23 == 0 else pytest.mark.slow)


@pytest.mark.parametrize(("damage", "way"), list(_cases()))
def test_damage(database: psycopg.Connection, damage: str, way: str) -> None:
    damaged = Damaged(database, is_copied=way != "during the copy")
    if way == "reopened":
        damaged.lake.close()
    damaged.damage(DAMAGES[damage], each=way == "at each step")
    if damaged.lake.problem is None:
        damaged.lake.run(anew=way == "reopened")
    damaged.require_equal()
    damaged.lake.close()


def test_a_table_that_is_too_large_is_set_aside(
    database: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are copied and go on; it comes when it has a key."""
    monkeypatch.setattr(bulk, "MAX_BYTES_WITHOUT_KEY", 10_000)
    database.execute("CREATE TABLE large (id int NOT NULL, v text); ALTER TABLE large REPLICA IDENTITY FULL")
    database.execute("INSERT INTO large SELECT i, repeat('x', 500) FROM generate_series(1, 40) i")
    damaged = Damaged(database, is_copied=False)
    damaged.lake.tables = [*_RELATIONS, "public.large"]
    for _ in range(2):
        damaged.lake.run(anew=True)
        assert damaged.lake.problem is None
        assert damaged.lake.log is not None
        (reason,) = damaged.lake.log.set_aside().values()
        assert reason.params["error"] == "CAPTURED_TABLE_TOO_LARGE"
        damaged.require_equal()
    database.execute("ALTER TABLE large ADD PRIMARY KEY (id)")
    damaged.lake.run(anew=True)
    assert damaged.lake.log is not None
    assert "public.large" in damaged.lake.log.relations()
    damaged.require_equal()
    damaged.lake.close()

"""What a capture refuses before anything is copied, and lakes that were copied with their slot."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from tautochrone.errors import DefinitionError, IngestError
from tautochrone.sources.postgresql import capture, change_log
from tautochrone.sources.postgresql.change_log import PostgreSQLChangeLog
from tautochrone.sources.postgresql.server import slot_of

from .test_change_log import capture_of, error_class, rows, url_of


@pytest.mark.parametrize(
    ("statements", "taken", "other"),
    [
        ("CREATE TABLE log (id int PRIMARY KEY)", "public.log", "the capture's own log"),
        (
            "CREATE SCHEMA sales; CREATE TABLE sales.orders (id int PRIMARY KEY); "
            "CREATE TABLE sales_orders (id int PRIMARY KEY)",
            "sales.orders",
            "public.sales_orders",
        ),
        (
            'CREATE TABLE "old.orders" (id int PRIMARY KEY); CREATE TABLE old_orders (id int PRIMARY KEY)',
            "public.old_orders",
            "public.old.orders",
        ),
        (
            'CREATE SCHEMA a; CREATE TABLE a."b.c" (id int PRIMARY KEY); '
            'CREATE SCHEMA "a.b"; CREATE TABLE "a.b".c (id int PRIMARY KEY)',
            "a.b.c",
            "two tables",
        ),
    ],
)
def test_tables_with_one_name_in_the_lake_are_refused(
    database: psycopg.Connection, statements: str, taken: str, other: str
) -> None:
    database.execute(statements)
    with pytest.raises(DefinitionError) as raised:
        capture("shop", url=url_of(database), tables="*.*", exclude=["pg_*", "information_schema.*"])
    assert raised.value.error_class == "CAPTURED_TABLE_NAME_TAKEN"
    assert {taken, other} == {name for name in (taken, other) if name in raised.value.message}
    assert "exclude=['" in str(raised.value.hint)


@pytest.mark.parametrize("names", [("Id", "id"), ("id", "__taut_Point"), ("id", "_row_id")])
def test_columns_that_the_lake_cannot_have_are_refused(
    database: psycopg.Connection, names: tuple[str, str]
) -> None:
    database.execute(f'CREATE TABLE orders ("{names[0]}" int PRIMARY KEY, "{names[1]}" int)')
    with pytest.raises(DefinitionError) as raised:
        capture("shop", url=url_of(database), tables="public.*")
    assert raised.value.error_class == "CAPTURED_COLUMN_NAME_TAKEN"
    assert names[1] in raised.value.message
    assert "exclude=['public.orders']" in str(raised.value.hint)


@contextmanager
def opened(captured: Any) -> Iterator[PostgreSQLChangeLog]:
    """As another process."""
    log = PostgreSQLChangeLog(captured)
    yield log
    log.close()


@pytest.mark.parametrize("first", ["original", "copy"])
def test_of_a_lake_and_its_copy_the_second_is_told(database: psycopg.Connection, first: str) -> None:
    """Both have the position, and so the slot, that the lake had when it was copied."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    captured = capture_of(database)
    with opened(captured) as ahead, opened(captured) as behind:
        copied = ahead.begin("reader")
        database.execute("INSERT INTO t VALUES (1)")
        copied = ahead.read(copied, 100).position
        if first == "copy":
            # The original has not yet acknowledged what it has.
            ahead, behind = behind, ahead
        database.execute("INSERT INTO t VALUES (2)")
        batch = ahead.read(copied, 100)
        ahead.acknowledge(batch.position)
        database.execute("INSERT INTO t VALUES (3)")
        behind.acknowledge(copied)
        behind.resume(copied)
        for _ in range(2):
            with pytest.raises(IngestError) as raised:
                behind.read(copied, 100)
            assert error_class(raised) == "SOURCE_LOG_LOST"
            assert "slot=" in str(raised.value.hint)
        assert rows(ahead.read(batch.position, 100)) == [("public.t", "insert", {"id": "3"})]
        # The way that the hint says: both go on.
        with opened(replace(captured, slot=f"{captured.slot}x")) as own:
            begun = own.begin("reader")
            assert slot_of(begun) != slot_of(batch.position)
            database.execute("INSERT INTO t VALUES (4)")
            assert rows(own.read(begun, 100)) == [("public.t", "insert", {"id": "4"})]
            assert len(rows(ahead.read(batch.position, 100))) == 2


def test_a_copy_that_reads_at_the_same_time_takes_nothing_away(
    database: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slot is moved between the look at it and the read of its messages."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    captured = capture_of(database)
    with opened(captured) as original, opened(captured) as copy:
        begun = original.begin("reader")
        database.execute("INSERT INTO t VALUES (1)")
        real = change_log.peeked_messages

        def after_the_copy(*arguments: Any, **named: Any) -> list[bytes]:
            monkeypatch.setattr(change_log, "peeked_messages", real)
            copy.acknowledge(copy.read(begun, 100).position)
            database.execute("INSERT INTO t VALUES (2)")
            return real(*arguments, **named)

        monkeypatch.setattr(change_log, "peeked_messages", after_the_copy)
        with pytest.raises(IngestError, match="somebody else reads the replication slot") as raised:
            original.read(begun, 100)
        assert error_class(raised) == "SOURCE_LOG_LOST"


def test_a_lake_that_begins_anew_makes_its_copy_stop(
    database: psycopg.Connection,
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    captured = capture_of(database)
    with opened(captured) as original, opened(captured) as copy:
        begun = original.begin("reader")
        copy.begin("reader")
        database.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(IngestError, match="made anew") as raised:
            original.read(begun, 100)
        assert "slot=" in str(raised.value.hint)


@pytest.mark.parametrize(
    ("table_properties", "hint"),
    [
        ({"tautochrone.sinks": "mirror"}, r'table_properties=\{"\*\.\*"'),
        ({"public.orders": {"tautochrone.sinks": "mirror"}}, "captured are public.t;"),
        ({"*.*": {"tautochrone.apply.keys": "id"}}, "leave it out"),
    ],
)
def test_wrong_table_properties_are_refused(
    database: psycopg.Connection, table_properties: Any, hint: str
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with pytest.raises(DefinitionError) as raised:
        capture("shop", url=url_of(database), table_properties=table_properties)
    assert raised.value.error_class == "CAPTURE_PROPERTIES_INVALID"
    assert re.search(hint, str(raised.value.hint))

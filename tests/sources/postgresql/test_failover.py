"""Servers that give numbers of their log a second time: promoted standbys, restored and copied folders."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from tests.support.postgresql_servers import PostgreSQLServer

from tautochrone.errors import IngestError
from tautochrone.model.source_position import BulkProgress, LogPosition
from tautochrone.sources.capture.captured_log import IDLE_BYTES
from tautochrone.sources.postgresql.change_log import Capture, PostgreSQLChangeLog
from tautochrone.sources.postgresql.connection import lsn_number
from tautochrone.sources.postgresql.server import slot_of
from tautochrone.sources.postgresql.tables import captured_tables, read_tables

MARKS = 1000
"""Rows from this number on only move the slot."""


class Lake:
    """What a log table holds of a server, and where it stands."""

    def __init__(self, server: PostgreSQLServer) -> None:
        self.server = server
        with server.connect() as connection:
            tables = captured_tables(read_tables(connection, "shop"), ["public.a"], [], "shop")
        self.capture = Capture("shop", server.url, tables, "shop", "shop")
        self.ids: list[int] = []
        log = self._log()
        position = log.begin("reader")
        self.position: LogPosition = replace(position, bulk=BulkProgress())
        log.close()

    def _log(self) -> PostgreSQLChangeLog:
        return PostgreSQLChangeLog(replace(self.capture, url=self.server.url))

    def run(self, *, acknowledges: bool = True) -> None:
        """As a run: acknowledge, resume, read to the end."""
        log = self._log()
        try:
            log.acknowledge(self.position)
            self.position = log.resume(self.position)
            caught_up = False
            while not caught_up:
                batch = log.read(self.position, 100)
                assert not batch.copied_again
                self.ids += [int(dict(row["columns"])["id"]) for row in batch.rows.to_pylist()]
                self.position, caught_up = batch.position, batch.caught_up
                if acknowledges:
                    log.acknowledge(self.position)
        finally:
            log.close()

    def lost(self) -> str:
        """A run finds that it cannot go on, also when it tries again, and takes nothing."""
        ids, before = list(self.ids), self.confirmed()
        for _ in range(2):
            with pytest.raises(IngestError) as raised:
                self.run()
            assert raised.value.error_class == "SOURCE_LOG_LOST"
            assert "--full-refresh" in str(raised.value.hint)
        assert self.ids == ids
        assert self.confirmed() == before
        return str(raised.value)

    def confirmed(self) -> int | None:
        with self.server.connect() as connection:
            query = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s"
            row = connection.execute(query, [slot_of(self.position)]).fetchone()
        return None if row is None or row[0] is None else lsn_number(row[0])


def insert(server: PostgreSQLServer, *ids: int) -> None:
    with server.connect() as connection:
        for number in ids:
            connection.execute("INSERT INTO a VALUES (%s)", [number])


def write_other(server: PostgreSQLServer, size: int = IDLE_BYTES * 2) -> None:
    """Much log without changes of captured tables."""
    with server.connect() as connection:
        for _ in range(size // (16 * 1024 * 1024) + 1):
            connection.execute("INSERT INTO other VALUES (1)")
            connection.execute("SELECT pg_switch_wal()")
        connection.execute("INSERT INTO other VALUES (1)")


def await_true(connection: psycopg.Connection, query: str, *arguments: object) -> None:
    for _ in range(400):
        row = connection.execute(query, arguments or None).fetchone()
        if row and row[0]:
            return
        connection.execute("SELECT pg_sleep(0.05)")
    raise AssertionError(query)


def synchronise(primary: PostgreSQLServer, standby: PostgreSQLServer, lake: Lake | None = None) -> None:
    """The standby has all of the primary, and the lake's slot."""
    if lake is not None:
        _synchronise_slot(primary, standby, lake)
    with primary.connect() as connection:
        (end,) = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone() or ("",)
        connection.execute("SELECT pg_log_standby_snapshot()")
    with standby.connect() as connection:
        await_true(connection, "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", end)


def _synchronise_slot(primary: PostgreSQLServer, standby: PostgreSQLServer, lake: Lake) -> None:
    """It is kept by the standby when it has moved beyond what the standby began with."""
    query = "SELECT NOT temporary FROM pg_replication_slots WHERE slot_name = %s"
    with standby.connect() as connection:
        for number in range(MARKS, MARKS + 40):
            insert(primary, number)
            with primary.connect() as other:
                other.execute("SELECT pg_log_standby_snapshot()")
                other.execute("SELECT pg_logical_emit_message(false, 'flush', '', true)")
            lake.run()
            synchronise(primary, standby)
            connection.execute("SELECT pg_sync_replication_slots()")
            row = connection.execute(query, [slot_of(lake.position)]).fetchone()
            if row and row[0]:
                lake.ids = [number for number in lake.ids if number < MARKS]
                return
    raise AssertionError("the slot is not synchronised")


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="pgfail"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def primary(folder: Path) -> Iterator[PostgreSQLServer]:
    server = PostgreSQLServer.create(folder / "primary")
    with server.connect() as connection:
        connection.execute("CREATE TABLE a (id int PRIMARY KEY)")
        connection.execute("CREATE TABLE other (v int)")
    yield server
    server.remove()


@pytest.fixture
def standby(primary: PostgreSQLServer, folder: Path) -> Iterator[PostgreSQLServer]:
    server = primary.standby(folder / "standby")
    yield server
    server.remove()


def test_promoted_standby_goes_on(primary: PostgreSQLServer, standby: PostgreSQLServer) -> None:
    lake = Lake(primary)
    insert(primary, 1, 2)
    lake.run()
    synchronise(primary, standby, lake)
    insert(primary, 3)
    lake.server = standby
    with pytest.raises(IngestError) as raised:
        lake.run()
    assert raised.value.error_class == "CAPTURE_SERVER_NOT_USABLE"
    assert raised.value.retryable
    synchronise(primary, standby)
    primary.stop(crash=True)
    standby.promote()
    insert(standby, 4)
    lake.run()
    assert lake.ids == [1, 2, 3, 4]
    insert(standby, 5)
    lake.run()
    assert lake.ids == [1, 2, 3, 4, 5]
    # The former primary is back, and the url leads to it.
    primary.start()
    insert(primary, 6)
    lake.server = primary
    assert "former primary" in lake.lost()


@pytest.mark.slow
def test_standby_lacks_what_the_lake_has(primary: PostgreSQLServer, standby: PostgreSQLServer) -> None:
    lake = Lake(primary)
    insert(primary, 1)
    lake.run()
    synchronise(primary, standby, lake)
    standby.stop()
    insert(primary, 2)
    lake.run()
    primary.stop(crash=True)
    standby.start()
    standby.promote()
    # It gives the numbers of the log to other transactions.
    insert(standby, *range(100, 120))
    write_other(standby)
    insert(standby, 200)
    lake.server = standby
    assert "promoted" in lake.lost()


@pytest.mark.slow
def test_standby_lacks_only_log_without_changes(primary: PostgreSQLServer, standby: PostgreSQLServer) -> None:
    """The position goes back to where the standby's own log begins."""
    lake = Lake(primary)
    insert(primary, 1)
    lake.run()
    synchronise(primary, standby, lake)
    standby.stop()
    write_other(primary)
    ahead = lake.position.point
    lake.run()
    assert lake.position.point > ahead
    ahead = lake.position.point
    primary.stop(crash=True)
    standby.start()
    standby.promote()
    insert(standby, 2, 3)
    lake.server = standby
    lake.run()
    assert lake.position.point < ahead
    write_other(standby)
    insert(standby, 4)
    lake.run()
    assert lake.ids == [1, 2, 3, 4]


@pytest.mark.slow
def test_standby_without_the_slot(primary: PostgreSQLServer, standby: PostgreSQLServer) -> None:
    lake = Lake(primary)
    insert(primary, 1)
    lake.run()
    synchronise(primary, standby)
    primary.stop(crash=True)
    standby.promote()
    insert(standby, 2)
    lake.server = standby
    assert "a standby without it was promoted" in lake.lost()
    # Somebody makes a slot of that name: what was written before is not in it.
    with standby.connect() as connection:
        connection.execute(
            "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot_of(lake.position)]
        )
    insert(standby, 3)
    assert "ahead" in lake.lost()


@pytest.mark.slow
@pytest.mark.parametrize("acknowledges", [True, False])
def test_copied_folder(primary: PostgreSQLServer, folder: Path, acknowledges: bool) -> None:
    """The same system, timeline and slot; the log goes back, and then beyond what the lake has."""
    lake = Lake(primary)
    insert(primary, 1)
    lake.run(acknowledges=acknowledges)
    primary.stop()
    copy = primary.copy(folder / "copy")
    primary.start()
    insert(primary, 2)
    lake.run(acknowledges=acknowledges)
    primary.stop()
    copy.start()
    try:
        lake.server = copy
        assert "restored" in lake.lost()
        insert(copy, *range(100, 120))
        write_other(copy)
        assert "other transactions" in lake.lost()
        # The right server goes on as if nothing had been.
        copy.stop()
        primary.start()
        lake.server = primary
        insert(primary, 3)
        lake.run()
        assert lake.ids == [1, 2, 3]
    finally:
        copy.remove()


@pytest.mark.slow
def test_copied_folder_after_idle_log(primary: PostgreSQLServer, folder: Path) -> None:
    """The lake has no transaction that the copy lacks, but its position is behind changes of the copy."""
    lake = Lake(primary)
    insert(primary, 1)
    lake.run()
    primary.stop()
    copy = primary.copy(folder / "copy")
    primary.start()
    write_other(primary)
    lake.run()
    primary.stop()
    copy.start()
    try:
        insert(copy, 100)
        write_other(copy, IDLE_BYTES * 4)
        lake.server = copy
        assert "other transactions" in lake.lost()
    finally:
        copy.remove()


@pytest.mark.slow
def test_server_that_crashes_again_and_again(primary: PostgreSQLServer) -> None:
    """The slot goes back with each crash; nothing is lost or taken twice, and no crash looks like a copy."""
    lake = Lake(primary)
    for number in range(0, 30, 3):
        insert(primary, number, number + 1)
        lake.run(acknowledges=number % 2 == 0)
        if number % 4 == 0:
            write_other(primary)
            lake.run()
        primary.stop(crash=True)
        primary.start()
        insert(primary, number + 2)
    lake.run()
    assert lake.ids == list(range(30))


@pytest.mark.slow
def test_another_reader_of_the_slot(primary: PostgreSQLServer) -> None:
    """It moves the slot between our look at it and our read."""
    lake = Lake(primary)
    insert(primary, 1)
    lake.run()
    log = lake._log()
    original = log._messages

    def messages(connection: psycopg.Connection, slot: str, end: int, limit: int | None) -> list[bytes]:
        with primary.connect() as other:
            other.execute("INSERT INTO a VALUES (3)")
            other.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", [slot])
        return original(connection, slot, end, limit)

    insert(primary, 2)
    log._messages = messages  # type: ignore[method-assign]
    with pytest.raises(IngestError) as raised:
        log.read(lake.position, 100)
    assert "somebody else" in str(raised.value)
    log.close()

"""The url leads to another server: a replica that was promoted, or one that only looks like it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from tests.support.mysql_protocol import PrivateServer

from tautochrone.errors import IngestError
from tautochrone.model.source_position import LogPosition
from tautochrone.sources.mysql.change_log import Capture, MySQLChangeLog
from tautochrone.sources.mysql.connection import address_of, connect
from tautochrone.sources.mysql.tables import captured_tables

from .replicas import SERVERS, Servers, execute
from .test_change_log import events

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(params=["mariadb", pytest.param("mysql", marks=pytest.mark.slow)])
def servers(request: pytest.FixtureRequest) -> Iterator[Servers]:
    if not SERVERS[request.param].is_installed():
        pytest.skip(f"{request.param} is not installed")
    servers = Servers(request.param)
    yield servers
    servers.remove()


def _log(server: PrivateServer) -> MySQLChangeLog:
    address = address_of(server.url, "test")
    with closing(connect(address)) as connection:
        tables = captured_tables(connection, ["shop.*"], (), "test")
    return MySQLChangeLog(Capture("test", address, tables))


def _read(server: PrivateServer, position: LogPosition) -> tuple[list[tuple[Any, ...]], LogPosition]:
    """By a new process: it resumes and reads all that there is."""
    with closing(_log(server)) as log:
        resumed = log.resume(position)
        assert not resumed.bulk.pending
        changes = []
        caught_up = False
        while not caught_up:
            batch = log.read(resumed, 2)
            assert batch.position.point >= resumed.point
            assert all(resumed.point < point for point in batch.rows["point"].to_pylist())
            resumed, caught_up = batch.position, batch.caught_up
            changes += events(batch.rows)
        return changes, resumed


def _copied(server: PrivateServer) -> LogPosition:
    """The position of a lake that has copied the tables and read on."""
    execute(
        server,
        "CREATE DATABASE shop",
        "CREATE TABLE shop.t (id INT PRIMARY KEY, a VARCHAR(9))",
        "INSERT INTO shop.t VALUES (1, 'a')",
    )
    with closing(_log(server)) as log:
        position = log.begin("reader")
        (chunk,) = position.bulk.pending["shop.t"]
        _rows, pass_at = log.read_chunk("shop.t", chunk)
        execute(server, "INSERT INTO shop.t VALUES (2, 'b')")
        bulk = position.bulk.copied("shop.t", chunk, pass_at)
        position = log.read(replace(position, bulk=bulk), 100).position
        return replace(position, bulk=position.bulk.at(position.point))


def _refused(server: PrivateServer, position: LogPosition) -> str:
    with closing(_log(server)) as log:
        for ask in (lambda: log.resume(position), lambda: log.read(position, 100)):
            with pytest.raises(IngestError) as raised:
                ask()
            assert raised.value.error_class == "SOURCE_LOG_LOST"
            assert "--full-refresh" in str(raised.value.hint)
            assert not raised.value.retryable
    return raised.value.message


def test_the_log_goes_on_at_a_promoted_replica(servers: Servers) -> None:
    primary = servers.start()
    replica = servers.replica_of(primary)
    position = _copied(primary)
    # Several statements, whose times differ, in one transaction; files end at other places.
    execute(
        primary,
        "SET timestamp = UNIX_TIMESTAMP() - 2",
        "BEGIN",
        "INSERT INTO shop.t VALUES (3, 'c')",
        "SET timestamp = DEFAULT",
        "UPDATE shop.t SET a = 'd' WHERE id = 3",
        "COMMIT",
    )
    changes, position = _read(primary, position)
    assert changes == [("insert", "3", "c"), ("update", "3", "d")]
    servers.wait(primary, replica)
    execute(replica, "FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
    execute(primary, "INSERT INTO shop.t VALUES (4, 'not read')")
    servers.wait(primary, replica)
    primary.stop()
    servers.promote(replica)
    execute(
        replica,
        "UPDATE shop.t SET a = 'new' WHERE id = 1",
        "FLUSH BINARY LOGS",
        "DELETE FROM shop.t WHERE id = 2",
    )
    with closing(_log(replica)) as log:
        batch = log.read(position, 1)
        assert batch.moved is not None
        assert batch.moved.code == "SERVER_HAS_SAME_TRANSACTIONS"
        assert log.lag(position) == {}
    changes, moved = _read(replica, position)
    expected = [("insert", "4", "not read"), ("update", "1", "new"), ("delete", "2", "b")]
    assert changes == expected
    # A run that died before it committed the position finds the same again; one that did goes on.
    repeated, moved_again = _read(replica, position)
    assert (repeated, moved_again.marker["gtid"]) == (changes, moved.marker["gtid"])
    assert (moved.log, moved.point > position.point) == (position.log, True)
    with closing(_log(replica)) as log:
        assert log.read(moved, 100).moved is None
        # The server may write to its log by itself, such as checkpoints of it.
        assert 0 <= log.lag(moved)["bytes"] < 200
    execute(replica, "INSERT INTO shop.t VALUES (5, 'e')")
    replica.restart()
    execute(replica, "INSERT INTO shop.t VALUES (6, 'f')", "ALTER TABLE shop.t ADD COLUMN b INT")
    with closing(_log(replica)) as log:
        again = log.resume(moved)
        (chunk,) = again.bulk.pending["shop.t"]
        rows, pass_at = log.read_chunk("shop.t", chunk)
        assert min(rows["point"].to_pylist()) > moved.point
        assert pass_at > moved.point
        assert log.read(again, 100).position.point >= pass_at
        again = log.read(replace(again, bulk=moved.bulk), 100).position
    # Back at the former primary, which follows now.
    primary.start()
    servers.follow(primary, replica)
    servers.wait(replica, primary)
    servers.promote(primary)
    execute(primary, "INSERT INTO shop.t VALUES (7, 'g', 1)")
    changes, back = _read(primary, again)
    assert (changes, back.point > again.point) == ([("insert", "7", "g")], True)


def require_history(primary: PrivateServer, replica: PrivateServer, position: LogPosition) -> None:
    """Positions without one are refused at a replica that has all transactions of the lake."""
    old = {name: text for name, text in position.marker.items() if name != "history"}
    assert "are not known" in _refused(replica, replace(position, marker=old))
    with closing(_log(primary)) as log:
        begun = log.begin("reader")
    assert "copy of shop.t" in _refused(replica, begun)
    unread = {**position.marker, "history": "|" + position.marker["history"].partition("|")[2]}
    assert "no transaction was read" in _refused(replica, replace(position, marker=unread))
    assert _read(replica, position)[0] == []


def test_servers_that_are_another_database_are_refused(servers: Servers) -> None:
    """And at a replica of the same one, positions without a history."""
    primary = servers.start()
    replica = servers.replica_of(primary)
    position = _copied(primary)
    servers.wait(primary, replica)
    servers.promote(replica)
    require_history(primary, replica, position)
    execute(primary, "INSERT INTO shop.t VALUES (3, 'c')", "INSERT INTO shop.t VALUES (4, 'd')")
    _, ahead = _read(primary, position)
    # Replication is asynchronous: the lake has transactions that the replica never got.
    assert "it lacks transactions that the lake has" in _refused(replica, ahead)
    # It has less and goes on by itself: other transactions in the place of those.
    execute(replica, "INSERT INTO shop.t VALUES (8, 'own')", "INSERT INTO shop.t VALUES (9, 'own')")
    assert "transactions that the lake does not have" in _refused(replica, ahead)
    # A lake that has none of those goes on there.
    assert _read(replica, position)[0] == [("insert", "8", "own"), ("insert", "9", "own")]
    servers.start_replication(replica)
    servers.wait(primary, replica)
    servers.promote(replica)
    assert "transactions that the lake does not have" in _refused(replica, ahead)
    servers.reset(replica)
    assert "it lacks transactions that the lake has" in _refused(replica, ahead)


def test_equal_numbers_of_another_database_are_refused(servers: Servers) -> None:
    """Such as those of a test system whose servers have the ids of production."""
    primary, other = servers.start(), servers.start()
    position = _copied(primary)
    servers.reset(other)
    if servers.kind == "mariadb":
        ((last,),) = execute(primary, "SELECT @@GLOBAL.gtid_binlog_pos")
        domain, server, number = last.split("-")
        numbers = [
            f"SET SESSION gtid_domain_id = {domain}, server_id = {server}, gtid_seq_no = {n}"
            for n in range(1, int(number) + 1)
        ]
    else:
        ((executed,),) = execute(primary, "SELECT @@GLOBAL.gtid_executed")
        source, numbered = executed.split(":")
        numbers = [f"SET gtid_next = '{source}:{n}'" for n in range(1, int(numbered.split("-")[1]) + 1)]
    statements = [
        "CREATE DATABASE shop",
        "CREATE TABLE shop.t (id INT PRIMARY KEY, a VARCHAR(9))",
        *(f"INSERT INTO shop.t VALUES ({number}, 'other')" for number in range(len(numbers) - 2)),
    ]
    timed = ["SET timestamp = 1700000000"]
    for number, statement in zip(numbers, statements, strict=True):
        timed += [number, statement]
    execute(other, *timed)
    assert "another transaction with the number of the last one" in _refused(other, position)

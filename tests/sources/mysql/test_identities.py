"""Servers that have the name of the captured one and are another one: nothing of them is taken."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.mysql_protocol import PrivateServer

from tautochrone.errors import IngestError
from tautochrone.model.source_position import BulkProgress, LogPosition
from tautochrone.sources.mysql.change_log import Capture, MySQLChangeLog
from tautochrone.sources.mysql.connection import address_of, connect
from tautochrone.sources.mysql.tables import captured_tables

from .replicas import SERVERS, Servers, execute
from .test_change_log import events

pytestmark = pytest.mark.timeout(300)


@dataclass
class Twins(Servers):
    """Servers with one name.

    Attributes:
        backup: the folder of a stopped server.
    """

    backup: Path = Path()

    def start(self) -> PrivateServer:
        server = SERVERS[self.kind].private_server(networking=True, server_id=11)
        self.started.append(server)
        return server

    def filled(self, server: PrivateServer) -> PrivateServer:
        """Equal statements on all of them: logs have equal lengths and GTIDs."""
        execute(
            server,
            "CREATE DATABASE shop",
            "CREATE TABLE shop.t (id INT PRIMARY KEY, a VARCHAR(9))",
            "INSERT INTO shop.t VALUES (1, 'a')",
        )
        return server

    def back_up(self, server: PrivateServer) -> None:
        server.stop()
        self.backup = server.folder / "backup"
        shutil.rmtree(self.backup, ignore_errors=True)
        shutil.copytree(server.folder / "data", self.backup)
        server.start()

    def restore(self, server: PrivateServer) -> None:
        """The server is what it was at its backup: the same number, UUID and files."""
        server.stop()
        shutil.rmtree(server.folder / "data")
        shutil.copytree(self.backup, server.folder / "data")
        server.start()

    def with_uuid_of(self, server: PrivateServer, other: PrivateServer) -> None:
        if self.kind == "mysql":
            server.stop()
            shutil.copy(other.folder / "data" / "auto.cnf", server.folder / "data" / "auto.cnf")
            server.start()


@pytest.fixture(scope="module", params=["mariadb", pytest.param("mysql", marks=pytest.mark.slow)])
def twins(request: pytest.FixtureRequest) -> Iterator[Twins]:
    if not SERVERS[request.param].is_installed():
        pytest.skip(f"{request.param} is not installed")
    twins = Twins(request.param)
    yield twins
    twins.remove()


def change_log(server: PrivateServer) -> MySQLChangeLog:
    address = address_of(server.url, "test")
    with closing(connect(address)) as connection:
        tables = captured_tables(connection, ["shop.*"], (), "test")
    return MySQLChangeLog(Capture("test", address, tables))


def require_refused(log: MySQLChangeLog, position: LogPosition) -> None:
    """In a new connection and a new process, whatever is asked first."""
    (relation,) = log.relations()
    questions: list[Callable[[], Any]] = [
        lambda: log.resume(position),
        lambda: log.read(position, 100),
        lambda: log.read_chunk(relation, "{}"),
    ]
    for ask in questions:
        log.close()
        with pytest.raises(IngestError) as raised:
            ask()
        assert raised.value.error_class == "SOURCE_LOG_LOST"
        assert "if the url leads to the wrong server" in str(raised.value.hint)
    log.close()


def behind_changes(log: MySQLChangeLog, server: PrivateServer) -> LogPosition:
    position = replace(log.begin("reader"), bulk=BulkProgress())
    execute(server, "INSERT INTO shop.t VALUES (2, 'b')")
    batch = log.read(position, 100)
    assert events(batch.rows) == [("insert", "2", "b")]
    return batch.position


def test_another_server_with_the_same_name_and_statements_is_refused(twins: Twins) -> None:
    first, second = twins.filled(twins.start()), twins.start()
    twins.with_uuid_of(second, first)
    execute(second, "CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY, a VARCHAR(9))")
    log = change_log(first)
    begun = log.begin("reader")
    positions = (begun, behind_changes(log, first))
    # The second server's log is as long, with the same GTIDs, and then longer.
    for number in range(3):
        execute(second, f"INSERT INTO shop.t VALUES ({number + 2}, 'o')")
        for position in positions:
            at_second = MySQLChangeLog(replace(log._capture, address=address_of(second.url, "test")))
            at_second._same_log._position = position
            require_refused(at_second, position)
    # Back at the right server, the run goes on.
    log.close()
    assert events(log.read(begun, 100).rows) == [("insert", "2", "b")]
    log.close()
    second.remove()


def test_another_server_that_wrote_the_same_in_the_same_second_is_refused(twins: Twins) -> None:
    """Only when its file of the log was begun tells it from the captured one."""
    at = "SET timestamp = 1790000000"
    first = twins.start()
    time.sleep(1.1)  # that time is in whole seconds
    second = twins.start()
    twins.with_uuid_of(second, first)
    for server in (first, second):
        execute(server, at, "CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY, a VARCHAR(9))")
    log = change_log(first)
    begun = replace(log.begin("reader"), bulk=BulkProgress())
    for server in (first, second):
        execute(server, at, "INSERT INTO shop.t VALUES (2, 'b')")
    for position in (begun, log.read(begun, 100).position):
        at_second = MySQLChangeLog(replace(log._capture, address=address_of(second.url, "test")))
        at_second._same_log._position = position
        require_refused(at_second, position)
    log.close()
    first.remove()
    second.remove()


def test_a_server_that_was_restored_or_reset_is_refused(twins: Twins) -> None:
    server = twins.started[0]
    execute(server, "DELETE FROM shop.t WHERE id > 1")
    twins.back_up(server)
    log = change_log(server)
    position = behind_changes(log, server)
    log._same_log._position = position
    twins.restore(server)
    # Another history under the same numbers.
    for number in range(3):
        execute(server, f"INSERT INTO shop.t VALUES ({number + 2}, 'x')")
        require_refused(log, position)
    position = behind_changes_again(log, server)
    twins.reset(server)
    # The connection that has seen the log is still open.
    for number in range(20):
        execute(server, f"INSERT INTO shop.t VALUES ({number + 20}, 'x')")
    with pytest.raises(IngestError) as raised:
        log.read(position, 100)
    assert raised.value.error_class == "SOURCE_LOG_LOST"
    require_refused(log, position)


def behind_changes_again(log: MySQLChangeLog, server: PrivateServer) -> LogPosition:
    position = replace(log.begin("reader"), bulk=BulkProgress())
    execute(server, "INSERT INTO shop.t VALUES (9, 'b')")
    return log.read(position, 100).position


def test_a_copy_of_the_files_that_has_what_the_lake_has_goes_on(twins: Twins) -> None:
    """It is the same database up to there; the other one is refused then."""
    server = twins.started[0]
    execute(server, "DELETE FROM shop.t WHERE id > 1")
    log = change_log(server)
    position = behind_changes(log, server)
    twins.back_up(server)
    execute(server, "INSERT INTO shop.t VALUES (3, 'gone')")
    gone = log_position(log, position)
    twins.restore(server)
    execute(server, "INSERT INTO shop.t VALUES (3, 'c')")
    log.close()
    batch = log.read(position, 100)
    assert events(batch.rows) == [("insert", "3", "c")]
    log._same_log._position = gone
    require_refused(log, gone)


def log_position(log: MySQLChangeLog, position: LogPosition) -> LogPosition:
    log.close()
    return log.read(position, 100).position

"""Transactions that are prepared and committed later, or rolled back in part, and events that are lost."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pymysql
import pytest
from tests.support import mariadb

from tautochrone.errors import IngestError
from tautochrone.sources.mysql.binlog import Event, Kind, dump_events, point_of
from tautochrone.sources.mysql.charsets import Charsets
from tautochrone.sources.mysql.flavors import MariaDB
from tautochrone.sources.mysql.reader import LogReader
from tautochrone.sources.mysql.tables import CapturedTable, TableColumn

from .conftest import Schema
from .followed import Followed

_TABLE = "CREATE TABLE {} (id INT PRIMARY KEY, a VARCHAR(20)) ENGINE={}"


@dataclass
class Sessions:
    """Each holds a prepared transaction and can do nothing else."""

    schema: Schema
    open: dict[str, Any] = field(default_factory=dict)

    def prepare(self, xid: str, *statements: str) -> None:
        connection = self.schema.server.open_connection(database=self.schema.name)
        self.open[xid] = connection
        _run(connection, *_SETTINGS, f"XA START {xid}", *statements, f"XA END {xid}", f"XA PREPARE {xid}")

    def end(self, xid: str, how: str) -> None:
        connection = self.open.pop(xid)
        _run(connection, f"XA {how} {xid}")
        connection.close()


@pytest.fixture
def sessions(schema: Schema) -> Iterator[Sessions]:
    """Transactions that stay prepared would keep the schema from being dropped."""
    schema.run(*_SETTINGS)
    sessions = Sessions(schema)
    yield sessions
    for xid in list(sessions.open):
        with suppress(pymysql.Error):
            sessions.end(xid, "ROLLBACK")


_SETTINGS = (
    "SET SESSION innodb_lock_wait_timeout = 1, lock_wait_timeout = 1",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
)


def _run(connection: Any, *statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def test_rows_of_a_prepared_transaction_come_when_it_is_committed(schema: Schema, sessions: Sessions) -> None:
    schema.run(_TABLE.format("t", "InnoDB"), _TABLE.format("u", "InnoDB"))
    followed = Followed.start(schema)
    for number, xid in enumerate(("'x'", "'x','branch'", "'x','branch',7", "X'00ff','é',2147483647")):
        with_rows = f"INSERT INTO t VALUES ({number}, 'x')", f"INSERT INTO u VALUES ({number}, 'y')"
        sessions.prepare(xid, *with_rows)
        followed.catch_up()
        assert str(number) not in followed.rows[f"{schema.name}.t"]
        schema.run("INSERT INTO t VALUES (100, 'other')", "FLUSH BINARY LOGS", "DELETE FROM t WHERE id = 100")
        followed.catch_up(1, anew=True)
        sessions.end(xid, "COMMIT")
        followed.catch_up(anew=True)
        assert not followed.difference()
        # The same identifiers again.
        sessions.prepare(xid, f"UPDATE t SET a = 'z' WHERE id = {number}")
        followed.catch_up()
        sessions.end(xid, "ROLLBACK")
        followed.catch_up()
        assert not followed.difference()
    assert not followed.copied
    assert "prepared" not in followed.position.marker
    followed.log.close()


def test_transaction_prepared_before_the_capture_copies_its_tables(
    schema: Schema, sessions: Sessions
) -> None:
    schema.run(_TABLE.format("t", "InnoDB"))
    sessions.prepare("'early'", "INSERT INTO t VALUES (1, 'x')")
    sessions.prepare("'never'", "INSERT INTO t VALUES (2, 'x')")
    followed = Followed.start(schema)
    schema.run("INSERT INTO t VALUES (3, 'x')")
    sessions.end("'early'", "COMMIT")
    sessions.end("'never'", "ROLLBACK")
    followed.catch_up()
    assert followed.copied == [f"{schema.name}.t"]
    assert not followed.difference()
    assert followed.rows[f"{schema.name}.t"].keys() == {"1", "3"}
    followed.log.close()


def test_transaction_prepared_before_its_table_is_copied_again(schema: Schema, sessions: Sessions) -> None:
    schema.run(_TABLE.format("t", "InnoDB"))
    followed = Followed.start(schema)
    sessions.prepare("'x'", "INSERT INTO t VALUES (1, 'x')")
    followed.position = followed.log.resume(followed.position, [f"{schema.name}.t"])
    followed.catch_up(anew=True)
    sessions.end("'x'", "COMMIT")
    followed.catch_up(anew=True)
    assert not followed.difference()
    assert not followed.copied
    followed.log.close()


def test_prepared_transaction_whose_file_is_gone_copies_its_tables(
    schema: Schema, sessions: Sessions
) -> None:
    schema.run(_TABLE.format("t", "InnoDB"))
    followed = Followed.start(schema)
    sessions.prepare("'x'", "INSERT INTO t VALUES (1, 'x')")
    schema.run("INSERT INTO t VALUES (2, 'x')", "FLUSH BINARY LOGS", "INSERT INTO t VALUES (3, 'x')")
    followed.catch_up()
    [*_others, (newest, *_sizes)] = schema.rows("SHOW BINARY LOGS")
    schema.run(f"PURGE BINARY LOGS TO '{newest}'")
    # A server may keep the file of a transaction that is prepared.
    is_gone = len(schema.rows("SHOW BINARY LOGS")) == 1
    sessions.end("'x'", "COMMIT")
    followed.catch_up(anew=True)
    assert followed.copied == ([f"{schema.name}.t"] if is_gone else [])
    assert not followed.difference()
    followed.log.close()


def _program(pick: random.Random) -> list[str]:
    """Of one session."""
    tables = ("t", "t", "u", "m", "tmp")
    statements = []
    for _ in range(pick.randint(2, 9)):
        table, key = pick.choice(tables), pick.randint(1, 12)
        name = pick.choice(("s", "S", "`r x`", "`é`", "s2"))
        statements.append(
            pick.choice(
                (
                    f"INSERT INTO {table} VALUES ({key}, '{pick.random():.6f}')",
                    f"REPLACE INTO {table} VALUES ({key}, '{pick.random():.6f}')",
                    f"INSERT INTO {table} VALUES ({key + 20}, 'y'), ({key}, 'z')",
                    f"UPDATE {table} SET id = id + 1 WHERE id BETWEEN {key} AND 40 ORDER BY id DESC",
                    f"DELETE FROM {table} WHERE id = {key}",
                    f"SAVEPOINT {name}",
                    f"SAVEPOINT {name}",
                    f"ROLLBACK TO {name}",
                    f"ROLLBACK TO SAVEPOINT {name}",
                    f"RELEASE SAVEPOINT {name}",
                    "CREATE TEMPORARY TABLE IF NOT EXISTS tmp (id INT PRIMARY KEY, a VARCHAR(20))",
                    "DROP TEMPORARY TABLE IF EXISTS tmp",
                )
            )
        )
    begin = pick.choice(("BEGIN", "START TRANSACTION", "START TRANSACTION WITH CONSISTENT SNAPSHOT"))
    end = pick.choice(("COMMIT", "COMMIT", "COMMIT", "ROLLBACK", "CREATE TABLE IF NOT EXISTS t (id INT)"))
    return [begin, *statements, end]


def _xa_program(pick: random.Random, sessions: Sessions) -> None:
    xid = f"'{pick.choice('abc')}','{pick.choice('xy')}'"
    if xid in sessions.open:
        sessions.end(xid, pick.choice(("COMMIT", "COMMIT", "ROLLBACK")))
        return
    key = 100 + 10 * "abc".index(xid[1]) + 5 * "xy".index(xid[5])
    rows = [
        f"REPLACE INTO {pick.choice('tu')} VALUES ({key + pick.randint(0, 4)}, '{pick.random():.6f}')"
        for _ in range(pick.randint(1, 3))
    ]
    if pick.random() < 0.2:
        statements = [f"XA START {xid}", *rows, f"XA END {xid}", f"XA COMMIT {xid} ONE PHASE"]
        sessions.schema.run(*statements)
    else:
        sessions.prepare(xid, *rows)


def _run_transactions(schema: Schema, sessions: Sessions, seed: int, count: int) -> tuple[Followed, int]:
    pick = random.Random(seed)
    schema.run(*(_TABLE.format(name, "InnoDB") for name in "tu"))
    followed = Followed.start(schema)
    schema.run(_TABLE.format("m", "MyISAM"))
    compared = 0
    for _ in range(count):
        if pick.random() < 0.3:
            _xa_program(pick, sessions)
        program = _program(pick)
        for statement in program:
            with suppress(pymysql.Error):
                schema.run(statement)
        if pick.random() < 0.05:
            schema.run("FLUSH BINARY LOGS")
        if pick.random() < 0.05:
            followed.position = followed.log.resume(followed.position, [f"{schema.name}.t"])
            followed.rows[f"{schema.name}.t"] = followed.source_rows(f"{schema.name}.t")
        if pick.random() < 0.4:
            followed.catch_up(pick.choice((1, 3, 1000)), anew=pick.random() < 0.3)
            assert not followed.problem, (seed, program)
            assert not followed.difference(), (seed, program)
            compared += 1
    followed.log.close()
    return followed, compared


def test_random_transactions(schema: Schema, sessions: Sessions) -> None:
    _followed, compared = _run_transactions(schema, sessions, 1, 60)
    assert compared > 15


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 22))
def test_many_random_transactions(schema: Schema, sessions: Sessions, seed: int) -> None:
    _followed, compared = _run_transactions(schema, sessions, seed, 200)
    assert compared > 50


def test_statement_that_is_rolled_back_while_others_stay(schema: Schema, sessions: Sessions) -> None:
    """MariaDB logs both, when tables without transactions or temporary ones are written."""
    schema.run(_TABLE.format("t", "InnoDB"), "INSERT INTO t VALUES (1, 'a')")
    followed = Followed.start(schema)
    schema.run(_TABLE.format("m", "MyISAM"))
    between: tuple[Any, ...] = ("CREATE TEMPORARY TABLE x (id INT)",)
    if not schema.is_mysql:
        between += ("INSERT INTO m VALUES (1, 'm')",)
    for number, statement in enumerate(between):
        key = 10 * (number + 1)
        schema.run(
            "START TRANSACTION",
            f"INSERT INTO t VALUES ({key}, 'stays')",
            "SAVEPOINT one",
            f"INSERT INTO t VALUES ({key + 1}, 'goes')",
            statement,
            "SAVEPOINT two",
            f"INSERT INTO t VALUES ({key + 2}, 'goes')",
            "ROLLBACK TO two",
            "ROLLBACK TO One",
            f"INSERT INTO t VALUES ({key + 3}, 'stays')",
            "COMMIT",
        )
    followed.catch_up()
    assert not followed.problem
    assert not followed.copied
    assert not followed.difference()
    followed.log.close()


def _reader(since: int) -> LogReader:
    table = CapturedTable("s", "t", (TableColumn("id", "int", "int"),), ("id",))
    charsets = Charsets(lambda: pytest.fail("no text is to be decoded"))
    return LogReader(charsets, MariaDB(), {"s.t": (table, since)}, "bin.000001", 0, {})


def _event(kind: int, flags: int = 0) -> Event:
    return Event(kind, 0, 1, "bin.000001", 4, 100, b"", flags)


def test_events_that_the_server_lost_copy_all_tables() -> None:
    end = point_of("bin.000001", 100)
    reader = _reader(end - 1)
    reader.read([_event(Kind.INCIDENT)], 1)
    assert reader.changed == ("s.t",)
    assert reader.how
    reader = _reader(end)
    reader.read([_event(Kind.INCIDENT)], 1)
    assert not reader.changed


def test_events_of_unknown_kinds_are_errors_unless_they_may_be_ignored() -> None:
    reader = _reader(0)
    reader.read([_event(250, flags=128)], 1)
    assert reader.is_at_end
    with pytest.raises(IngestError) as raised:
        _reader(0).read([_event(250)], 1)
    assert raised.value.error_class == "CHANGE_LOG_EVENT_NOT_SUPPORTED"


@pytest.mark.slow
def test_an_encrypted_log_is_read(tmp_path: Path) -> None:
    if not mariadb.is_installed():
        pytest.skip("no MariaDB server is installed")
    (tmp_path / "keys").write_text("1;" + "ab" * 32 + "\n")
    options = ("--plugin-load-add=file_key_management", "--encrypt-binlog=1", "--log-bin-compress=1")
    server = mariadb.private_server(options=(*options, f"--file-key-management-filename={tmp_path / 'keys'}"))
    try:
        connection = server.connect(database=server.fresh_schema())
        _run(connection, _TABLE.format("t", "InnoDB"), "INSERT INTO t VALUES (1, 'x')", "TRUNCATE t")
        with connection.cursor() as cursor:
            cursor.execute("SHOW BINARY LOGS")
            [(file, *_sizes)] = cursor.fetchall()
        events = list(dump_events(server.connect(), file, 4))
    finally:
        server.remove()
    assert events[0].kind == 164, "that it is encrypted"
    assert {Kind.QUERY, Kind.XID} <= {event.kind for event in events}
    reader = _reader(0)
    reader.read(events, 1000)
    assert reader.is_at_end

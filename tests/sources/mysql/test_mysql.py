"""What only MySQL has: binary JSON, GTIDs that are owned until rows are visible, restored logs, passwords."""

from __future__ import annotations

import json
import random
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from tests.support import mysql
from tests.support.mysql_protocol import PrivateServer

from tautochrone.errors import IngestError
from tautochrone.sources.mysql import flavors, tables
from tautochrone.sources.mysql.change_log import Capture, MySQLChangeLog
from tautochrone.sources.mysql.connection import address_of, connect
from tautochrone.sources.mysql.tables import CapturedTable, captured_tables

from .conftest import Schema

pytestmark = pytest.mark.parametrize("schema", ["mysql"], indirect=True)

_CHARACTERS = 'ab"\\\n\t\x01é😀/\x7f'
_OPAQUE = """
JSON_OBJECT('day', CAST('2015-01-15' AS DATE), 'time', CAST('-800:24:25.12' AS TIME(6)), 'n', -12345.678,
  'at', TIMESTAMP'2015-01-15 23:24:25.5', 'bytes', X'00FF', 'zero', CAST(0.001 AS DECIMAL(30, 10)),
  'large', CAST(-99999999999999999999.5 AS DECIMAL(40, 1)), 'unsigned', CAST(5 AS UNSIGNED), 'bit', b'101')
"""


def _random_json(pick: random.Random, depth: int = 0) -> Any:
    kind = pick.random()
    if depth > 4 or kind < 0.5:
        return pick.choice(
            [
                None,
                True,
                False,
                pick.randint(-(10 ** pick.randint(1, 18)), 10 ** pick.randint(1, 19)),
                pick.random() * 10.0 ** pick.randint(-20, 20),
                "".join(pick.choice(_CHARACTERS) for _ in range(pick.choice([0, 1, 5, 130, 300]))),
            ]
        )
    if kind < 0.75:
        return [_random_json(pick, depth + 1) for _ in range(pick.choice([0, 1, 3, 20]))]
    return {
        f"{'k' * pick.choice([1, 300])}{number}": _random_json(pick, depth + 1)
        for number in range(pick.choice([0, 1, 3, 10]))
    }


def _documents(rows: pa.Table) -> dict[str, str]:
    return {dict(row)["id"]: dict(row)["j"] for row in rows["columns"].to_pylist()}


def test_json_in_the_log_is_the_text_that_the_server_prints(schema: Schema) -> None:
    schema.run("CREATE TABLE t (id INT PRIMARY KEY, j JSON)")
    log = schema.change_log()
    position = log.begin("reader")
    pick = random.Random(3)
    documents = [json.dumps(_random_json(pick)) for _ in range(200)]
    with schema.connection.cursor() as cursor:
        cursor.executemany("INSERT INTO t VALUES (%s, %s)", list(enumerate(documents)))
    schema.run(
        f"INSERT INTO t SELECT 1000, {_OPAQUE}",
        "INSERT INTO t SELECT 1001, JSON_OBJECT(REPEAT('k', 60000), REPEAT('x', 70000), 'z', 70000)",
        "INSERT INTO t SELECT 1002, JSON_ARRAY(REPEAT('x', 70000), 70000, 4000000000, 1, -1, NULL)",
    )
    rows, _pass_at = log.read_chunk(f"{schema.name}.t", "{}")
    copied, logged = map(_documents, (rows, log.read(position, 10_000).rows))
    log.close()
    assert len(copied) == 203
    assert logged == copied


def test_a_table_created_from_a_query_is_one_transaction(schema: Schema) -> None:
    schema.run("CREATE TABLE t (id INT PRIMARY KEY)")
    log = schema.change_log()
    position = log.begin("reader")
    schema.run(
        "CREATE TABLE other (id INT PRIMARY KEY) SELECT 1 AS id UNION SELECT 2",
        "INSERT INTO t SELECT id FROM other",
    )
    batch = log.read(position, 100)
    assert [dict(row["columns"])["id"] for row in batch.rows.to_pylist()] == ["1", "2"]
    assert batch.caught_up
    log.close()


def test_a_snapshot_waits_until_logged_transactions_are_visible(
    schema: Schema, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that is logged, and whose rows no snapshot sees yet, owns its GTID."""
    owned = iter(["a:1#5,\nb:7#9:8#9", "b:8#9:9#9", "b:9#9"])
    queries = []

    def fetch_one(connection: Any, query: str, *arguments: Any) -> tuple[Any, ...]:
        if "gtid_owned" in query:
            queries.append(query)
            return (next(owned),)
        return real(connection, query, *arguments)

    real = flavors.fetch_one
    monkeypatch.setattr(flavors, "fetch_one", fetch_one)
    connection = connect(address_of(mysql.server_url(), "test"))
    flavors.MySQL().snapshot(connection)
    connection.close()
    assert len(queries) == 3, "a GTID that is owned later does not matter"


def test_a_server_without_gtids_is_refused(schema: Schema) -> None:
    connection = SimpleNamespace(get_server_info=lambda: "8.0.40")
    settings = {"@@gtid_mode": ("OFF_PERMISSIVE", "")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flavors, "fetch_one", lambda _connection, query: settings[query.split()[1].strip(",")])
        problem, hint = flavors.MySQL().problem(connection)
    assert "gtid_mode is OFF_PERMISSIVE" in problem
    assert "gtid_mode = ON" in hint


@pytest.fixture(scope="module")
def private() -> Iterator[PrivateServer]:
    """With an empty table `shop.t`."""
    if not mysql.is_installed():
        pytest.skip("no MySQL server is installed: make mysql-server")
    server = mysql.private_server(networking=True)
    with server.connect() as connection:
        connection.cursor().execute("CREATE DATABASE shop")
        connection.cursor().execute("CREATE TABLE shop.t (id INT PRIMARY KEY, a VARCHAR(9))")
    yield server
    server.remove()


def test_a_password_without_tls_and_socket(schema: Schema, private: PrivateServer) -> None:
    """`caching_sha2_password` encrypts the password by the server's key."""
    with private.connect() as connection:
        # It keeps what it has checked once.
        connection.cursor().execute("FLUSH PRIVILEGES")
    for parameters in ("", f"?ssl_ca={private.folder}/data/ca.pem"):
        url = f"mysql://capture:se%3Acret%2F1@127.0.0.1:{private.port}/{parameters}"
        connection = connect(address_of(url, "test"))
        assert captured_tables(connection, ["shop.*"], (), "test")
        connection.close()


def test_a_restored_server_is_noticed_though_its_log_has_the_same_length(
    schema: Schema, private: PrivateServer
) -> None:
    """The folder of the server is copied, and put back after more transactions. As many others of the same
    size follow: GTIDs and positions are the same as before."""
    server = private
    reader = connect(address_of(server.url, "test"))
    tables = captured_tables(reader, ["shop.*"], (), "test")
    reader.close()
    log = MySQLChangeLog(Capture("test", address_of(server.url, "test"), tables, server="MySQL"))
    first = log.begin("reader")
    log.close()
    server.stop()
    shutil.copytree(server.folder / "data", server.folder / "backup")
    server.start()
    for value in ("a", "b"):
        with server.connect() as connection:
            connection.cursor().execute(f"INSERT INTO shop.t VALUES (1, '{value}')")
        read = log.read(first, 100)
        assert read.rows.num_rows == 1
        newer = read.position
        log.close()
        if value == "b":
            break
        server.stop()
        shutil.rmtree(server.folder / "data")
        shutil.copytree(server.folder / "backup", server.folder / "data")
        server.start()
        older = newer
    assert (older.point, newer.marker["file"]) == (newer.point, older.marker["file"])
    with pytest.raises(IngestError, match="there are other transactions before") as raised:
        log.read(older, 100)
    assert raised.value.error_class == "SOURCE_LOG_LOST"
    log.close()


def test_what_a_copy_waits_for(schema: Schema) -> None:
    schema.run("CREATE TABLE t (id INT PRIMARY KEY)")
    log = schema.change_log()
    with schema.server.open_connection(database=schema.name) as other:
        gtid = f"{uuid.uuid4()}:1"
        cursor = other.cursor()
        cursor.execute(f"SET gtid_next = '{gtid}'")
        cursor.execute("BEGIN")
        cursor.execute("INSERT INTO t VALUES (1)")
        (reason,) = [reason for reason in log.open_transactions() if gtid in str(reason)]
        assert reason.code == "COPY_WAITS_FOR_TRANSACTION"
        assert reason.params["session"] == f"thread {other.thread_id()}"
        cursor.execute("COMMIT")
    assert gtid not in str(log.open_transactions())
    log.close()


def test_table_that_is_made_anew_while_it_is_read(schema: Schema, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are read before tables, and between them it comes back."""
    schema.run("CREATE TABLE t (id INT PRIMARY KEY)")
    read_tables = tables.read_tables

    def reading(connection: Any) -> dict[str, CapturedTable]:
        monkeypatch.setattr(tables, "read_tables", read_tables)
        return {name: replace(table, keys=()) for name, table in read_tables(connection).items()}

    monkeypatch.setattr(tables, "read_tables", reading)
    assert [table.keys for table in schema.capture().tables] == [("id",)]

"""`taut doctor` says what the server of a sink already has of its tables, and writes nothing there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import types as spark
from tests.sinks.benches import ORDERS
from tests.support import mariadb
from tests.support.postgresql import fresh_database

from tautochrone.errors import SinkError
from tautochrone.model.names import Fence, TableName
from tautochrone.model.reason import ReasonCode
from tautochrone.model.sink import SinkDeclaration
from tautochrone.sinks import compare_mirrored_tables, open_sink
from tautochrone.sinks.clickhouse.engines import open_engine
from tautochrone.sinks.clickhouse.options import server_options
from tautochrone.sinks.clickhouse.tables import ClickHouseTables
from tautochrone.sinks.common.existing import ExistingTable, TableToCompare

LINES = TableName("lake", ("default",), "lines")
SCHEMA = spark.StructType().add("id", "long").add("name", "string")
OTHER_TYPE = spark.StructType().add("id", "string").add("name", "string")


@dataclass
class Server:
    """An empty database in a server, and what its administrator does there."""

    format: str
    options: Mapping[str, str]
    execute: Callable[[str], object]
    shows: Callable[[], list[str]]
    """The names of all tables of the mirrors."""

    def compared(self, schema: Any, *tables: TableName) -> list[ExistingTable | SinkError]:
        declaration = SinkDeclaration(
            name="mirror",
            format=self.format,
            tables=tables or (ORDERS,),
            options=dict(self.options),
            key=("id",),
        )
        return list(compare_mirrored_tables(declaration, dict.fromkeys(tables or (ORDERS,), schema)))


def postgresql_server(_folder: Path) -> Iterator[Server]:
    url = fresh_database()
    with psycopg.connect(url, autocommit=True) as connection:

        def shows() -> list[str]:
            query = "SELECT tablename FROM pg_tables WHERE schemaname = 'lake'"
            return [row[0] for row in connection.execute(query).fetchall()]

        yield Server("postgresql", {"url": url}, connection.execute, shows)


def mariadb_server(_folder: Path) -> Iterator[Server]:
    if not mariadb.is_installed():
        pytest.skip("no MariaDB server is installed")
    name = mariadb.fresh_schema().replace("source", "mirror")
    options = {"url": mariadb.sink_url(name), "password": mariadb.SINK_PASSWORD}
    with mariadb.open_connection() as connection:
        cursor = connection.cursor()

        def shows() -> list[str]:
            cursor.execute(f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{name}'")
            return [row[0] for row in cursor.fetchall()]

        def execute(statement: str) -> None:
            cursor.execute(f"CREATE DATABASE IF NOT EXISTS {name}")
            cursor.execute(statement.replace("lake.", f"{name}."))

        yield Server("mariadb", options, execute, shows)
        cursor.execute(f"DROP DATABASE IF EXISTS {name}")


SERVERS = {"postgresql": postgresql_server, "mariadb": mariadb_server}


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    yield from SERVERS[request.param](tmp_path)


def ensure(server: Server) -> None:
    """What a first run does with the table."""
    sink = open_sink("mirror", server.format, server.options)
    sink.claim("a lake")
    sink.fence(Fence(1))
    sink.ensure(ORDERS, SCHEMA, ["id"], Fence(1))
    sink.close()


def test_before_the_first_run_nothing_is_there_and_nothing_is_written(server: Server) -> None:
    (orders, lines) = server.compared(SCHEMA, ORDERS, LINES)
    assert isinstance(orders, ExistingTable)
    assert isinstance(lines, ExistingTable)
    assert (orders.is_absent, lines.is_absent) == (True, True)
    assert str(orders).endswith("orders is created by the first delivery")
    assert server.shows() == []


def test_what_the_next_delivery_does_with_a_table(server: Server) -> None:
    ensure(server)
    tables = server.shows()
    more = spark.StructType([*SCHEMA.fields, spark.StructField("n", spark.IntegerType())])
    (same,), (wider,), (other,) = map(server.compared, (SCHEMA, more, OTHER_TYPE))
    assert isinstance(same, ExistingTable)
    assert (same.is_absent, same.lacks, same.rebuild) == (False, [], None)
    assert isinstance(wider, ExistingTable)
    assert (wider.lacks, wider.rebuild) == (["n"], None)
    assert str(wider).endswith("is there with the same columns, and gets n")
    assert isinstance(other, ExistingTable)
    assert other.rebuild is not None
    assert other.rebuild.code is ReasonCode.SINK_TABLE_REBUILT
    assert server.shows() == tables


def test_a_table_that_somebody_altered_hides_no_other_one(server: Server) -> None:
    ensure(server)
    server.execute("ALTER TABLE lake.orders DROP COLUMN _taut_hash")
    (orders, lines) = server.compared(SCHEMA, ORDERS, LINES)
    assert isinstance(orders, SinkError)
    assert orders.error_class == "SINK_COLUMNS_CHANGED"
    assert isinstance(lines, ExistingTable)
    assert lines.is_absent


@pytest.mark.parametrize("is_first", [True, False])
def test_a_table_of_somebody_else(server: Server, is_first: bool) -> None:
    if not is_first:
        ensure(server)
    elif server.format == "postgresql":
        server.execute("CREATE SCHEMA lake")
    server.execute("CREATE TABLE lake.lines (id INT)")
    (taken,) = server.compared(SCHEMA, LINES)
    assert isinstance(taken, SinkError)
    assert taken.error_class == "SINK_NAME_TAKEN"


def test_tables_of_clickhouse(tmp_path: Path) -> None:
    (options,) = server_options("mirror", {"url": f"clickhouse://embedded/{tmp_path}/clickhouse"})
    engine = open_engine("mirror", options)
    tables = ClickHouseTables("mirror", engine, options)
    assert tables.compare(TableToCompare(ORDERS, SCHEMA, ())).is_absent
    engine.close()
    sink = open_sink("mirror", "clickhouse", {"url": f"clickhouse://embedded/{tmp_path}/clickhouse"})
    sink.claim("a lake")
    sink.fence(Fence(1))
    sink.ensure(ORDERS, SCHEMA, [], Fence(1))
    sink.close()
    engine = open_engine("mirror", options)
    tables = ClickHouseTables("mirror", engine, options)
    same, other = (tables.compare(TableToCompare(ORDERS, schema, ())) for schema in (SCHEMA, OTHER_TYPE))
    assert (same.is_absent, same.lacks, same.rebuild) == (False, [], None)
    assert other.rebuild is not None
    engine.close()

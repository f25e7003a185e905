"""A schema of its own for each test, on one server for all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tautochrone.sources.mysql.change_log import Capture, MySQLChangeLog
from tautochrone.sources.mysql.connection import address_of, connect
from tautochrone.sources.mysql.tables import captured_tables
from tautochrone.testing import mariadb


@dataclass
class Schema:
    """An empty schema and a connection of the administrator to it."""

    name: str
    connection: Any

    def run(self, *statements: str) -> None:
        with self.connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())

    def capture(self) -> Capture:
        """Of all tables that there are now."""
        address = address_of(mariadb.server_url(), "test")
        connection = connect(address)
        try:
            tables = captured_tables(connection, [f"{self.name}.*"], (), "test")
        finally:
            connection.close()
        return Capture("test", address, tables)

    def change_log(self) -> MySQLChangeLog:
        return MySQLChangeLog(self.capture())


@pytest.fixture
def schema() -> Iterator[Schema]:
    if not mariadb.is_installed():
        pytest.skip("no MariaDB server is installed: apt-get install mariadb-server")
    name = mariadb.fresh_schema()
    connection = mariadb.open_connection(database=name)
    yield Schema(name, connection)
    connection.close()
    with mariadb.open_connection() as other:
        other.cursor().execute(f"DROP DATABASE {name}")

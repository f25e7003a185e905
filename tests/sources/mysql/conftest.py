"""A schema of its own for each test, on one server for all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.support import mariadb, mysql

from tautochrone.sources.mysql.change_log import Capture, MySQLChangeLog
from tautochrone.sources.mysql.connection import address_of, connect
from tautochrone.sources.mysql.tables import captured_tables


@dataclass
class Schema:
    """An empty schema and a connection of the administrator to it.

    Attributes:
        server: the module that started it: `mariadb` or `mysql`.
    """

    server: Any
    name: str
    connection: Any

    @property
    def is_mysql(self) -> bool:
        return self.server is mysql

    def run(self, *statements: str) -> None:
        with self.connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())

    def capture(self, *, follows_cascades: bool = False) -> Capture:
        """Of all tables that there are now."""
        address = address_of(self.server.server_url(), "test")
        connection = connect(address)
        try:
            tables = captured_tables(
                connection, [f"{self.name}.*"], (), "test", follows_cascades=follows_cascades
            )
        finally:
            connection.close()
        return Capture("test", address, tables, follows_cascades=follows_cascades)

    def change_log(self) -> MySQLChangeLog:
        return MySQLChangeLog(self.capture())


_SERVERS = {
    "mariadb": (mariadb, "no MariaDB server is installed: apt-get install mariadb-server"),
    "mysql": (mysql, "no MySQL server is installed: make mysql-server"),
}


def on(server: str) -> pytest.MarkDecorator:
    """CI runs the test on this server, and the long form on the other one too."""
    (other,) = _SERVERS.keys() - {server}
    servers = [server, pytest.param(other, marks=pytest.mark.slow)]
    return pytest.mark.parametrize("schema", servers, indirect=True)


@pytest.fixture(params=_SERVERS)
def schema(request: pytest.FixtureRequest) -> Iterator[Schema]:
    server, reason = _SERVERS[request.param]
    if not server.is_installed():
        pytest.skip(reason)
    name = server.fresh_schema()
    connection = server.open_connection(database=name)
    yield Schema(server, name, connection)
    connection.close()
    with server.open_connection() as other:
        other.cursor().execute(f"DROP DATABASE {name}")

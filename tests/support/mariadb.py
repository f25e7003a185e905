"""A MariaDB server with a row binlog, for tests and demos: the one that is installed on this machine."""

from __future__ import annotations

import atexit
import shutil
from collections.abc import Sequence
from functools import cache
from typing import Any

from tests.support.mysql_protocol import PrivateServer

__all__ = [
    "SINK_PASSWORD",
    "fresh_schema",
    "is_installed",
    "open_connection",
    "private_server",
    "restart_server",
    "server_url",
    "sink_url",
]

SINK_PASSWORD = "se:cret/2"


def is_installed() -> bool:
    return _program("mariadbd") is not None and _program("mariadb-install-db") is not None


def _program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")


def private_server(
    *, networking: bool = False, server_id: int = 7, options: Sequence[str] = ()
) -> PrivateServer:
    install = ["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]
    command = [
        str(_program("mariadbd")),
        "--no-defaults",
        "--binlog-format=ROW",
        f"--server-id={server_id}",
        "--log-slave-updates",
        "--character-set-server=utf8mb4",
    ]
    return PrivateServer(
        [str(_program("mariadb-install-db")), *install],
        [*command, *options],
        "REPLICATION SLAVE, BINLOG MONITOR",
        networking=networking,
    )


@cache
def _server() -> PrivateServer:
    """One server for this process, gone at its end."""
    server = private_server()
    atexit.register(server.remove)
    return server


def open_connection(**arguments: Any) -> Any:
    """A connection of the administrator in autocommit."""
    return _server().connect(**arguments)


def restart_server() -> None:
    """Restart it; all connections are cut, and the log goes on in a new file."""
    _server().restart()


def server_url() -> str:
    """The URL of a user with the rights that a capture needs and no others."""
    return _server().url


def fresh_schema() -> str:
    """The name of an empty schema."""
    return _server().fresh_schema()


def sink_url(database: str) -> str:
    """The URL of a user with the rights that a sink needs in a database, which is not there yet."""
    rights = (
        "CREATE, ALTER, DROP, INDEX, CREATE VIEW, CREATE TEMPORARY TABLES, SELECT, INSERT, UPDATE, DELETE"
    )
    with open_connection() as connection:
        cursor = connection.cursor()
        cursor.execute("CREATE USER IF NOT EXISTS sink@'%%' IDENTIFIED BY %s", (SINK_PASSWORD,))
        cursor.execute(f"GRANT {rights} ON {database}.* TO sink@'%'")
    return f"mariadb://sink@localhost/{database}?unix_socket={_server().socket}"

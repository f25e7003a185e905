"""A MySQL server with a row binlog and GTIDs, for tests: the one that is installed on this machine, or that
which `make mysql-server` has put into this environment."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.mysql_protocol import PrivateServer

__all__ = [
    "fresh_schema",
    "is_installed",
    "open_connection",
    "private_server",
    "restart_server",
    "server_url",
]


@cache
def _program() -> str | None:
    """MariaDB may have a `mysqld` too."""
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", ""), "/usr/sbin"]
    program = shutil.which("mysqld", path=os.pathsep.join(folders))
    if program is None:
        return None
    version = subprocess.run(
        [program, "--no-defaults", "--version"], capture_output=True, text=True, check=True
    )
    return None if "MariaDB" in version.stdout else program


def is_installed() -> bool:
    return _program() is not None


def private_server(*, networking: bool = False, server_id: int = 8) -> PrivateServer:
    program = str(_program())
    options = [
        "--mysqlx=OFF",
        f"--server-id={server_id}",
        "--gtid-mode=ON",
        "--enforce-gtid-consistency=ON",
        "--performance-schema=OFF",
    ]
    return PrivateServer(
        [program, "--no-defaults", "--initialize-insecure"],
        [program, "--no-defaults", *options],
        "REPLICATION SLAVE, REPLICATION CLIENT",
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

"""A MariaDB server with a row binlog, for tests and demos: the one that is installed on this machine."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

import pymysql

__all__ = [
    "SINK_PASSWORD",
    "fresh_schema",
    "is_installed",
    "open_connection",
    "restart_server",
    "server_url",
    "sink_url",
]

SINK_PASSWORD = "se:cret/2"

_START_TIMEOUT_S = 60


def is_installed() -> bool:
    return _program("mariadbd") is not None and _program("mariadb-install-db") is not None


def _program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")


class _Server:
    """One server for this process, gone at its end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.schemas = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._user = "--user=root"
        install = [_program("mariadb-install-db"), "--no-defaults", f"--datadir={folder}/data"]
        options = ["--auth-root-authentication-method=normal", "--skip-test-db", self._user]
        subprocess.run([*map(str, install), *options], check=True, capture_output=True)
        self.start()
        with open_connection(self) as connection:
            cursor = connection.cursor()
            cursor.execute("CREATE USER capture@'%' IDENTIFIED BY 'se:cret/1'")
            cursor.execute("GRANT REPLICATION SLAVE, BINLOG MONITOR, SELECT ON *.* TO capture@'%'")

    def start(self) -> None:
        options = [
            "--no-defaults",
            f"--datadir={self.folder}/data",
            f"--socket={self.socket}",
            "--skip-networking",
            "--log-bin=bin",
            "--binlog-format=ROW",
            "--server-id=7",
            "--character-set-server=utf8mb4",
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-buffer-pool-size=64M",
            self._user,
        ]
        log = (self.folder / "log").open("ab")
        self._process = subprocess.Popen([str(_program("mariadbd")), *options], stdout=log, stderr=log)
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            try:
                open_connection(self).close()
                return
            except pymysql.Error:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise
                time.sleep(0.05)

    @property
    def socket(self) -> str:
        return f"{self.folder}/socket"

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


@cache
def _server() -> _Server:
    server = _Server(Path(tempfile.mkdtemp(prefix="mariadb")))
    atexit.register(server.remove)
    return server


def open_connection(server: _Server | None = None, **arguments: Any) -> Any:
    """A connection of the administrator in autocommit."""
    socket = (server or _server()).socket
    return pymysql.connect(unix_socket=socket, user="root", autocommit=True, charset="utf8mb4", **arguments)


def restart_server() -> None:
    """Restart it; all connections are cut, and the log goes on in a new file."""
    _server().stop()
    _server().start()


def server_url() -> str:
    """The URL of a user with the rights that a capture needs and no others."""
    return f"mysql://capture:se%3Acret%2F1@localhost/?unix_socket={_server().socket}"


def fresh_schema() -> str:
    """The name of an empty schema."""
    server = _server()
    server.schemas += 1
    name = f"source_{server.schemas}"
    with open_connection() as connection:
        connection.cursor().execute(f"CREATE DATABASE {name}")
    return name


def sink_url(database: str) -> str:
    """The URL of a user with the rights that a sink needs in a database, which is not there yet."""
    rights = "CREATE, ALTER, INDEX, CREATE TEMPORARY TABLES, SELECT, INSERT, UPDATE, DELETE"
    with open_connection() as connection:
        cursor = connection.cursor()
        cursor.execute("CREATE USER IF NOT EXISTS sink@'%%' IDENTIFIED BY %s", (SINK_PASSWORD,))
        cursor.execute(f"GRANT {rights} ON {database}.* TO sink@'%'")
    return f"mariadb://sink@localhost/{database}?unix_socket={_server().socket}"

"""A MySQL server with a row binlog and GTIDs, for tests: the one that is installed on this machine, or that
which `make mysql-server` has put into this environment."""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

import pymysql

__all__ = ["PrivateServer", "fresh_schema", "is_installed", "open_connection", "restart_server", "server_url"]

_START_TIMEOUT_S = 120


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


class PrivateServer:
    """A server of its own, until it is removed.

    Args:
        networking: it also listens at `port` of this machine.
    """

    def __init__(self, *, networking: bool = False) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="mysql"))
        self.port = _free_port() if networking else 0
        self.schemas = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._arguments = [str(_program()), "--no-defaults", f"--datadir={self.folder}/data", "--user=root"]
        subprocess.run([*self._arguments, "--initialize-insecure"], check=True, capture_output=True)
        self.start()
        with self.connect() as connection:
            cursor = connection.cursor()
            cursor.execute("CREATE USER capture@'%' IDENTIFIED BY 'se:cret/1'")
            cursor.execute("GRANT REPLICATION SLAVE, REPLICATION CLIENT, SELECT ON *.* TO capture@'%'")

    def start(self) -> None:
        options = [
            f"--socket={self.socket}",
            f"--pid-file={self.folder}/pid",
            *([f"--port={self.port}", "--bind-address=127.0.0.1"] if self.port else ["--skip-networking"]),
            "--mysqlx=OFF",
            "--log-bin=bin",
            "--server-id=8",
            "--gtid-mode=ON",
            "--enforce-gtid-consistency=ON",
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-buffer-pool-size=64M",
            "--performance-schema=OFF",
        ]
        log = (self.folder / "log").open("ab")
        self._process = subprocess.Popen([*self._arguments, *options], stdout=log, stderr=log)
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            try:
                self.connect().close()
                return
            except pymysql.Error:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise
                time.sleep(0.05)

    @property
    def socket(self) -> str:
        return f"{self.folder}/socket"

    @property
    def url(self) -> str:
        """The URL of a user with the rights that a capture needs and no others."""
        return f"mysql://capture:se%3Acret%2F1@localhost/?unix_socket={self.socket}"

    def connect(self, **arguments: Any) -> Any:
        """A connection of the administrator in autocommit."""
        return pymysql.connect(
            unix_socket=self.socket, user="root", autocommit=True, charset="utf8mb4", **arguments
        )

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@cache
def _server() -> PrivateServer:
    server = PrivateServer()
    atexit.register(server.remove)
    return server


def open_connection(**arguments: Any) -> Any:
    """A connection of the administrator in autocommit."""
    return _server().connect(**arguments)


def restart_server() -> None:
    """Restart it; all connections are cut, and the log goes on in a new file."""
    _server().stop()
    _server().start()


def server_url() -> str:
    return _server().url


def fresh_schema() -> str:
    """The name of an empty schema."""
    server = _server()
    server.schemas += 1
    name = f"source_{server.schemas}"
    with open_connection() as connection:
        connection.cursor().execute(f"CREATE DATABASE {name}")
    return name

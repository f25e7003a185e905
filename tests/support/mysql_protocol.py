"""A server of the MySQL protocol with a row binlog, for tests: what MariaDB and MySQL have in common."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pymysql

__all__ = ["PrivateServer"]

_START_TIMEOUT_S = 120


class PrivateServer:
    """A server of its own, until it is removed.

    Args:
        install: the command that makes its data folder, without the folder.
        command: that starts it, without what is the same for all.
        rights: that a capture needs, besides SELECT.
        networking: it also listens at `port` of this machine.
    """

    def __init__(
        self, install: Sequence[str], command: Sequence[str], rights: str, *, networking: bool = False
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="mysql"))
        self.port = _free_port() if networking else 0
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._schemas = 0
        # A server that starts deletes the temporary tables in its TMPDIR, also those of other servers.
        temporary = self.folder / "tmp"
        temporary.mkdir()
        self._environment = {**os.environ, "TMPDIR": str(temporary)}
        subprocess.run(
            [*install, *self._data_options], check=True, capture_output=True, env=self._environment
        )
        self.start()
        with self.connect() as connection:
            cursor = connection.cursor()
            cursor.execute("CREATE USER capture@'%' IDENTIFIED BY 'se:cret/1'")
            cursor.execute(f"GRANT {rights}, SELECT ON *.* TO capture@'%'")

    @property
    def _data_options(self) -> list[str]:
        return [f"--datadir={self.folder}/data", "--user=root"]

    def start(self) -> None:
        options = [
            *self._data_options,
            f"--socket={self.socket}",
            f"--pid-file={self.folder}/pid",
            *([f"--port={self.port}", "--bind-address=127.0.0.1"] if self.port else ["--skip-networking"]),
            "--log-bin=bin",
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-buffer-pool-size=64M",
        ]
        log = (self.folder / "log").open("ab")
        self._process = subprocess.Popen(
            [*self._command, *options], stdout=log, stderr=log, env=self._environment
        )
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

    def fresh_schema(self) -> str:
        """The name of an empty schema."""
        self._schemas += 1
        name = f"source_{self._schemas}"
        with self.connect() as connection:
            connection.cursor().execute(f"CREATE DATABASE {name}")
        return name

    def restart(self) -> None:
        """All connections are cut, and the log goes on in a new file."""
        self.stop()
        self.start()

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def kill(self) -> None:
        """It ends in the middle of whatever it does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])

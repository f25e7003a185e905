"""Engine, transactions and migration of the MetaService's store. It must never know what the tables mean.

Writing transactions run one after the other, on both databases. So what a transaction has read is still true
when it commits, and no code of the store has to handle two writers. On SQLite they start with `BEGIN
IMMEDIATE`: a deferred transaction that reads first and writes later fails without waiting when another
process wrote in between. On PostgreSQL they take an advisory lock before their first snapshot. Readers never
wait: each reads one snapshot.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, OperationalError

from tautochrone.errors import MetaError
from tautochrone.meta.database.tables import metadata

__all__ = ["HEAD", "StoreDatabase", "parsed_url"]

HEAD = "r0006"
"""The newest migration. It is compared first, so that an up-to-date store never imports alembic."""

_UNRELEASED = frozenset(f"{number:04}" for number in range(1, 21))
"""Migrations of before the first release."""
_BUSY_TIMEOUT_MS = 30_000
_WRITERS_LOCK = 7_461_757_463
_BUSY_STATES = ("40001", "40P01", "55P03")
"""PostgreSQL's SQLSTATEs of a transaction that must be retried: serialization failure, deadlock, lock
timeout. They occur only when another application holds locks in the same database."""


class StoreDatabase:
    """One store's engine. Safe to share between threads; every process opens its own."""

    def __init__(self, url: str) -> None:
        parsed = parsed_url(url)
        self.is_sqlite = parsed.get_backend_name() == "sqlite"
        if self.is_sqlite and (not parsed.database or parsed.database == ":memory:"):
            raise MetaError(
                "META_STORE_NOT_DURABLE",
                f"The store {url} lives in memory and would forget every checkpoint",
                hint="Give a file: sqlite:////path/to/meta.db",
            )
        try:
            # A connection that PostgreSQL closed meanwhile is replaced before it is used.
            self.engine: Engine = create_engine(parsed, pool_pre_ping=not self.is_sqlite)
        except ImportError as error:
            raise MetaError(
                "META_DRIVER_MISSING",
                f"The store's driver {error.name or parsed.drivername} is not installed",
                hint="pip install 'tautochrone[postgres]'"
                if parsed.get_backend_name() == "postgresql"
                else f"install what SQLAlchemy needs for {parsed.drivername}",
            ) from error
        if self.is_sqlite:
            _prepare_sqlite(self.engine)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that only reads, from one snapshot of the store."""
        with self._guarded(), self.engine.connect() as connection:
            if not self.is_sqlite:
                connection = connection.execution_options(
                    isolation_level="REPEATABLE READ", postgresql_readonly=True
                )
            with connection.begin():
                yield connection

    @contextmanager
    def write(self, *, durable: bool = True) -> Iterator[Connection]:
        """A transaction that writes, after all earlier writers.

        A durable one survives a power failure, and so does everything committed before it. What a restart
        records again (versions of an open checkpoint, pins) need not be durable.
        """
        with self._guarded(), self.engine.connect() as connection:
            connection = connection.execution_options(tautochrone_write="FULL" if durable else "NORMAL")
            with connection.begin():
                if not self.is_sqlite:
                    _lock_writers(connection, durable=durable)
                yield connection

    def migrate(self, require_unused: Callable[[Connection], None] = lambda _: None) -> None:
        """Create the schema or bring it to `HEAD`. Several processes may call it at once.

        Args:
            require_unused: called in the transaction that brings an earlier release's schema to `HEAD`; its
                error leaves the schema as it is. It may read what the first release wrote.

        Raises:
            MetaError: `META_STORE_UNRELEASED`; `META_STORE_TOO_NEW`; `META_STORE_FAILED`, `META_STORE_BUSY`;
                those of `require_unused`.
        """
        if self.is_sqlite:
            self._make_folder()
        with self.read() as connection:
            revision = _revision(connection)
        if revision == HEAD:
            return
        with self.write() as connection:
            revision = _revision(connection)
            if revision is None:
                _create(connection)
            elif revision != HEAD:
                _upgrade(connection, revision, require_unused)

    def require_migrated(self) -> None:
        """Check that the store is as this release makes it. Changes nothing.

        Raises:
            MetaError: `META_STORE_MISSING`, `META_STORE_OTHER_RELEASE`, `META_STORE_UNRELEASED`;
                `META_STORE_FAILED`, `META_STORE_BUSY`.
        """
        # Connecting to SQLite would create the file.
        is_absent = self.is_sqlite and not Path(str(self.engine.url.database)).exists()
        revision = None if is_absent else self.revision()
        if revision is None:
            raise MetaError("META_STORE_MISSING", "This pipeline has not run yet", hint="`taut run` first")
        if revision in _UNRELEASED:
            raise _unreleased_error()
        if revision != HEAD:
            raise MetaError(
                "META_STORE_OTHER_RELEASE",
                f"The store has the schema {revision} of another release, and this one reads {HEAD}",
                hint="use the release that runs the pipeline; a store of an earlier release is migrated by "
                "the next run with this one",
            )

    def revision(self) -> str | None:
        """The newest migration that the store has had; None for an empty one. Changes nothing.

        Raises:
            MetaError: `META_STORE_FAILED`, `META_STORE_BUSY`.
        """
        with self.read() as connection:
            return _revision(connection)

    def close(self) -> None:
        """Close all connections of this process."""
        self.engine.dispose()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except (DataError, OverflowError, UnicodeEncodeError) as error:
            # The database cannot represent the value; the store itself has no error.
            raise MetaError(
                "VALUE_NOT_STORABLE", "A value is none that the store can keep or compare", sqlstate="22000"
            ) from error
        except DBAPIError as error:
            busy = _is_busy(error)
            raise MetaError(
                "META_STORE_BUSY" if busy else "META_STORE_FAILED",
                f"The store {self._shown_url()} "
                + ("stayed locked by another writer" if busy else f"failed: {error.orig}"),
                hint=None if busy else self._hint(error),
                retryable=busy or error.connection_invalidated or self._is_away(error),
            ) from error

    def _shown_url(self) -> str:
        """The URL without its password. A file's path is shown as it is on the disk."""
        url = self.engine.url
        return f"sqlite:///{url.database}" if self.is_sqlite else url.render_as_string()

    def _hint(self, error: DBAPIError) -> str | None:
        if not self.is_sqlite:
            return None
        if "full" in str(error.orig):
            return "free some space on its disk; what was written before is there"
        folder = Path(str(self.engine.url.database)).parent
        if not folder.is_dir() or os.access(folder, os.W_OK):
            return None
        return (
            "SQLite writes files beside the store also to read it, and its folder cannot be written: use an "
            "account or a mount that may write there, or ask a `taut serve` of it (meta.url = http://…)"
        )

    def _is_away(self, error: DBAPIError) -> bool:
        """Whether PostgreSQL could not be reached: the error has no SQLSTATE."""
        silent = getattr(error.orig, "sqlstate", None) is None
        return not self.is_sqlite and isinstance(error, OperationalError) and silent

    def _make_folder(self) -> None:
        url = self.engine.url
        try:
            Path(str(url.database)).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            # The text of the error would name the path, which settings may hold as a secret.
            raise MetaError(
                "META_STORE_FAILED",
                f"The folder of the store {url} cannot be made: {error.strerror}",
                hint="give a place where this user may write",
            ) from None


def parsed_url(url: str) -> URL:
    """The URL of a store; nothing is opened.

    Raises:
        MetaError: `META_URL_INVALID`.
    """
    try:
        parsed = make_url(url)
        if parsed.drivername in ("postgresql", "postgres"):
            # The usual form of the URL names no driver, and SQLAlchemy would choose psycopg2.
            parsed = parsed.set(drivername="postgresql+psycopg")
        parsed.get_dialect()
    except ImportError:
        return parsed  # its driver is missing: creating the engine says which
    except (ArgumentError, ValueError):
        # SQLAlchemy's own text quotes the URL, which may hold a password.
        raise MetaError(
            "META_URL_INVALID",
            "The store's URL is none that SQLAlchemy knows",
            hint="the setting meta.url; such as sqlite:////path/to/meta.db",
        ) from None
    return parsed


def _is_busy(error: DBAPIError) -> bool:
    locked = isinstance(error, OperationalError) and "locked" in str(error.orig)
    return locked or getattr(error.orig, "sqlstate", None) in _BUSY_STATES


def _lock_writers(connection: Connection, *, durable: bool) -> None:
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = {_BUSY_TIMEOUT_MS}")
    if not durable:
        connection.exec_driver_sql("SET LOCAL synchronous_commit = off")
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_WRITERS_LOCK})")


def _prepare_sqlite(engine: Engine) -> None:
    def on_connect(connection: Any, _record: Any) -> None:
        # pysqlite would start transactions late and never as IMMEDIATE; `on_begin` starts them instead.
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout={_BUSY_TIMEOUT_MS}")
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.close()

    def on_begin(connection: Connection) -> None:
        synchronous = connection.get_execution_options().get("tautochrone_write")
        if synchronous:
            connection.exec_driver_sql(f"PRAGMA synchronous={synchronous}")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if synchronous else "BEGIN")

    event.listen(engine, "connect", on_connect)
    event.listen(engine, "begin", on_begin)


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    revision: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return revision


def _create(connection: Connection) -> None:
    metadata.create_all(connection)
    connection.exec_driver_sql(
        "CREATE TABLE IF NOT EXISTS alembic_version (version_num VARCHAR(32) PRIMARY KEY)"
    )
    connection.execute(text("INSERT INTO alembic_version VALUES (:head)"), {"head": HEAD})


def _upgrade(connection: Connection, revision: str, require_unused: Callable[[Connection], None]) -> None:
    if revision in _UNRELEASED:
        raise _unreleased_error()
    # Imported here because it takes half a second, which only stores of older releases need.
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", "tautochrone.meta.database:migrations")
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    try:
        # Fails for a store of a later release, whoever uses it.
        ScriptDirectory.from_config(config).get_revision(revision)
        require_unused(connection)
        command.upgrade(config, "head")
    except CommandError as error:
        raise MetaError(
            "META_STORE_TOO_NEW",
            f"The store was written by another version of Tautochrone: {error}",
            hint="Install the newer version again, or start with a new store (taut run rebuilds it).",
        ) from error


def _unreleased_error() -> MetaError:
    return MetaError(
        "META_STORE_UNRELEASED",
        "The store was written before the first release of Tautochrone, from which on stores are kept",
        hint="start with a new store: move the file away, or give another database; taut run rebuilds "
        "from the lake what is published",
    )

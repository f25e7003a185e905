"""The connection of a sink to its database, and the database's errors as the sink's."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymysql
from pymysql.constants import CR, ER
from pymysql.cursors import SSCursor

from tautochrone.errors import SinkError
from tautochrone.model.database_sessions import MYSQL_LOGIN_REFUSED, mysql_session_sql
from tautochrone.sinks.common.errors import (
    login_refused_error,
    object_missing_error,
    rights_missing_error,
    statement_refused_error,
    table_busy_error,
)
from tautochrone.sinks.mariadb.options import MariadbOptions

__all__ = ["ConnectionLostError", "MariaDBDatabase"]

_SETTINGS = {
    # Without the strict mode a value that does not fit would be changed instead of refused.
    "sql_mode": "'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'",
    "innodb_strict_mode": "1",
    "innodb_lock_wait_timeout": "90",
    "lock_wait_timeout": "90",
}
_ALTERING_WAIT_S = 2
"""A statement that alters a table waits for its readers, and all later readers wait behind that statement."""
_OWNERS_WAIT_S = 90
_IDLE_S = 604_800
_IDLE_IN_TRANSACTION_S = 60
"""A process that stops in the middle of a commit must not hold the lock of the sink for ever."""
_RIGHTS_MISSING = (
    ER.DBACCESS_DENIED_ERROR,
    ER.TABLEACCESS_DENIED_ERROR,
    ER.COLUMNACCESS_DENIED_ERROR,
    ER.SPECIFIC_ACCESS_DENIED_ERROR,
)
_OBJECT_MISSING = (ER.NO_SUCH_TABLE, ER.BAD_TABLE_ERROR, ER.BAD_DB_ERROR, ER.BAD_FIELD_ERROR)
_NOT_REACHABLE = (
    ER.CON_COUNT_ERROR,
    ER.HOST_IS_BLOCKED,
    ER.SERVER_SHUTDOWN,
    ER.NEW_ABORTING_CONNECTION,
    1927,  # ER_CONNECTION_KILLED
    4031,  # ER_CLIENT_INTERACTION_TIMEOUT of MySQL
)


_PASSING = (
    ER.CHECKREAD,
    ER.LOCK_DEADLOCK,
    ER.LOCK_TABLE_FULL,
    # The server was made a replica, and another one takes over.
    ER.OPTION_PREVENTS_STATEMENT,
    ER.QUERY_INTERRUPTED,
    # Memory and disks that are full.
    ER.DISK_FULL,
    ER.OUTOFMEMORY,
    ER.OUT_OF_RESOURCES,
    ER.RECORD_FILE_FULL,
    1836,  # ER_READ_ONLY_MODE
    1969,  # ER_STATEMENT_TIMEOUT
)


class ConnectionLostError(SinkError):
    """The connection is gone, with the temporary tables of its transactions."""

    default_retryable = True


class MariaDBDatabase:
    """One connection, opened again when it was lost.

    Args:
        only_reads: the server refuses every statement that writes.
    """

    def __init__(self, sink: str, options: MariadbOptions, *, only_reads: bool = False) -> None:
        self._only_reads = only_reads
        self._sink = sink
        self._options = options
        self._connection: Any = None
        self._generation = 0
        self._exists = False

    @property
    def generation(self) -> int:
        return self._generation

    @contextmanager
    def transaction(self, isolation: str = "READ COMMITTED") -> Iterator[Any]:
        """A cursor in a transaction of its own.

        Raises:
            ConnectionLostError: whether the transaction was committed is not known.
            SinkError: `SINK_DATABASE_REFUSED`, `SINK_LOGIN_REFUSED`, `SINK_RIGHTS_MISSING`.
        """
        with self._errors(), self._connected().cursor() as cursor:
            cursor.execute(f"SET SESSION wait_timeout = {_IDLE_IN_TRANSACTION_S}")
            cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
            cursor.execute("START TRANSACTION")
            try:
                yield cursor
                cursor.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise
            cursor.execute(f"SET SESSION wait_timeout = {_IDLE_S}")

    @contextmanager
    def autocommit(self) -> Iterator[Any]:
        """A cursor for statements each of which is a transaction."""
        with self._errors(), self._connected().cursor() as cursor:
            yield cursor

    @contextmanager
    def altering(self) -> Iterator[Any]:
        """A cursor for statements that create, alter and rename tables, each of which is a transaction. One
        process at a time has it: the lock ends with its connection, and with the last statement of that.

        Raises:
            SinkError: `SINK_TABLE_BUSY`, the tables are used; what `transaction` raises.
        """
        digest = hashlib.md5(self._options.database.encode(), usedforsecurity=False).hexdigest()
        lock = f"taut_altering_{digest}"
        with self._errors(), self._connected().cursor() as cursor:
            self._set_waits(cursor, idle_s=_IDLE_IN_TRANSACTION_S, lock_s=_ALTERING_WAIT_S)
            try:
                cursor.execute("SELECT GET_LOCK(%s, %s)", (lock, _OWNERS_WAIT_S))
                if cursor.fetchone() != (1,):
                    raise table_busy_error(self._sink, "MariaDB", "another process alters tables")
                yield cursor
            finally:
                try:
                    cursor.execute("SELECT RELEASE_LOCK(%s)", (lock,))
                    self._set_waits(cursor, idle_s=_IDLE_S, lock_s=int(_SETTINGS["lock_wait_timeout"]))
                except Exception:
                    # The server releases it.
                    self.close()

    def _set_waits(self, cursor: Any, *, idle_s: int, lock_s: int) -> None:
        cursor.execute(f"SET SESSION wait_timeout = {idle_s}, SESSION lock_wait_timeout = {lock_s}")

    def stream(self, query: str) -> Iterator[tuple[Any, ...]]:
        """The rows of a query inside of `transaction`, not all of them in memory."""
        with self._connection.cursor(SSCursor) as cursor:
            cursor.execute(query)
            yield from cursor

    def use_database(self) -> None:
        """Make the sink's database the current one, without which some statements are refused."""
        self._exists = True
        with self._errors():
            self._connected().select_db(self._options.database)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and connection.open:
            # Not `close`, which would wait for a server that does not answer.
            connection._force_close()  # noqa: SLF001

    def _roll_back(self) -> None:
        try:
            self._connection.rollback()
        except Exception:
            self.close()

    def _connected(self) -> Any:
        if self._connection is not None and self._connection.open:
            return self._connection
        connection = pymysql.connect(
            **self._options.connection,
            user=self._options.user,
            password=self._options.password,
            database=self._options.database if self._exists else None,
            autocommit=True,
            charset="utf8mb4",
            connect_timeout=10,
            program_name=f"tautochrone sink {self._sink}",
        )
        with connection.cursor() as cursor:
            settings = {**_SETTINGS, "wait_timeout": str(_IDLE_S)}
            cursor.execute(mysql_session_sql(connection.get_server_info(), settings))
            if self._only_reads:
                cursor.execute("SET SESSION TRANSACTION READ ONLY")
        self._generation += 1
        self._connection = connection
        return connection

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (pymysql.Error, OSError) as error:
            code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
            text = " ".join(str(error.args[-1] if error.args else error).split())
            if code in MYSQL_LOGIN_REFUSED:
                self.close()
                settings = "the options url, user and password"
                raise login_refused_error(f"Sink {self._sink}", "MariaDB", text, settings=settings) from error
            if code in _RIGHTS_MISSING:
                self.close()
                raise rights_missing_error(
                    f"Sink {self._sink}",
                    "MariaDB",
                    text,
                    needed="The user needs CREATE, ALTER, DROP, INDEX, CREATE VIEW, CREATE TEMPORARY TABLES, "
                    "SELECT, INSERT, UPDATE and DELETE on the database.",
                ) from error
            is_cut = isinstance(error, OSError) or not code or code in _NOT_REACHABLE
            if is_cut or (code >= CR.CR_ERROR_FIRST and code <= CR.CR_ERROR_LAST):
                self.close()
                raise ConnectionLostError(
                    "SINK_NOT_REACHABLE",
                    f"Sink {self._sink}: the database does not answer: {text}",
                    hint="Is it up, and are host, port and TLS right?",
                    sqlstate="08006",
                ) from error
            if code == ER.LOCK_WAIT_TIMEOUT:
                raise table_busy_error(self._sink, "MariaDB", text) from error
            container = f"the database {self._options.database}"
            if code in _OBJECT_MISSING:
                if code == ER.BAD_DB_ERROR:
                    # The next connection begins without it.
                    self.close()
                raise object_missing_error(self._sink, "MariaDB", text, container) from error
            raise statement_refused_error(
                self._sink, "MariaDB", text, container, retryable=code in _PASSING, sqlstate="58000"
            ) from error

"""The connection of a sink to its database, and the database's errors as the sink's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.types.json import set_json_loads

from tautochrone.errors import SinkError
from tautochrone.model.database_sessions import (
    postgresql_database_is_missing,
    postgresql_login_is_refused,
    postgresql_session_sql,
    refused_settings_sql,
)
from tautochrone.sinks.common.errors import (
    database_missing_error,
    login_refused_error,
    object_missing_error,
    rights_missing_error,
    statement_refused_error,
    table_busy_error,
)
from tautochrone.sinks.postgresql.options import PostgresqlOptions

__all__ = ["ConnectionLostError", "PostgreSQLDatabase"]

_LOCK_WAIT = "90s"
_ALTERING_WAIT = "2s"
"""A statement that alters a table waits for its readers, and all later readers wait behind that statement."""
_SETTINGS = {
    "client_min_messages": "warning",
    # A process that stops in the middle of a commit must not hold the lock of the sink for ever.
    "idle_in_transaction_session_timeout": "60s",
    "lock_timeout": _LOCK_WAIT,
    # A commit that is answered must survive a crash of the server.
    "synchronous_commit": "on",
}
_NOT_REACHABLE = ("08", "53", "57P", "25P03")
"""SQLSTATE: no connection, too many, the server stops or starts, idle too long."""
_BUSY = "55P03"
"""SQLSTATE: a lock was not free in time."""
_PASSING = ("25006", "40", "55006", "57014", "58")
"""SQLSTATE: a standby that takes over, conflicts, objects in use, statements that were ended, errors of the
system below."""
_OBJECT_MISSING = ("42P01", "42703", "3F000")
"""SQLSTATE: no such table, column, schema."""
_CONNECT_REFUSED = re.compile(r'permission denied for database "')
"""libpq does not pass on the SQLSTATE of a connection that the server refuses, only its text."""


class ConnectionLostError(SinkError):
    """The connection is gone, with the temporary tables of its transactions."""

    default_retryable = True


class PostgreSQLDatabase:
    """One connection, opened again when it was lost.

    Args:
        only_reads: the server refuses every statement that writes.

    Attributes:
        generation: counts the connections: temporary tables of an earlier one are gone.
    """

    def __init__(self, sink: str, options: PostgresqlOptions, *, only_reads: bool = False) -> None:
        self._sink = sink
        self._options = options
        self._settings = {**_SETTINGS, "default_transaction_read_only": "on"} if only_reads else _SETTINGS
        self._connection: Any = None
        self.generation = 0

    @contextmanager
    def transaction(self, isolation: str = "") -> Iterator[Any]:
        """A cursor in a transaction of its own.

        Raises:
            ConnectionLostError: whether the transaction was committed is not known.
            SinkError: `SINK_DATABASE_REFUSED`, `SINK_LOGIN_REFUSED`, `SINK_RIGHTS_MISSING`,
                `SINK_DATABASE_MISSING`.
        """
        with self._errors(), self._connected().transaction(), self._connection.cursor() as cursor:
            if isolation:
                cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
            yield cursor

    @contextmanager
    def altering(self, cursor: Any) -> Iterator[None]:
        """In the open transaction of `cursor`: what alters tables waits a short time for their readers."""
        with cursor.connection.transaction():
            cursor.execute(f"SET LOCAL lock_timeout = '{_ALTERING_WAIT}'")
            yield
            cursor.execute(f"SET LOCAL lock_timeout = '{_LOCK_WAIT}'")

    def cursor(self, name: str) -> Any:
        """A cursor on the server, inside of `transaction`: not all rows are in memory."""
        return self._connection.cursor(name=name)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connected(self) -> Any:
        if self._connection is not None and not self._connection.closed:
            return self._connection
        given = {"user": self._options.user, "password": self._options.password}
        connection = psycopg.connect(
            make_conninfo(self._options.url, **{name: value for name, value in given.items() if value}),
            autocommit=True,
            client_encoding="UTF8",
            application_name=f"tautochrone sink {self._sink}"[:63],
            connect_timeout=10,
        )
        for statement in postgresql_session_sql(self._settings):
            connection.execute(statement)
        (refused,) = connection.execute(refused_settings_sql()).fetchone() or ("",)
        if refused:
            connection.close()
            raise SinkError(
                "SINK_DATABASE_REFUSED",
                f"Sink {self._sink}: queries may leave out rows of damaged pages: {refused} is on",
                hint="Set it to off where it is set: ALTER ROLE ... RESET, ALTER DATABASE ... RESET or ALTER "
                "SYSTEM RESET, or in the options of the url.",
                sqlstate="55000",
            )
        set_json_loads(json.loads, connection)
        self.generation += 1
        self._connection = connection
        return connection

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            text = " ".join(str(error).split())
            if postgresql_login_is_refused(error.sqlstate, text):
                self.close()
                settings = "the options url, user and password"
                raise login_refused_error(
                    f"Sink {self._sink}", "PostgreSQL", text, settings=settings
                ) from error
            if error.sqlstate == "42501" or (not error.sqlstate and _CONNECT_REFUSED.search(text)):
                self.close()
                raise rights_missing_error(
                    f"Sink {self._sink}",
                    "PostgreSQL",
                    text,
                    needed="The role needs CONNECT and CREATE on the database, or a schema of its own there.",
                ) from error
            if postgresql_database_is_missing(error.sqlstate, text):
                self.close()
                raise database_missing_error(f"Sink {self._sink}", "PostgreSQL", text) from error
            # Without a SQLSTATE the connection could not be made, or was cut.
            container = f"the schema {self._options.schema}"
            if error.sqlstate == _BUSY:
                raise table_busy_error(self._sink, "PostgreSQL", text) from error
            if error.sqlstate in _OBJECT_MISSING:
                raise object_missing_error(self._sink, "PostgreSQL", text, container) from error
            # The driver itself refuses values that it cannot send, such as texts with NUL.
            sqlstate = error.sqlstate or ("22000" if isinstance(error, psycopg.DataError) else "")
            if sqlstate and not sqlstate.startswith(_NOT_REACHABLE):
                is_retryable = sqlstate.startswith(_PASSING)
                raise statement_refused_error(
                    self._sink,
                    "PostgreSQL",
                    text,
                    container,
                    retryable=is_retryable,
                    sqlstate=sqlstate,
                ) from error
            self.close()
            raise ConnectionLostError(
                "SINK_NOT_REACHABLE",
                f"Sink {self._sink}: the database does not answer: {text}",
                hint="Is it up, and are host, port, database and TLS right?",
                sqlstate=error.sqlstate or "08006",
            ) from error

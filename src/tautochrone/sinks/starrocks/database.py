"""Statements over StarRocks's MySQL protocol, and its errors as the sink's."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import pymysql
from pymysql.constants import CR, ER
from pymysql.cursors import SSCursor

from tautochrone.errors import SinkError
from tautochrone.sinks.common.errors import login_refused_error, object_missing_error, rights_missing_error
from tautochrone.sinks.starrocks.options import StarrocksOptions

__all__ = ["SqlDatabase", "StarRocksDatabase"]

_IDLE_S = 60
"""A connection that was idle for longer may have been closed by the server."""
_NOT_REACHABLE = (ER.CON_COUNT_ERROR, ER.SERVER_SHUTDOWN)
_OBJECT_MISSING = (ER.NO_SUCH_TABLE, ER.BAD_TABLE_ERROR, ER.BAD_DB_ERROR, ER.BAD_FIELD_ERROR, 5501, 5502)
"""The last two are StarRocks's own for an unknown database and an unknown table."""
_RIGHTS_MISSING = (
    ER.DBACCESS_DENIED_ERROR,
    ER.TABLEACCESS_DENIED_ERROR,
    ER.SPECIFIC_ACCESS_DENIED_ERROR,
    5203,  # ERR_ACCESS_DENIED of StarRocks
)


class SqlDatabase(Protocol):
    """What the sink needs of a connection."""

    def query(self, statement: str, arguments: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query."""

    def stream(self, statement: str) -> Iterator[tuple[Any, ...]]:
        """The rows of a query, not all of them in memory."""

    def execute(self, statement: str, arguments: Sequence[Any] = ()) -> None:
        """A statement that is a transaction of its own."""

    def close(self) -> None: ...


class StarRocksDatabase:
    """One connection, opened again when it was lost."""

    def __init__(self, sink: str, options: StarrocksOptions) -> None:
        self._sink = sink
        self._options = options
        self._connection: Any = None
        self._used_at = 0.0

    def query(self, statement: str, arguments: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._errors(), self._connected().cursor() as cursor:
            cursor.execute(statement, arguments or None)
            return list(cursor.fetchall())

    def stream(self, statement: str) -> Iterator[tuple[Any, ...]]:
        with self._errors(), self._connected().cursor(SSCursor) as cursor:
            cursor.execute(statement)
            yield from cursor

    def execute(self, statement: str, arguments: Sequence[Any] = ()) -> None:
        with self._errors(), self._connected().cursor() as cursor:
            cursor.execute(statement, arguments or None)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and connection.open:
            # Not `close`, which would wait for a server that does not answer.
            connection._force_close()  # noqa: SLF001

    def _connected(self) -> Any:
        if self._connection is not None and time.monotonic() - self._used_at > _IDLE_S:
            try:
                self._connection.ping(reconnect=False)
            except (pymysql.Error, OSError):
                self.close()
        if self._connection is None or not self._connection.open:
            tls = {"ssl_ca": self._options.ssl_ca, "ssl_verify_cert": True} if self._options.ssl_ca else {}
            self._connection = pymysql.connect(
                host=self._options.host,
                port=self._options.sql_port,
                user=self._options.user,
                password=self._options.password,
                autocommit=True,
                charset="utf8mb4",
                connect_timeout=10,
                **tls,
            )
        self._used_at = time.monotonic()
        return self._connection

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (pymysql.Error, OSError) as error:
            code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
            text = " ".join(str(error.args[-1] if error.args else error).split())
            if code == ER.ACCESS_DENIED_ERROR:
                self.close()
                settings = "the options user and password"
                raise login_refused_error(
                    f"Sink {self._sink}", "StarRocks", text, settings=settings
                ) from error
            if code in _RIGHTS_MISSING:
                raise rights_missing_error(
                    f"Sink {self._sink}",
                    "StarRocks",
                    text,
                    needed="The user needs CREATE TABLE on the database, and ALTER, SELECT, INSERT and "
                    "DELETE on its tables.",
                ) from error
            is_client_error = CR.CR_ERROR_FIRST <= code <= CR.CR_ERROR_LAST
            if isinstance(error, OSError) or not code or code in _NOT_REACHABLE or is_client_error:
                self.close()
                raise SinkError(
                    "SINK_NOT_REACHABLE",
                    f"Sink {self._sink}: StarRocks does not answer statements: {text}",
                    hint="Is a frontend up, and are host and sql_port right?",
                    retryable=True,
                    sqlstate="08006",
                ) from error
            container = f"the database {self._options.database}"
            if code in _OBJECT_MISSING:
                raise object_missing_error(self._sink, "StarRocks", text, container) from error
            raise SinkError(
                "SINK_DATABASE_REFUSED",
                f"Sink {self._sink}: StarRocks refuses a statement: {text}",
                hint="What StarRocks says is the reason. With fewer backends than copies of a table, set the "
                f"option replication_num. If somebody altered what the sink created, drop {container}: the "
                "next run creates it, and delivers all rows.",
                # Of what passes by itself, such as backends that are away, it has no codes.
                retryable=True,
                sqlstate="58000",
                parameters={"sink": self._sink},
            ) from error

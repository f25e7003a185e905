"""Connections to the server, and its errors as ours. Values come as the text that the server prints."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pymysql
from pymysql.constants import CR, ER
from pymysql.converters import escape_string

from tautochrone.errors import IngestError, SettingsError, SourceUnreachableError
from tautochrone.model.database_sessions import MYSQL_LOGIN_REFUSED, MYSQL_UNKNOWN_DATABASE, mysql_session_sql
from tautochrone.redaction import keep_secret
from tautochrone.sources.capture.errors import database_missing_error, login_refused_error

__all__ = [
    "BINLOG_NOT_READABLE",
    "Address",
    "address_of",
    "connect",
    "fetch",
    "fetch_one",
    "text_literal",
    "translated_errors",
]

_CONNECT_TIMEOUT_S = 10
_READ_TIMEOUT_S = 600
_PARAMETERS = ("ssl_ca", "ssl_cert", "ssl_key", "ssl_verify_identity", "unix_socket")
_FILES = ("ssl_ca", "ssl_cert", "ssl_key")
_RIGHTS = (
    ER.SPECIFIC_ACCESS_DENIED_ERROR,
    ER.TABLEACCESS_DENIED_ERROR,
    ER.DBACCESS_DENIED_ERROR,
    ER.COLUMNACCESS_DENIED_ERROR,
)
_NOT_REACHABLE = (
    ER.CON_COUNT_ERROR,
    ER.HOST_IS_BLOCKED,
    ER.SERVER_SHUTDOWN,
    ER.NEW_ABORTING_CONNECTION,
    1927,  # ER_CONNECTION_KILLED
)
BINLOG_NOT_READABLE = 1236
"""ER_MASTER_FATAL_ERROR_READING_BINLOG: the file is gone, or shorter than the position."""
_TABLE_CHANGED = 1412
"""ER_TABLE_DEF_CHANGED: the table was changed after the snapshot was taken."""


@dataclass(frozen=True, slots=True)
class Address:
    """Arguments of a connection."""

    arguments: Mapping[str, Any] = field(repr=False)


def address_of(url: str, capture: str) -> Address:
    """From `mysql://user:password@host:3306/?ssl_ca=…`; the password is masked in all texts from now on.

    Raises:
        SettingsError: `CAPTURE_URL_INVALID`.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or 3306
        parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    except ValueError as error:
        raise _invalid_url_error(capture, str(error)) from error
    unknown = set(parameters) - set(_PARAMETERS)
    if not url:
        raise _invalid_url_error(capture, "it is empty")
    if parts.scheme not in ("mysql", "mariadb"):
        raise _invalid_url_error(capture, f"it begins with {parts.scheme}://")
    if unknown:
        raise _invalid_url_error(capture, f"it has the unknown parameters {', '.join(sorted(unknown))}")
    missing = [n for n in _FILES if n in parameters and not Path(parameters[n]).is_file()]
    if missing:
        # Without this the connection would fail as one to a server that is down.
        raise _invalid_url_error(capture, f"{missing[0]}={parameters[missing[0]]} is no file")
    password = unquote(parts.password or "")
    if password:
        keep_secret(password)
    arguments: dict[str, Any] = {
        "host": parts.hostname or "127.0.0.1",
        "port": port,
        "user": unquote(parts.username or ""),
        "password": password,
        **parameters,
    }
    if "ssl_verify_identity" in parameters:
        arguments["ssl_verify_identity"] = parameters["ssl_verify_identity"].lower() in ("1", "true", "yes")
    if "ssl_ca" in parameters:
        arguments["ssl_verify_cert"] = True
    return Address(arguments)


def _invalid_url_error(capture: str, problem: str) -> SettingsError:
    return SettingsError(
        "CAPTURE_URL_INVALID",
        f"The url of the capture {capture} is not understood: {problem}",
        hint=f"mysql://user:password@host:3306/; parameters behind ? are {', '.join(_PARAMETERS)}",
    )


class _Connection(pymysql.connections.Connection):  # type: ignore[misc]
    def _create_ssl_ctx(self, sslp: Mapping[str, Any]) -> ssl.SSLContext:
        """Without an authority nothing is verified, and to load those of the machine takes most of the time
        of a connection."""
        context: ssl.SSLContext = super()._create_ssl_ctx(sslp) if sslp else _unverified_context()
        return context


@cache
def _unverified_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def connect(address: Address, timeout_s: int = _CONNECT_TIMEOUT_S) -> Any:
    """A connection in autocommit, with values as text.

    Args:
        timeout_s: until it is there.

    Raises:
        pymysql.Error: see `translated_errors`.
    """
    connection = _Connection(
        **address.arguments,
        # By the statement below: the driver could not say it without encoders.
        autocommit=None,
        charset="utf8mb4",
        conv={},
        connect_timeout=timeout_s,
        read_timeout=_READ_TIMEOUT_S,
        program_name="tautochrone",
    )
    connection.query(mysql_session_sql(connection.get_server_info(), {}))
    return connection


def fetch(connection: Any, query: str, arguments: Sequence[str] | None = None) -> list[tuple[Any, ...]]:
    """All rows. Arguments are text; without decoders and encoders the driver would not quote them."""
    with connection.cursor() as cursor:
        cursor.execute(query if arguments is None else query % tuple(map(text_literal, arguments)))
        return list(cursor.fetchall())


def text_literal(text: str) -> str:
    """A text in SQL, as `connect` sets the SQL mode."""
    return f"'{escape_string(text)}'"


def fetch_one(connection: Any, query: str, arguments: Sequence[str] | None = None) -> tuple[Any, ...]:
    """The row of a query that always has one."""
    return fetch(connection, query, arguments)[0]


@contextmanager
def translated_errors(capture: str) -> Iterator[None]:
    """Errors of the database become ours.

    Raises:
        SourceUnreachableError: `CAPTURE_DATABASE_NOT_REACHABLE`: also when the connection is cut.
        SourceLoginRefusedError: `CAPTURE_LOGIN_REFUSED`.
        IngestError: `CAPTURE_RIGHTS_MISSING`; `CAPTURE_DATABASE_MISSING`; `SOURCE_LOG_LOST`;
            `CAPTURE_QUERY_FAILED`.
    """
    try:
        yield
    except (pymysql.Error, OSError) as error:
        code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        sentence = _sentence(error)
        if code in MYSQL_LOGIN_REFUSED:
            raise login_refused_error(capture, sentence) from error
        if code == MYSQL_UNKNOWN_DATABASE:
            raise database_missing_error(capture, sentence) from error
        if code in _RIGHTS:
            raise IngestError(
                "CAPTURE_RIGHTS_MISSING",
                f"The user of the capture {capture} lacks a right: {sentence}",
                hint="it needs REPLICATION SLAVE and BINLOG MONITOR (MySQL: REPLICATION CLIENT) on *.*, and "
                "SELECT on the captured tables: docs/capture.md has the SQL",
                sqlstate="42501",
            ) from error
        if code == BINLOG_NOT_READABLE:
            raise IngestError(
                "SOURCE_LOG_LOST",
                f"The server cannot send the binary log to the capture {capture}: {sentence}",
                hint="copy the database again: --full-refresh of the log table and of the captured tables; "
                "binlog_expire_logs_seconds says how long the server keeps its log",
            ) from error
        is_cut = isinstance(error, OSError) or code in _NOT_REACHABLE or code >= CR.CR_ERROR_FIRST or not code
        if is_cut:
            raise SourceUnreachableError(
                "CAPTURE_DATABASE_NOT_REACHABLE",
                f"The database of the capture {capture} does not answer: {sentence}",
                hint="is it up, and are host, port and TLS in the capture's url right?",
                sqlstate="08006",
                retryable=True,
            ) from error
        raise IngestError(
            "CAPTURE_QUERY_FAILED",
            f"The database of the capture {capture} refused a query: {sentence}",
            sqlstate="58000",
            retryable=code in (_TABLE_CHANGED, ER.LOCK_DEADLOCK, ER.LOCK_WAIT_TIMEOUT),
        ) from error


def _sentence(error: Exception) -> str:
    return " ".join(str(error.args[-1] if error.args else error).split())

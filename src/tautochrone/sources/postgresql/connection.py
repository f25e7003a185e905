"""Connections to the database, and its errors as ours.

Values come as text. What decides how PostgreSQL prints a value, and what a statement means, is set for each
connection: see `model.database_sessions`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tautochrone.errors import IngestError, SettingsError, SourceUnreachableError
from tautochrone.model.database_sessions import (
    postgresql_database_is_missing,
    postgresql_encoding_is_unknown,
    postgresql_login_is_refused,
    postgresql_session_sql,
    refused_settings_sql,
)
from tautochrone.redaction import keep_secret
from tautochrone.sources.capture.errors import (
    database_missing_error,
    login_refused_error,
    undecodable_text_error,
)

__all__ = ["checked_url", "connect", "lsn_number", "lsn_text", "translated_errors"]

_SETTINGS = {
    # A warning says that the publication is missing.
    "client_min_messages": "notice",
    # What we write is a message into the log, if at all: no standby must confirm it.
    "synchronous_commit": "local",
}
_CONNECT_TIMEOUT_S = "10"
_NOT_REACHABLE = ("08", "53", "57P")
"""SQLSTATE: no connection, too many of them, the server stops or starts."""


def checked_url(url: str, capture: str) -> str:
    """The connection string; its password is masked in all texts from now on.

    Raises:
        SettingsError: `CAPTURE_URL_INVALID`.
    """
    try:
        parts = conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        raise SettingsError(
            "CAPTURE_URL_INVALID",
            f"The url of the capture {capture} is no connection string of PostgreSQL: {str(error).strip()}",
            hint="postgresql://user:password@host:5432/database?sslmode=verify-full, "
            "or host=… dbname=…; parameters are those of libpq",
        ) from error
    if parts.get("password"):
        keep_secret(str(parts["password"]))
    return make_conninfo(
        url,
        connect_timeout=parts.get("connect_timeout") or _CONNECT_TIMEOUT_S,
        application_name=parts.get("application_name") or "tautochrone",
    )


def connect(url: str) -> psycopg.Connection:
    """A connection in autocommit.

    Raises:
        IngestError: `CAPTURE_SERVER_NOT_USABLE`.
        psycopg.Error: see `translated_errors`.
    """
    connection = psycopg.connect(url, autocommit=True, client_encoding="UTF8")
    try:
        for statement in postgresql_session_sql(_SETTINGS):
            connection.execute(statement.encode())
        _require_whole_pages(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _require_whole_pages(connection: psycopg.Connection) -> None:
    row = connection.execute(refused_settings_sql().encode()).fetchone()
    if row and row[0]:
        raise IngestError(
            "CAPTURE_SERVER_NOT_USABLE",
            f"Queries of {connection.info.user} in the database {connection.info.dbname} may leave out rows "
            f"of damaged pages: {row[0]} is on",
            hint="set it to off where it is set: ALTER ROLE ... RESET, ALTER DATABASE ... RESET or ALTER "
            "SYSTEM RESET, or in the connection string's options",
            sqlstate="55000",
        )


@contextmanager
def translated_errors(capture: str) -> Iterator[None]:
    """Errors of the database become ours.

    Raises:
        SourceUnreachableError: `CAPTURE_DATABASE_NOT_REACHABLE`: also when the connection is cut.
        SourceLoginRefusedError: `CAPTURE_LOGIN_REFUSED`.
        IngestError: `CAPTURE_RIGHTS_MISSING`; `CAPTURE_SERVER_NOT_USABLE`; `CAPTURE_DATABASE_MISSING`;
            `CAPTURE_SLOT_IN_USE`; `CAPTURE_SLOT_NOT_USABLE`; `CAPTURED_TEXT_NOT_DECODABLE`;
            `CAPTURE_QUERY_FAILED`.
    """
    try:
        yield
    except errors.InsufficientPrivilege as error:
        is_filtered = error.diag.source_function == "check_enable_rls"
        raise IngestError(
            "CAPTURE_RIGHTS_MISSING",
            f"The role of the capture {capture} lacks a right: {_sentence(error)}",
            hint="row security would leave out rows of a copy: ALTER ROLE ... BYPASSRLS, or leave the table "
            "out with exclude=[...]"
            if is_filtered
            else "it needs LOGIN, REPLICATION, and SELECT on the captured tables; the publication is made by "
            "the owner of the tables, or by hand: docs/capture.md has the SQL",
            sqlstate=error.sqlstate,
        ) from error
    except (errors.UntranslatableCharacter, errors.CharacterNotInRepertoire) as error:
        raise undecodable_text_error(f"The database of the capture {capture}", _sentence(error)) from error
    except errors.ConfigurationLimitExceeded as error:
        raise IngestError(
            "CAPTURE_SLOT_NOT_USABLE",
            f"The server of the capture {capture} has no replication slot left: {_sentence(error)}",
            hint="drop slots that nobody reads, with SELECT pg_drop_replication_slot('…'), or raise "
            "max_replication_slots and restart the server",
            sqlstate=error.sqlstate,
            retryable=True,
        ) from error
    except errors.ObjectInUse as error:
        raise IngestError(
            "CAPTURE_SLOT_IN_USE",
            f"Another session reads the replication slot of the capture {capture}: {_sentence(error)}",
            hint="end that session, with SELECT pg_terminate_backend(…); if another lake reads the slot, "
            "each needs one of its own: capture(…, slot=…), and --full-refresh of the log table and of the "
            "captured tables",
            sqlstate=error.sqlstate,
            retryable=True,
        ) from error
    except psycopg.Error as error:
        if postgresql_login_is_refused(error.sqlstate, str(error)):
            raise login_refused_error(capture, _sentence(error)) from error
        if postgresql_database_is_missing(error.sqlstate, str(error)):
            raise database_missing_error(capture, _sentence(error)) from error
        if postgresql_encoding_is_unknown(str(error)):
            raise IngestError(
                "CAPTURE_SERVER_NOT_USABLE",
                f"The database of the capture {capture} cannot be captured: {_sentence(error)}",
                hint="convert the database to another encoding first, such as UTF8",
                sqlstate="55000",
            ) from error
        # Without a SQLSTATE the connection could not be made, or was cut.
        if error.sqlstate and not error.sqlstate.startswith(_NOT_REACHABLE):
            raise IngestError(
                "CAPTURE_QUERY_FAILED",
                f"The database of the capture {capture} refused a query: {_sentence(error)}",
                sqlstate=error.sqlstate,
            ) from error
        raise SourceUnreachableError(
            "CAPTURE_DATABASE_NOT_REACHABLE",
            f"The database of the capture {capture} does not answer: {_sentence(error)}",
            hint="is it up, and are host, port and TLS in the capture's url right?",
            sqlstate=error.sqlstate or "08006",
            retryable=True,
        ) from error


def _sentence(error: psycopg.Error) -> str:
    return " ".join(str(error).split())


def lsn_number(text: str) -> int:
    """
    >>> lsn_number("1/10")
    4294967312
    """
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) | int(low, 16)


def lsn_text(point: int) -> str:
    """
    >>> lsn_text(4294967312)
    '1/10'
    """
    return f"{point >> 32:X}/{point & 0xFFFFFFFF:X}"

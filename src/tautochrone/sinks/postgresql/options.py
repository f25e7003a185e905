"""The options of a sink of the format `postgresql`, and how it is opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tautochrone.model.sink import Sink
from tautochrone.sinks.common.options import (
    invalid_option_error,
    needs_package,
    positive_number,
    refuse_password,
    require_known,
    require_option,
)

__all__ = ["PostgresqlOptions", "examine_postgresql_sink", "open_postgresql_sink", "postgresql_options"]

_NAMES = frozenset({"url", "user", "password", "schema", "chunk_rows", "key"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresqlOptions:
    """Options with their types.

    Attributes:
        url: a connection string of libpq.
        schema: has the mirrored tables; created if it is missing.
    """

    url: str
    user: str = ""
    password: str = field(default="", repr=False)
    schema: str = "lake"
    chunk_rows: int = 100_000


def postgresql_options(name: str, options: Mapping[str, str]) -> PostgresqlOptions:
    """Read the options of a sink.

    Raises:
        SinkError: `SINK_OPTION_MISSING`, `SINK_OPTION_INVALID`.

    Example:
        >>> postgresql_options("mirror", {"url": "postgresql://reports@db.example/shop"}).schema
        'lake'
    """
    hint = "postgresql://user@host:5432/database?sslmode=verify-full, or host=… dbname=…"
    url = require_option(name, "postgresql", options, "url", hint)
    require_known(name, options, _NAMES)
    with needs_package(name, "psycopg", "postgres"):
        from psycopg import ProgrammingError
        from psycopg.conninfo import conninfo_to_dict
    try:
        parts = conninfo_to_dict(url)
    except ProgrammingError:
        # The error has the text in it, which may have a password.
        raise invalid_option_error(
            name, "has a url that is no connection string of PostgreSQL", f"Write {hint}."
        ) from None
    password = parts.get("password")
    refuse_password(name, str(password) if password else None)
    return PostgresqlOptions(
        url=options["url"],
        user=options.get("user", ""),
        password=options.get("password", ""),
        schema=options.get("schema", "lake"),
        chunk_rows=positive_number(name, options, "chunk_rows", 100_000, " of rows"),
    )


def open_postgresql_sink(name: str, options: Mapping[str, str]) -> Sink:
    """Open a sink; of an empty database, create its schema.

    Raises:
        SinkError: what is wrong with the options, `SINK_PACKAGE_MISSING`, or `SINK_NOT_REACHABLE`.
    """
    parsed = postgresql_options(name, options)
    with needs_package(name, "psycopg", "postgres"):
        from tautochrone.sinks.postgresql.sink import PostgresqlSink
    return PostgresqlSink(name, parsed)


def observe_postgresql_sink(name: str, options: Mapping[str, str]) -> Sink:
    """Open a sink only to look at it: the server refuses whatever would write.

    Raises:
        SinkError: as `open_postgresql_sink`; where something of the sink is missing, `SINK_OBJECT_MISSING`.
    """
    parsed = postgresql_options(name, options)
    with needs_package(name, "psycopg", "postgres"):
        from tautochrone.sinks.postgresql.sink import PostgresqlSink
    return PostgresqlSink(name, parsed, only_looks=True)


def examine_postgresql_sink(name: str, options: Mapping[str, str]) -> str:
    """Log in, and write nothing; a sentence about what answers.

    Raises:
        SinkError: as `open_postgresql_sink`, and `SINK_LOGIN_REFUSED`.
    """
    parsed = postgresql_options(name, options)
    with needs_package(name, "psycopg", "postgres"):
        from tautochrone.sinks.postgresql.database import PostgreSQLDatabase
    database = PostgreSQLDatabase(name, parsed)
    try:
        with database.transaction() as cursor:
            cursor.execute("SELECT current_setting('server_version'), current_database(), current_user")
            version, catalog, user = cursor.fetchone()
    finally:
        database.close()
    return f"PostgreSQL {version} lets {user} into the database {catalog}"

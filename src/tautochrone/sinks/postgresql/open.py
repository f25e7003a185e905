"""The factory of the format `postgresql`."""

from __future__ import annotations

from collections.abc import Mapping

from tautochrone.model.sink import Sink
from tautochrone.sinks.common.options import needs_package
from tautochrone.sinks.postgresql.options import postgresql_options

__all__ = ["examine_postgresql_sink", "open_postgresql_sink"]


def open_postgresql_sink(name: str, options: Mapping[str, str]) -> Sink:
    """Open a sink; of an empty database, create its schema.

    Raises:
        SinkError: what is wrong with the options, `SINK_PACKAGE_MISSING`, or `SINK_NOT_REACHABLE`.
    """
    parsed = postgresql_options(name, options)
    with needs_package(name, "psycopg", "postgres"):
        from tautochrone.sinks.postgresql.sink import PostgresqlSink
    return PostgresqlSink(name, parsed)


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

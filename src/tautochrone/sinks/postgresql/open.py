"""The factory of the format `postgresql`."""

from __future__ import annotations

from collections.abc import Mapping

from tautochrone.model.sink import Sink
from tautochrone.sinks.common.packages import needs_package
from tautochrone.sinks.postgresql.options import postgresql_options

__all__ = ["open_postgresql_sink"]


def open_postgresql_sink(name: str, options: Mapping[str, str]) -> Sink:
    """Open a sink; of an empty database, create its schema.

    Raises:
        SinkError: what is wrong with the options, `SINK_PACKAGE_MISSING`, or `SINK_NOT_REACHABLE`.
    """
    parsed = postgresql_options(name, options)
    with needs_package(name, "psycopg", "postgres"):
        from tautochrone.sinks.postgresql.sink import PostgresqlSink
    return PostgresqlSink(name, parsed)

"""The factory of the format `postgresql`."""

from __future__ import annotations

from collections.abc import Mapping

from tautochrone.errors import SinkError
from tautochrone.model.sink import Sink
from tautochrone.sinks.postgresql.options import postgresql_options

__all__ = ["open_postgresql_sink"]


def open_postgresql_sink(name: str, options: Mapping[str, str]) -> Sink:
    """Open a sink; of an empty database, create its schema.

    Raises:
        SinkError: what is wrong with the options, `SINK_PACKAGE_MISSING`, or `SINK_NOT_REACHABLE`.
    """
    parsed = postgresql_options(name, options)
    try:
        from tautochrone.sinks.postgresql.sink import PostgresqlSink
    except ImportError as error:
        raise SinkError(
            "SINK_PACKAGE_MISSING",
            f"Sink {name}: the Python package psycopg is not installed",
            hint="pip install 'tautochrone[postgres]'",
        ) from error
    return PostgresqlSink(name, parsed)

"""The factory of the format `mariadb`."""

from __future__ import annotations

from collections.abc import Mapping

from tautochrone.errors import SinkError
from tautochrone.model.sink import Sink
from tautochrone.sinks.mariadb.options import mariadb_options

__all__ = ["open_mariadb_sink"]


def open_mariadb_sink(name: str, options: Mapping[str, str]) -> Sink:
    """Open a sink; of an empty server, create its database.

    Raises:
        SinkError: what is wrong with the options, `SINK_PACKAGE_MISSING`, or `SINK_NOT_REACHABLE`.
    """
    parsed = mariadb_options(name, options)
    try:
        from tautochrone.sinks.mariadb.sink import MariadbSink
    except ImportError as error:
        raise SinkError(
            "SINK_PACKAGE_MISSING",
            f"Sink {name}: the Python package pymysql is not installed",
            hint="pip install 'tautochrone[mysql]'",
        ) from error
    return MariadbSink(name, parsed)

"""The factory of the format `mariadb`."""

from __future__ import annotations

from collections.abc import Mapping

from tautochrone.model.sink import Sink
from tautochrone.sinks.common.packages import needs_package
from tautochrone.sinks.mariadb.options import mariadb_options

__all__ = ["open_mariadb_sink"]


def open_mariadb_sink(name: str, options: Mapping[str, str]) -> Sink:
    """Open a sink; of an empty server, create its database.

    Raises:
        SinkError: what is wrong with the options, `SINK_PACKAGE_MISSING`, or `SINK_NOT_REACHABLE`.
    """
    parsed = mariadb_options(name, options)
    with needs_package(name, "pymysql", "mysql"):
        from tautochrone.sinks.mariadb.sink import MariadbSink
    return MariadbSink(name, parsed)

"""The factory of the format `starrocks`."""

from __future__ import annotations

from collections.abc import Mapping

from tautochrone.model.sink import Sink
from tautochrone.sinks.common.options import needs_package
from tautochrone.sinks.starrocks.options import starrocks_options

__all__ = ["examine_starrocks_sink", "open_starrocks_sink"]


def open_starrocks_sink(name: str, options: Mapping[str, str]) -> Sink:
    """Open a sink; of a server without its database, create the database.

    Raises:
        SinkError: what is wrong with the options, `SINK_PACKAGE_MISSING`, `SINK_NOT_REACHABLE`,
            or `SINK_SERVER_TOO_OLD`.
    """
    parsed = starrocks_options(name, options)
    with needs_package(name, "pymysql", "mysql"):
        from tautochrone.sinks.starrocks.database import StarRocksDatabase
    from tautochrone.sinks.starrocks.client import TransactionClient
    from tautochrone.sinks.starrocks.sink import StarrocksSink

    return StarrocksSink(name, parsed, StarRocksDatabase(name, parsed), TransactionClient(name, parsed))


def examine_starrocks_sink(name: str, options: Mapping[str, str]) -> str:
    """Log in, and write nothing; a sentence about what answers.

    Raises:
        SinkError: as `open_starrocks_sink`, and `SINK_LOGIN_REFUSED`.
    """
    parsed = starrocks_options(name, options)
    with needs_package(name, "pymysql", "mysql"):
        from tautochrone.sinks.starrocks.database import StarRocksDatabase
    database = StarRocksDatabase(name, parsed)
    try:
        ((version,),) = database.query("SELECT current_version()")
    finally:
        database.close()
    return f"StarRocks {version} lets {parsed.user} in"

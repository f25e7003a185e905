"""The factory of the format `mariadb`."""

from __future__ import annotations

from collections.abc import Mapping

from tautochrone.model.sink import Sink
from tautochrone.sinks.common.options import needs_package
from tautochrone.sinks.mariadb.options import mariadb_options

__all__ = ["examine_mariadb_sink", "open_mariadb_sink"]


def open_mariadb_sink(name: str, options: Mapping[str, str]) -> Sink:
    """Open a sink; of an empty server, create its database.

    Raises:
        SinkError: what is wrong with the options, `SINK_PACKAGE_MISSING`, or `SINK_NOT_REACHABLE`.
    """
    parsed = mariadb_options(name, options)
    with needs_package(name, "pymysql", "mysql"):
        from tautochrone.sinks.mariadb.sink import MariadbSink
    return MariadbSink(name, parsed)


def examine_mariadb_sink(name: str, options: Mapping[str, str]) -> str:
    """Log in, and write nothing; a sentence about what answers.

    Raises:
        SinkError: as `open_mariadb_sink`, and `SINK_LOGIN_REFUSED`.
    """
    parsed = mariadb_options(name, options)
    with needs_package(name, "pymysql", "mysql"):
        from tautochrone.sinks.mariadb.database import MariaDBDatabase
    database = MariaDBDatabase(name, parsed)
    try:
        with database.autocommit() as cursor:
            cursor.execute("SELECT VERSION(), CURRENT_USER()")
            version, user = cursor.fetchone()
    finally:
        database.close()
    return f"MariaDB {version} lets {user} in"

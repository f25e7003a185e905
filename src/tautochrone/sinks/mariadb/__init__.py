"""The format `mariadb`: mirrors tables in a MariaDB database, one transaction per checkpoint."""

from __future__ import annotations

from tautochrone.sinks.mariadb.options import open_mariadb_sink

__all__ = ["open_mariadb_sink"]

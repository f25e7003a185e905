"""The format `postgresql`: mirrors tables in a PostgreSQL database, one transaction per checkpoint."""

from __future__ import annotations

from tautochrone.sinks.postgresql.options import open_postgresql_sink

__all__ = ["open_postgresql_sink"]

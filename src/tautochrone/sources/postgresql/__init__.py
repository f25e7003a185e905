"""PostgreSQL as a change log: its logical replication messages, decoded and written into one log table."""

from tautochrone.sources.postgresql.capture import capture

__all__ = ["capture"]

"""PostgreSQL as a change log: its logical replication messages, decoded and written into one log table."""

import importlib.util

from tautochrone.errors import DefinitionError

if importlib.util.find_spec("psycopg") is None:
    raise DefinitionError(
        "CAPTURE_DRIVER_MISSING",
        "Captures of PostgreSQL need the package psycopg, which is not installed",
        hint="pip install 'tautochrone[postgres]'",
    )

from tautochrone.sources.postgresql.capture import capture

__all__ = ["capture"]

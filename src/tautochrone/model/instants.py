"""The seam between whoever serves instants as a catalog and whoever needs one to read from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tautochrone.model.names import TableName, Version

__all__ = ["NEWEST", "InstantServer", "Lookup"]

NEWEST = "newest"
"""What a `Lookup` answers for a table that it does not care about: its newest version."""

Lookup = Callable[[TableName], Version | str | None]
"""From a table to its version at the instant; None: it has none there."""


class InstantServer(Protocol):
    """Serves instants as a read-only Iceberg REST catalog."""

    @property
    def uri(self) -> str: ...

    def show(self, instant: str, lookup: Lookup) -> None:
        """Make an internal instant readable; asked anew at each table load."""

"""Names and numbers that identify things. Ids are `NewType`s so that mypy keeps them apart."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NewType

__all__ = ["CheckpointNumber", "Fence", "TableName", "Version", "quoted"]

CheckpointNumber = NewType("CheckpointNumber", int)
"""Numbers only grow and are never reused within one store."""

Fence = NewType("Fence", int)
"""Grows at every takeover of a job; a writer with an older one is refused."""

Version = NewType("Version", str)
"""A lake table's snapshot in the format's own spelling (Iceberg: the snapshot id in decimal)."""


def quoted(*parts: str) -> str:
    """A name for Spark SQL, one part or several with dots between, whatever characters they hold."""
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """A fully qualified table name: catalog, one or more namespace levels, table."""

    catalog: str
    namespace: tuple[str, ...]
    table: str

    def __str__(self) -> str:
        return ".".join((self.catalog, *self.namespace, self.table))

    @property
    def without_catalog(self) -> str:
        """`database.table`, as catalogs themselves spell it."""
        return ".".join((*self.namespace, self.table))

    @property
    def sql(self) -> str:
        """The name quoted for Spark SQL."""
        return quoted(self.catalog, *self.namespace, self.table)

    @classmethod
    @lru_cache(maxsize=10_000)
    def parse(cls, text: str) -> TableName:
        """Parse `catalog.namespace….table`; parts must not contain dots.

        Raises:
            ValueError: fewer than three parts.
        """
        parts = text.split(".")
        if len(parts) < 3 or not all(parts):
            raise ValueError(f"not a fully qualified table name: {text!r}")
        return cls(parts[0], tuple(parts[1:-1]), parts[-1])

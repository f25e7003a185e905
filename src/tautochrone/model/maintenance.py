"""What is asked of a lake table to stay small, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass

from tautochrone.model.names import TableName, Version

__all__ = ["Compacted", "Dropped", "Expired", "Orphans", "Retention"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Which versions of a table somebody may still need.

    `readable` are versions that must stay, each on its own. `followed` are versions from which a reader
    still has to get to main: everything between the oldest of them and main stays too. So does what was
    committed at `after_ms` (epoch milliseconds) or later. Versions that the table does not have are ignored.
    """

    readable: frozenset[Version] = frozenset()
    followed: frozenset[Version] = frozenset()
    after_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """What left a table: its number of versions, and of files that only these had."""

    table: TableName
    versions: int = 0
    files: int = 0
    kept: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """Files that were rewritten, as how many, and their bytes before. No version: nothing was worth it."""

    table: TableName
    version: Version | None = None
    files_before: int = 0
    files_after: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """Files that left the newest version of a log table, and their rows."""

    table: TableName
    version: Version
    files: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphans:
    """Files in a table's folder that nothing refers to, as their locations in order, and their bytes."""

    table: TableName
    files: tuple[str, ...] = ()
    bytes: int = 0

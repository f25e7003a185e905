"""What the simulated protocol works on: a lake without rows, and processes that know what they were told."""

from __future__ import annotations

from dataclasses import dataclass, field

from tautochrone.model.checkpoint import Checkpoint
from tautochrone.model.names import Fence, TableName, Version

__all__ = ["Lake", "Process"]


@dataclass
class Lake:
    """What each derived version was made from: for every root below it the version that was read."""

    made_from: dict[tuple[TableName, str], dict[TableName, str]] = field(default_factory=dict)
    counter: int = 0

    def commit(self, table: TableName, sources: dict[TableName, str]) -> Version:
        for version in (v for (name, v), made in self.made_from.items() if name == table and made == sources):
            return Version(version)  # a refresh is a function of its inputs
        self.counter += 1
        self.made_from[table, str(self.counter)] = dict(sources)
        return Version(str(self.counter))

    def roots_of(self, table: TableName, version: str) -> dict[TableName, str]:
        return self.made_from.get((table, version), {table: version})


@dataclass
class Process:
    """One running instance of a job. What it knows of the store is what it was told."""

    job: str
    fence: Fence
    target: Checkpoint | None = None
    done: dict[TableName, Version] = field(default_factory=dict)
    reported: dict[TableName, Version] = field(default_factory=dict)
    cut: dict[TableName, Version] | None = None
    looks: dict[TableName, int] = field(default_factory=dict)
    idle: bool = False

"""The simulated protocol's lake: no rows, only what each version was made from."""

from __future__ import annotations

from dataclasses import dataclass, field

from tautochrone.model.names import TableName, Version

__all__ = ["Lake"]


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

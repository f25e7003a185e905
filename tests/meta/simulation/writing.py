"""Writers inside the simulated protocol: they write into sources, take tokens, and read their own writes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tautochrone.errors import CheckpointUnavailableError
from tautochrone.model.names import TableName

if TYPE_CHECKING:
    from tests.meta.simulation.judging import Judged

__all__ = ["Sources"]


@dataclass
class Sources:
    """How many rows each source holds, and the writers' tokens."""

    rows: dict[TableName, int] = field(default_factory=dict)
    tokens: list[tuple[int, TableName, int]] = field(default_factory=list)
    latest: int = 0

    def write(self, table: TableName, now: int) -> None:
        """One row more, and a token for it. A store's clock that is set back gives no tokens that are older
        than those that it gave before (`docs/reading.md` states this as a limit)."""
        self.latest = max(self.latest, now)
        self.rows[table] = self.rows.get(table, 0) + 1
        self.tokens.append((self.latest, table, self.rows[table]))

    def read(self, simulation: Judged) -> None:
        """A read after a random token shows what was written before it, or says that it can't."""
        if not self.tokens:
            return
        token = simulation.random.choice(self.tokens)
        tables = [entry.name for entries in simulation.entries.values() for entry in entries]
        try:
            _read(simulation, token, simulation.random.choice(tables))
        except CheckpointUnavailableError:
            return

    def read_all(self, simulation: Judged) -> None:
        """All jobs run and looked at their sources: every write can be read everywhere."""
        for token in self.tokens[-2:]:
            for entries in simulation.entries.values():
                for entry in entries:
                    _read(simulation, token, entry.name)


def _read(simulation: Judged, token: tuple[int, TableName, int], table: TableName) -> None:
    after, source, rows = token
    shown = simulation.store.reads.resolve(tables=[table], lease_ms=0, after_ms=after).versions
    if table not in shown:
        return  # nobody ran yet that has it
    has = simulation.lake.origin(table, shown[table]).get(source, rows)
    assert has >= rows, f"{table} has {has} rows of {source}, {rows} were written before the token"

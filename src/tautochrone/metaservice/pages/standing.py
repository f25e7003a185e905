"""Where each dataset stands, in one word, and who holds it back. Nothing here draws or stores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tautochrone.meta import DatasetEntry, DatasetStatus, MetaStore
from tautochrone.meta.repository import VERSIONED_KINDS
from tautochrone.model.clock import is_clock
from tautochrone.model.jobs import JobStatus
from tautochrone.model.names import CheckpointNumber, TableName

__all__ = ["Line", "Standing", "Topology", "look"]

_WAITS = "waits for "


class Standing(StrEnum):
    """The worst first, which is the order in which people want to see them."""

    FAILING = "failing"
    HELD = "held back"
    NEVER = "never built"
    BEHIND = "behind"
    BUILDING = "building"
    FRESH = "fresh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One dataset: its status, where that leaves it, and the dataset that holds it back, if one does."""

    status: DatasetStatus
    standing: Standing
    held_by: TableName | None

    @property
    def name(self) -> TableName:
        return self.status.dataset


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """All datasets and jobs at one look.

    `inputs` are those of each dataset, `outside` the tables and clocks that are read and that no job
    writes, `readers` who reads a table.
    """

    lines: Mapping[TableName, Line]
    jobs: tuple[JobStatus, ...]
    inputs: Mapping[TableName, frozenset[TableName]]
    outside: tuple[TableName, ...]

    @property
    def worst_first(self) -> list[Line]:
        order = list(Standing)
        return sorted(self.lines.values(), key=lambda line: (order.index(line.standing), str(line.name)))

    def of(self, *standings: Standing) -> list[Line]:
        """Those that stand so, worst first."""
        return [line for line in self.worst_first if line.standing in standings]

    def readers(self, table: TableName) -> list[TableName]:
        return sorted(name for name, inputs in self.inputs.items() if table in inputs)

    def held_by(self, table: TableName) -> list[TableName]:
        """The datasets that wait for `table`."""
        return sorted(line.name for line in self.lines.values() if line.held_by == table)

    @property
    def clocks(self) -> list[TableName]:
        return [name for name in self.outside if is_clock(name)]

    @property
    def outsiders(self) -> list[TableName]:
        return [name for name in self.outside if not is_clock(name)]


def look(store: MetaStore) -> Topology:
    """Read the store once."""
    statuses, entries, jobs = store.status(), store.datasets(), store.job_states()
    newest = {job.name: job.newest_done for job in jobs}
    inputs = {entry.name: entry.inputs for entry in entries}
    outside = frozenset[TableName]().union(*inputs.values()) - inputs.keys()
    return Topology(
        lines={line.name: line for line in _lines(statuses, newest, entries)},
        jobs=jobs,
        inputs=inputs,
        outside=tuple(sorted(outside)),
    )


def _lines(
    statuses: Sequence[DatasetStatus],
    newest: Mapping[str, CheckpointNumber | None],
    entries: Iterable[DatasetEntry],
) -> list[Line]:
    inputs = {entry.name: entry.inputs for entry in entries}
    return [
        Line(
            status=status,
            standing=_standing(status, newest.get(status.job)),
            held_by=_held_by(status.error, inputs.get(status.dataset, frozenset())),
        )
        for status in statuses
        if status.kind in VERSIONED_KINDS
    ]


def _standing(status: DatasetStatus, newest: CheckpointNumber | None) -> Standing:
    if status.error is not None:
        return Standing.HELD if status.error.startswith(_WAITS) else Standing.FAILING
    if status.checkpoint is None:
        return Standing.NEVER
    if not status.lag_ms:
        return Standing.FRESH
    # A newer cut exists. When nobody is further, its checkpoint is on its way.
    return Standing.BUILDING if status.checkpoint == newest else Standing.BEHIND


def _held_by(error: str | None, inputs: Iterable[TableName]) -> TableName | None:
    """The input that a recorded failure waits for: `waits for <name>: <its error>`."""
    if error is None or not error.startswith(_WAITS):
        return None
    said = error.removeprefix(_WAITS)
    # The longest name first: one may begin another.
    for name in sorted(inputs, key=lambda name: -len(str(name))):
        if said == str(name) or said.startswith(f"{name}:"):
            return name
    return None

"""The state of each dataset in one word, and the dataset that it waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tautochrone.meta import DatasetStatus, Store
from tautochrone.meta.database.repository import VERSIONED_KINDS
from tautochrone.model.jobs import JobStatus
from tautochrone.model.names import CheckpointNumber, TableName, is_clock, is_file_table
from tautochrone.model.reason import Reason, ReasonCode

__all__ = ["DatasetLine", "DatasetState", "Topology", "read_topology"]


class DatasetState(StrEnum):
    """The worst state first: pages show datasets in this order."""

    FAILING = "failing"
    WAITING = "held back"
    NEVER = "never built"
    BEHIND = "behind"
    BUILDING = "building"
    FRESH = "fresh"


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetLine:
    """One dataset: its status, the state that follows from it, and the failed input that it waits for."""

    status: DatasetStatus
    state: DatasetState
    waits_for: TableName | None

    @property
    def name(self) -> TableName:
        return self.status.dataset


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """All datasets and jobs at one time.

    `inputs` has the inputs of each dataset, `outside` the tables and clocks that are read and that no job
    writes.
    """

    lines: Mapping[TableName, DatasetLine]
    jobs: tuple[JobStatus, ...]
    inputs: Mapping[TableName, frozenset[TableName]]
    outside: tuple[TableName, ...]

    @property
    def worst_first(self) -> list[DatasetLine]:
        order = list(DatasetState)
        return sorted(self.lines.values(), key=lambda line: (order.index(line.state), str(line.name)))

    def of(self, *states: DatasetState) -> list[DatasetLine]:
        """The datasets in one of these states, worst first."""
        return [line for line in self.worst_first if line.state in states]

    def readers(self, table: TableName) -> list[TableName]:
        return sorted(name for name, inputs in self.inputs.items() if table in inputs)

    def waiting_for(self, table: TableName) -> list[TableName]:
        """The datasets that wait for `table`."""
        return sorted(line.name for line in self.lines.values() if line.waits_for == table)

    @property
    def clocks(self) -> list[TableName]:
        return [name for name in self.outside if is_clock(name)]

    @property
    def external_tables(self) -> list[TableName]:
        return [name for name in self.outside if not is_clock(name) and not is_file_table(name)]

    @property
    def file_tables(self) -> list[TableName]:
        return [name for name in self.outside if is_file_table(name)]


def read_topology(store: Store) -> Topology:
    """All datasets and jobs of the store."""
    statuses, entries, jobs = store.datasets.statuses(), store.datasets.entries(), store.jobs.states()
    newest = {job.name: job.newest_done for job in jobs}
    inputs = {entry.name: entry.inputs for entry in entries}
    outside = frozenset[TableName]().union(*inputs.values()) - inputs.keys()
    return Topology(
        lines={line.name: line for line in _lines(statuses, newest)},
        jobs=jobs,
        inputs=inputs,
        outside=tuple(sorted(outside)),
    )


def _lines(
    statuses: Sequence[DatasetStatus], newest: Mapping[str, CheckpointNumber | None]
) -> list[DatasetLine]:
    return [
        DatasetLine(
            status=status,
            state=_state(status, newest.get(status.job)),
            waits_for=_waits_for(status.failure),
        )
        for status in statuses
        if status.kind in VERSIONED_KINDS
    ]


def _state(status: DatasetStatus, newest: CheckpointNumber | None) -> DatasetState:
    if status.failure is not None and status.failure.code is ReasonCode.WAITS_FOR_BULK:
        # The first load of a database table is not complete.
        return DatasetState.BUILDING
    if status.error is not None:
        waits = _waits_for(status.failure) is not None
        return DatasetState.WAITING if waits else DatasetState.FAILING
    if status.checkpoint is None:
        return DatasetState.NEVER
    if not status.lag_ms:
        return DatasetState.FRESH
    # A newer cut exists. When no dataset of the job has a newer version, its checkpoint is being refreshed.
    return DatasetState.BUILDING if status.checkpoint == newest else DatasetState.BEHIND


def _waits_for(failure: Reason | None) -> TableName | None:
    """The failed input for which a dataset got no version."""
    if failure is None or failure.code is not ReasonCode.WAITS_FOR_INPUT:
        return None
    return TableName.parse(str(failure.params["input"]))

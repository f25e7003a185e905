"""The state of each dataset in one word, what it waits for, and the progress of open checkpoints."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tautochrone.meta import CheckpointLine, DatasetState, DatasetStatus, Store
from tautochrone.meta.database.repository import VERSIONED_KINDS
from tautochrone.model.alarms import Alarm, AlarmRule
from tautochrone.model.jobs import JobProgress, JobStatus, Part
from tautochrone.model.names import TableName, is_clock, is_file_table
from tautochrone.model.reason import Reason, ReasonCode

__all__ = ["DatasetLine", "Progress", "Topology", "progress_of", "read_topology", "stuck_checkpoints"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetLine:
    """One dataset: its status, and the failed input that it waits for."""

    status: DatasetStatus
    waits_for: TableName | None

    @property
    def state(self) -> DatasetState:
        return self.status.state

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

    @property
    def stopped_jobs(self) -> list[JobStatus]:
        """The jobs that do not run and should."""
        return [job for job in self.jobs if job.liveness.is_down]

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
    statuses, entries, jobs = store.datasets.statuses(), store.datasets.registered(), store.jobs.states()
    inputs = {entry.name: entry.inputs for entry in entries}
    outside = frozenset[TableName]().union(*inputs.values()) - inputs.keys()
    return Topology(
        lines={line.name: line for line in _lines(statuses)},
        jobs=jobs,
        inputs=inputs,
        outside=tuple(sorted(outside)),
    )


def _lines(statuses: Sequence[DatasetStatus]) -> list[DatasetLine]:
    return [
        DatasetLine(status=status, waits_for=_waits_for(status.failure))
        for status in statuses
        if status.kind in VERSIONED_KINDS
    ]


def _waits_for(failure: Reason | None) -> TableName | None:
    """The failed input for which a dataset got no version."""
    if failure is None or failure.code is not ReasonCode.WAITS_FOR_INPUT:
        return None
    return TableName.parse(str(failure.params["input"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """An open checkpoint: `done` of `total` datasets have a version for it, `failed` have a failure.

    `waiting` are the others, `parts` the parts of the jobs. `stuck`: there is an alarm about it.
    """

    line: CheckpointLine
    done: int
    failed: int
    total: int
    waiting: tuple[TableName, ...]
    parts: tuple[JobProgress, ...]
    age_ms: int
    stuck: bool


def stuck_checkpoints(alarms: Iterable[Alarm]) -> frozenset[int]:
    """The numbers of the checkpoints that alarms are about."""
    stuck = [alarm for alarm in alarms if alarm.rule is AlarmRule.CHECKPOINT_STUCK]
    return frozenset(number for alarm in stuck for number in alarm.reason.params.get("checkpoints", ()))


def progress_of(store: Store, line: CheckpointLine, stuck: Collection[int]) -> Progress:
    """The progress of an open checkpoint in all jobs that take part in it.

    Args:
        stuck: the checkpoints that alarms are about.
    """
    parts = store.checkpoints.progress(line.number)
    entries = [
        entry
        for part in parts
        if part.part is not Part.SKIPPED
        for entry in store.datasets.registered(part.job)
    ]
    names = {entry.name for entry in entries if entry.kind in VERSIONED_KINDS}
    done = names & store.checkpoints.versions_at(line.number).keys()
    failed = (names & store.checkpoints.failures_at(line.number).keys()) - done
    age = max(0, time.time_ns() // 1_000_000 - line.cut_at_ms)
    return Progress(
        line=line,
        done=len(done),
        failed=len(failed),
        total=len(names),
        parts=parts,
        waiting=tuple(sorted(names - done - failed)),
        age_ms=age,
        stuck=line.number in stuck,
    )

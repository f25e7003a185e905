"""The state of each dataset in one word, what it waits for, and the progress of open checkpoints."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tautochrone.meta import CheckpointLine, DatasetState, DatasetStatus, Store
from tautochrone.meta.database.repository import VERSIONED_KINDS
from tautochrone.model.alarms import Alarm, AlarmRule
from tautochrone.model.checkpoint import RefreshRecord
from tautochrone.model.jobs import JobProgress, JobStatus, Part
from tautochrone.model.moments import now_ms
from tautochrone.model.names import TableName, is_clock, is_file_table
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.run_report import SourceKind
from tautochrone.model.sink import DeliveryState, SinkStatus

__all__ = [
    "DatasetLine",
    "Progress",
    "SourceNode",
    "Topology",
    "datasets_by_job",
    "datasets_of_jobs",
    "progress_of",
    "read_topology",
    "stuck_checkpoints",
]


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
class SourceNode:
    """What flows read outside of the lake, and the datasets that they write."""

    kind: SourceKind
    name: str
    datasets: frozenset[TableName]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """All datasets and jobs at one time.

    `inputs` has the inputs of each dataset, `outside` the tables and clocks that are read and that no job
    writes, `sources` what flows read outside of the lake, `sinks` what is delivered to, `newest` the newest
    refresh of each dataset with news.
    """

    lines: Mapping[TableName, DatasetLine]
    jobs: tuple[JobStatus, ...]
    inputs: Mapping[TableName, frozenset[TableName]]
    outside: tuple[TableName, ...]
    sources: tuple[SourceNode, ...] = ()
    sinks: tuple[SinkStatus, ...] = ()
    newest: Mapping[TableName, RefreshRecord] = field(default_factory=dict)

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

    def sources_of(self, table: TableName) -> list[SourceNode]:
        return [source for source in self.sources if table in source.datasets]

    def sinks_of(self, table: TableName) -> list[SinkStatus]:
        """The sinks that take the table's rows."""
        return [sink for sink in self.sinks if table in sink.tables]

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


def read_topology(store: Store, *, with_newest: bool = False) -> Topology:
    """All datasets and jobs of the store; `newest` is empty unless it is asked for."""
    statuses, entries, jobs = store.datasets.statuses(), store.datasets.registered(), store.jobs.states()
    inputs = {entry.name: entry.inputs for entry in entries}
    outside = frozenset[TableName]().union(*inputs.values()) - inputs.keys()
    return Topology(
        lines={line.name: line for line in _lines(statuses)},
        jobs=jobs,
        inputs=inputs,
        outside=tuple(sorted(outside)),
        sources=_sources(jobs, inputs.keys()),
        sinks=tuple(sink for sink in store.deliveries.sinks() if sink.state is not DeliveryState.RETIRED),
        newest={record.dataset: record for record in store.history.newest_refreshes()} if with_newest else {},
    )


def _sources(jobs: Iterable[JobStatus], datasets: Collection[TableName]) -> tuple[SourceNode, ...]:
    """What the newest runs said that their flows read. Several flows, also of several jobs, may read one."""
    by_name = {str(name): name for name in datasets}
    readers: dict[tuple[SourceKind, str], set[TableName]] = {}
    for job in jobs:
        for source in () if job.report is None else job.report.sources:
            if source.dataset in by_name:
                readers.setdefault((source.kind, source.name), set()).add(by_name[source.dataset])
    return tuple(
        SourceNode(kind=kind, name=name, datasets=frozenset(tables))
        for (kind, name), tables in sorted(readers.items())
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

    `waiting` are the others, `parts` the parts of the jobs. `stuck`: there is an alarm about it. `works`: by
    job what it does now.
    """

    line: CheckpointLine
    done: int
    failed: int
    total: int
    waiting: tuple[TableName, ...]
    parts: tuple[JobProgress, ...]
    age_ms: int
    stuck: bool
    works: Mapping[str, str] = field(default_factory=dict)


def datasets_by_job(lines: Iterable[DatasetLine]) -> dict[str, set[TableName]]:
    """The datasets of each job that have versions."""
    result: dict[str, set[TableName]] = {}
    for line in lines:
        result.setdefault(line.status.job, set()).add(line.name)
    return result


def datasets_of_jobs(store: Store) -> dict[str, set[TableName]]:
    """The same from the store, for who does not need their states."""
    tables = {entry.name for entry in store.datasets.registered() if entry.kind in VERSIONED_KINDS}
    return {job.name: {*job.sinks} & tables for job in store.jobs.registered()}


def stuck_checkpoints(alarms: Iterable[Alarm]) -> frozenset[int]:
    """The numbers of the checkpoints that alarms are about."""
    stuck = [alarm for alarm in alarms if alarm.rule is AlarmRule.CHECKPOINT_STUCK]
    return frozenset(number for alarm in stuck for number in alarm.reason.params.get("checkpoints", ()))


def progress_of(
    store: Store,
    line: CheckpointLine,
    stuck: Collection[int],
    datasets: Mapping[str, Collection[TableName]],
    jobs: Iterable[JobStatus],
) -> Progress:
    """The progress of an open checkpoint in all jobs that take part in it.

    Args:
        stuck: the checkpoints that alarms are about.
        datasets: by job those that have versions.
        jobs: all of the store.
    """
    parts = store.checkpoints.progress(line.number)
    taking_part = [part.job for part in parts if part.part is not Part.SKIPPED]
    names = {name for job in taking_part for name in datasets.get(job, ())}
    done = names & store.checkpoints.versions_at(line.number).keys()
    failed = (names & store.checkpoints.failures_at(line.number).keys()) - done
    now = now_ms()
    age = max(0, now - line.cut_at_ms)
    works = {
        job.name: job.work.text(now)
        for job in jobs
        if job.work is not None and job.work.checkpoint == line.number
    }
    return Progress(
        line=line,
        done=len(done),
        failed=len(failed),
        total=len(names),
        parts=parts,
        waiting=tuple(sorted(names - done - failed)),
        age_ms=age,
        stuck=line.number in stuck,
        works=works,
    )

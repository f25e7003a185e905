"""Topology and ownership: which job writes which datasets, who runs it, what it reported.

It must never know checkpoints beyond the newest number: retiring a dataset ends its last interval.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select, update

from tautochrone.errors import MetaError
from tautochrone.meta import tables as t
from tautochrone.meta.base import Repository, check_fence, parse, unknown_job
from tautochrone.model.checkpoint import CheckpointState
from tautochrone.model.names import Fence, TableName, Version

__all__ = ["DatasetEntry", "Jobs", "Lineage"]


@dataclass(frozen=True, slots=True)
class DatasetEntry:
    """One dataset of a job as the topology records it.

    `kind` is a `DatasetKind` value, `definition` the fingerprint of the definition, `inputs` the
    tables and clocks that its flows read (datasets, outsiders' tables, `model.clock`).
    """

    name: TableName
    kind: str
    definition: str
    inputs: frozenset[TableName] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """Who reads what, around one table: direct neighbours, and everything behind them, clocks included."""

    table: TableName
    inputs: frozenset[TableName]
    outputs: frozenset[TableName]
    upstream: frozenset[TableName]
    downstream: frozenset[TableName]


class Jobs(Repository):
    """Registration, takeover and reports."""

    def start_run(
        self,
        pipeline: str,
        job: str,
        datasets: Iterable[DatasetEntry],
        *,
        fence: Fence | None = None,
    ) -> None:
        """Register the job and refresh its topology; datasets no longer defined are retired.

        Called at the start of every run. With `fence` an older owner cannot put its topology back;
        without it the call is for the very first run, before any takeover.

        Raises:
            MetaError: another job writes one of the datasets.
            FencedError: `fence` is outdated.
        """
        entries = {str(entry.name): entry for entry in datasets}
        with self._write() as connection:
            known = connection.execute(select(t.jobs).where(t.jobs.c.name == job)).first()
            if known is None:
                connection.execute(insert(t.jobs).values(name=job, pipeline=pipeline, fence=0))
            elif known.pipeline != pipeline:
                raise MetaError(
                    "JOB_NAME_TAKEN",
                    f"Job {job} belongs to pipeline {known.pipeline}, not to {pipeline}",
                    hint="Give the job another name.",
                )
            if fence is not None:
                check_fence(connection, job, fence)
            owners = {
                row.name: row
                for row in connection.execute(select(t.datasets)).all()
                if row.name in entries or row.job == job
            }
            for name, entry in entries.items():
                _register(connection, job, name, entry)
            for name, row in owners.items():
                if name not in entries and not row.retired:
                    _retire(connection, job, name)

    def take_over(self, job: str, *, at_least: int = 0) -> Fence:
        """Raise the job's fence above the stored one and above `at_least`, and return it.

        `at_least` is the highest fence seen in the lake: it matters when the store is younger than
        the lake. From here on every write of an older owner raises `FencedError`.
        """
        with self._write() as connection:
            query = select(t.jobs.c.fence).where(t.jobs.c.name == job).with_for_update()
            stored = connection.execute(query).scalar()
            if stored is None:
                raise unknown_job(job)
            fence = Fence(max(stored, at_least) + 1)
            connection.execute(update(t.jobs).where(t.jobs.c.name == job).values(fence=fence))
            return fence

    def fence(self, job: str) -> Fence:
        """The newest fence of the job; 0 before the first takeover."""
        with self._read() as connection:
            found = connection.execute(select(t.jobs.c.fence).where(t.jobs.c.name == job)).scalar()
            if found is None:
                raise unknown_job(job)
            return Fence(found)

    def report(self, job: str, fence: Fence, versions: Mapping[TableName, Version]) -> None:
        """Record one unit: versions that one flow or one source transaction committed together.

        A cut takes all of a unit or nothing of it, because it is one transaction here.
        """
        with self._fenced(job, fence) as connection:
            now = self._clock()
            for table, version in versions.items():
                key = (t.reports.c.job == job) & (t.reports.c.table_name == str(table))
                values = {"version": version, "at_ms": now}
                if not connection.execute(update(t.reports).where(key).values(values)).rowcount:
                    values |= {"job": job, "table_name": str(table)}
                    connection.execute(insert(t.reports).values(values))

    def reported(self, job: str) -> dict[TableName, Version]:
        """The newest reported version of each table of the job."""
        with self._read() as connection:
            rows = connection.execute(select(t.reports).where(t.reports.c.job == job))
            return {parse(row.table_name): Version(row.version) for row in rows}

    def datasets(self, job: str | None = None) -> tuple[DatasetEntry, ...]:
        """The registered datasets that are not retired, of one job or of all."""
        with self._read() as connection:
            inputs = _edges(connection)
            query = select(t.datasets).where(t.datasets.c.retired.is_(False))
            if job is not None:
                query = query.where(t.datasets.c.job == job)
            return tuple(
                DatasetEntry(parse(row.name), row.kind, row.definition, inputs(row.name))
                for row in connection.execute(query.order_by(t.datasets.c.name))
            )

    def lineage(self, table: TableName) -> Lineage:
        """What `table` is made from and what is made from it, directly and through others."""
        with self._read() as connection:
            edges = connection.execute(select(t.dataset_inputs)).all()
        up: dict[str, set[str]] = {}
        down: dict[str, set[str]] = {}
        for edge in edges:
            up.setdefault(edge.dataset, set()).add(edge.input)
            down.setdefault(edge.input, set()).add(edge.dataset)
        name = str(table)
        return Lineage(
            table=table,
            inputs=frozenset(map(parse, up.get(name, ()))),
            outputs=frozenset(map(parse, down.get(name, ()))),
            upstream=_reachable(name, up),
            downstream=_reachable(name, down),
        )


def _register(connection: Connection, job: str, name: str, entry: DatasetEntry) -> None:
    row = connection.execute(select(t.datasets).where(t.datasets.c.name == name)).first()
    values = {"job": job, "kind": entry.kind, "definition": entry.definition, "retired": False}
    if row is None:
        connection.execute(insert(t.datasets).values(name=name, **values))
    elif row.job != job and not row.retired:
        raise MetaError(
            "DATASET_OWNED_BY_ANOTHER_JOB",
            f"Dataset {name} is written by job {row.job}; job {job} must not write it too",
        )
    else:
        connection.execute(update(t.datasets).where(t.datasets.c.name == name).values(**values))
    connection.execute(delete(t.dataset_inputs).where(t.dataset_inputs.c.dataset == name))
    for table in sorted(map(str, entry.inputs)):
        connection.execute(insert(t.dataset_inputs).values(dataset=name, input=table))


def _retire(connection: Connection, job: str, name: str) -> None:
    """End the dataset's interval: an open target that did not reach it will not contain it."""
    v = t.versions.c
    connection.execute(update(t.datasets).where(t.datasets.c.name == name).values(retired=True))
    connection.execute(delete(t.dataset_inputs).where(t.dataset_inputs.c.dataset == name))
    target = connection.execute(
        select(t.checkpoints.c.number).where(
            t.checkpoints.c.job == job, t.checkpoints.c.state == CheckpointState.OPEN.value
        )
    ).scalar()
    last = connection.execute(select(t.stores.c.last_number)).scalar_one()
    current = (v.job == job) & (v.table_name == name) & v.to_checkpoint.is_(None)
    if target is not None:
        connection.execute(
            update(t.versions).where(current, v.confirmed < target).values(to_checkpoint=target - 1)
        )
    connection.execute(update(t.versions).where(current).values(to_checkpoint=last))


def _edges(connection: Connection) -> Callable[[str], frozenset[TableName]]:
    found: dict[str, set[TableName]] = {}
    for edge in connection.execute(select(t.dataset_inputs)):
        found.setdefault(edge.dataset, set()).add(parse(edge.input))
    return lambda name: frozenset(found.get(name, ()))


def _reachable(start: str, edges: Mapping[str, set[str]]) -> frozenset[TableName]:
    seen: set[str] = set()
    todo = list(edges.get(start, ()))
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo.extend(edges.get(name, ()))
    return frozenset(map(parse, seen - {start}))

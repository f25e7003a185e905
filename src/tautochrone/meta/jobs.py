"""Topology and ownership: which job writes which datasets, who runs it, what it reported.

It must never know checkpoints beyond the newest number: retiring a dataset ends its last interval.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, delete, func, insert, select, update

from tautochrone.errors import MetaError
from tautochrone.meta import tables as t
from tautochrone.meta import version_intervals as intervals
from tautochrone.meta.alignment import begin_times
from tautochrone.meta.cycles import require_acyclic
from tautochrone.meta.invariants import declare
from tautochrone.meta.job_ownership import owned_by, require_free
from tautochrone.meta.repository import Repository, check_fence, parse, unknown_job
from tautochrone.meta.source_observations import begin_looks, note_looks
from tautochrone.meta.table_owners import bind_lake
from tautochrone.meta.topology import OUTSIDE, made_from
from tautochrone.model.invariants import InvariantEntry
from tautochrone.model.jobs import JOB_LEASE_MS, Claim, JobState, Part
from tautochrone.model.names import Fence, TableName, Version

__all__ = ["DatasetEntry", "Jobs", "Lineage", "end_outside", "retire"]


@dataclass(frozen=True, slots=True)
class DatasetEntry:
    """One dataset of a job as the topology records it.

    `kind` is a `DatasetKind` value, `definition` the fingerprint of the definition, `inputs` the
    tables and clocks that its flows read (datasets, external tables, `model.clock`). `is_root`: only
    ingestion writes it, so its version at a cut is what was reported.
    """

    name: TableName
    kind: str
    definition: str
    inputs: frozenset[TableName] = frozenset()
    is_root: bool = False


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
        invariants: Iterable[InvariantEntry] = (),
        fence: Fence | None = None,
        claim: Claim | None = None,
        lease_ms: int = JOB_LEASE_MS,
        lake: str | None = None,
    ) -> None:
        """Register the job and refresh its topology and what it checks; datasets no longer defined are
        retired.

        Called at the start of every run. With `fence` an older owner cannot put its topology back;
        without it the call is for the very first run, before any takeover. With `claim` the job is this
        run's from here on, so that nobody else changes its topology before the takeover. `lake` is where its
        tables are.

        Raises:
            MetaError: `JOB_RUNNING`, nothing was changed.
            MetaError: another job writes one of the datasets; `TOPOLOGY_CYCLE` over several jobs;
                `JOB_OF_ANOTHER_LAKE`.
            FencedError: `fence` is outdated.
        """
        entries = {str(entry.name): entry for entry in datasets}
        with self._write() as connection:
            if claim is not None:
                require_free(connection, job, claim, self._clock(), lock=True)
            known = connection.execute(select(t.jobs).where(t.jobs.c.name == job)).first()
            if known is None:
                connection.execute(insert(t.jobs).values(name=job, pipeline=pipeline, fence=0))
            elif known.pipeline != pipeline:
                raise MetaError(
                    "JOB_NAME_TAKEN",
                    f"Job {job} belongs to pipeline {known.pipeline}, not to {pipeline}",
                    hint="Give the job another name; if the pipeline was renamed: "
                    f"`taut adopt --from-pipeline {known.pipeline}`.",
                )
            bind_lake(connection, job, None if known is None else known.lake, lake)
            if fence is not None:
                check_fence(connection, job, fence)
            if claim is not None:
                own = owned_by(claim, self._clock(), lease_ms)
                connection.execute(update(t.jobs).where(t.jobs.c.name == job).values(own))
            # A revision that is decided meanwhile sees this topology or is seen by it.
            connection.execute(select(t.stores.c.last_number).with_for_update())
            owners = {
                row.name: row
                for row in connection.execute(select(t.datasets)).all()
                if row.name in entries or row.job == job
            }
            for name, entry in entries.items():
                _register(connection, job, name, entry)
            for name, row in owners.items():
                if name not in entries and not row.retired:
                    retire(connection, job, name)
            require_acyclic(made_from(connection), entries)
            declare(connection, job, invariants)

    def take_over(
        self,
        job: str,
        *,
        at_least: int = 0,
        owner: str | None = None,
        lease_ms: int = JOB_LEASE_MS,
        ingests: Collection[TableName] | None = None,
        claim: Claim | None = None,
    ) -> Fence:
        """Raise the job's fence above the stored one and above `at_least`, and return it: the job runs.

        `at_least` is the highest fence seen in the lake: it matters when the store is younger than
        the lake. From here on every write of an older owner raises `FencedError`. The lease is as in
        `beat`; `ingests` are the tables that the job brings in from outside (None: as before).
        Without `claim` whoever runs the job is fenced off.

        Raises:
            MetaError: `JOB_RUNNING`, another run has the job and `claim` may not end it; nothing was changed.
        """
        with self._write() as connection:
            query = select(t.jobs.c.fence).where(t.jobs.c.name == job).with_for_update()
            stored = connection.execute(query).scalar()
            if stored is None:
                raise unknown_job(job)
            fence = Fence(max(stored, at_least) + 1)
            now = self._clock()
            if claim is not None:
                require_free(connection, job, claim, now)
            connection.execute(
                update(t.jobs)
                .where(t.jobs.c.name == job)
                .values(
                    fence=fence,
                    state=JobState.RUNNING.value,
                    owner=owner,
                    started_ms=now,
                    heartbeat_ms=now,
                    lease_until_ms=now + lease_ms,
                    process=None,
                )
            )
            if claim is not None:
                own = owned_by(claim, now, lease_ms)
                connection.execute(update(t.jobs).where(t.jobs.c.name == job).values(own))
            begin_looks(connection, job, None if ingests is None else [str(table) for table in ingests])
            begin_times(connection, job)
            self._owned_in[job] = connection.execute(select(t.stores.c.incarnation)).scalar_one()
            return fence

    def beat(
        self,
        job: str,
        fence: Fence,
        lease_ms: int = JOB_LEASE_MS,
        *,
        looked_ms: int | None = None,
        looks: Mapping[TableName, int] | None = None,
        checkpoint: int | None = None,
    ) -> None:
        """The owner is alive. Leases decide for whom the others wait, never who may write.

        Args:
            looked_ms: when it looked for news and found none, by the store's clock.
            looks: for the tables that it brings in or looks at: all that their sources held at that time, by
                the store's clock, is in the versions that it reported or observed.
            checkpoint: shows the rows of those versions.

        Raises:
            FencedError: a newer owner exists.
        """
        with self._fenced(job, fence, durable=False) as connection:
            now = self._clock()
            values = {"heartbeat_ms": now, "lease_until_ms": now + lease_ms}
            if looked_ms is not None:
                values["looked_ms"] = looked_ms
            connection.execute(update(t.jobs).where(t.jobs.c.name == job).values(values))
            if looks is not None:
                note_looks(connection, job, {str(name): at for name, at in looks.items()}, checkpoint)

    def end_run(self, job: str, fence: Fence) -> None:
        """The job ended in order: nobody waits for it until it runs again. Repeatable.

        Raises:
            FencedError: a newer owner exists.
        """
        with self._fenced(job, fence) as connection:
            values = {"state": JobState.ENDED.value, "lease_until_ms": None}
            connection.execute(update(t.jobs).where(t.jobs.c.name == job).values(values))

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
            edges = made_from(connection)
            query = select(t.datasets).where(t.datasets.c.retired.is_(False))
            if job is not None:
                query = query.where(t.datasets.c.job == job)
            return tuple(
                DatasetEntry(
                    parse(row.name),
                    row.kind,
                    row.definition,
                    frozenset(map(parse, edges.get(row.name, ()))),
                    row.is_root,
                )
                for row in connection.execute(query.order_by(t.datasets.c.name))
            )

    def lineage(self, table: TableName) -> Lineage:
        """What `table` is made from and what is made from it, directly and through others."""
        with self._read() as connection:
            up = made_from(connection)
        down: dict[str, set[str]] = {}
        for dataset, inputs in up.items():
            for source in inputs:
                down.setdefault(source, set()).add(dataset)
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
    values = {
        "job": job,
        "kind": entry.kind,
        "definition": entry.definition,
        "is_root": entry.is_root,
        "retired": False,
    }
    if row is None:
        connection.execute(insert(t.datasets).values(name=name, **values))
        end_outside(connection, name)
    elif row.job != job and not row.retired:
        raise MetaError(
            "DATASET_OWNED_BY_ANOTHER_JOB",
            f"Dataset {name} is written by job {row.job}; job {job} must not write it too",
        )
    else:
        if row.job != job:
            _hand_over(connection, name, row.job, job)
        connection.execute(update(t.datasets).where(t.datasets.c.name == name).values(**values))
    connection.execute(delete(t.dataset_inputs).where(t.dataset_inputs.c.dataset == name))
    for table in sorted(map(str, entry.inputs)):
        connection.execute(insert(t.dataset_inputs).values(dataset=name, input=table))


def end_outside(connection: Connection, name: str) -> None:
    """A table that others read before somebody registered it is what its job says of it from here on."""
    v = t.versions.c
    last = connection.execute(select(t.stores.c.last_number)).scalar_one()
    outside = (v.job == OUTSIDE) & (v.table_name == name) & v.to_checkpoint.is_(None)
    connection.execute(update(t.versions).where(outside).values(to_checkpoint=last))


def _hand_over(connection: Connection, name: str, before: str, job: str) -> None:
    """What was recorded for the table goes with it, and so does how far it is complete."""
    p = t.checkpoint_jobs.c
    intervals.hand_over(connection, name, job)
    connection.execute(update(t.reports).where(t.reports.c.table_name == name).values(job=job))
    done = select(func.max(p.checkpoint)).where(p.job == before, p.state == Part.DONE.value)
    newest = connection.execute(done).scalar()
    mine = select(p.checkpoint).where(p.job == job)
    if newest is not None and connection.execute(mine).first() is None:
        connection.execute(
            insert(t.checkpoint_jobs).values(checkpoint=newest, job=job, state=Part.DONE.value)
        )


def retire(connection: Connection, job: str, name: str) -> None:
    """Nobody writes the dataset any more: its interval ends. An open target that did not reach it will not
    contain it."""
    v = t.versions.c
    connection.execute(update(t.datasets).where(t.datasets.c.name == name).values(retired=True))
    connection.execute(delete(t.dataset_inputs).where(t.dataset_inputs.c.dataset == name))
    p = t.checkpoint_jobs.c
    pending = select(func.min(p.checkpoint)).where(p.job == job, p.state == Part.PENDING.value)
    target = connection.execute(pending).scalar()
    last = connection.execute(select(t.stores.c.last_number)).scalar_one()
    current = (v.job == job) & (v.table_name == name) & v.to_checkpoint.is_(None)
    if target is not None:
        connection.execute(
            update(t.versions).where(current, v.confirmed < target).values(to_checkpoint=target - 1)
        )
    connection.execute(update(t.versions).where(current).values(to_checkpoint=last))


def _reachable(start: str, edges: Mapping[str, Iterable[str]]) -> frozenset[TableName]:
    seen: set[str] = set()
    todo = list(edges.get(start, ()))
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo.extend(edges.get(name, ()))
    return frozenset(map(parse, seen - {start}))

"""Jobs that are no pipelines of ours: they say table by table what they will read and write (FLIP-276).

    1. `register` each source and sink: kept aside, nobody sees it. The plan may never be submitted.
    2. `start`: the job runs. Its topology becomes visible, and older owners are fenced off.
    3. `unregister` at its end: its relations go, what it published stays readable.

A table has one producing job, and no table may be made from itself. Both are asked when a table is
registered, to fail early, and again at the start, when it counts. It must never know HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import Connection, delete, insert, select, update

from tautochrone.errors import MetaError
from tautochrone.meta import tables as t
from tautochrone.meta.checkpoints import Checkpoints
from tautochrone.meta.coordinator import pending, skip
from tautochrone.meta.cycles import require_acyclic
from tautochrone.meta.invariants import declare
from tautochrone.meta.jobs import DatasetEntry, Jobs, retire
from tautochrone.meta.repository import check_fence, parse, unknown_job
from tautochrone.meta.topology import made_from
from tautochrone.model.definitions import DatasetKind
from tautochrone.model.jobs import Claim, JobState
from tautochrone.model.names import Fence, TableName

__all__ = ["REGISTERED", "JobEntry", "Registration", "TableRole"]

REGISTERED = "(registered)"
"""The pipeline of jobs that register themselves. No spec can have this name, so that neither can replace
the topology of the other."""

_R, _D = t.registrations.c, t.datasets.c


class TableRole(StrEnum):
    """What a job does with a table."""

    SOURCE = "source"
    SINK = "sink"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEntry:
    """A job as the topology knows it.

    `fence` is None before its first start. `sources` and `sinks` are visible to everybody, `announced`
    are tables of a job that has not started with them.
    """

    name: str
    pipeline: str
    fence: Fence | None
    sources: frozenset[TableName]
    sinks: frozenset[TableName]
    announced: frozenset[TableName]


class Registration(Jobs, Checkpoints):
    """See the module docstring. Every call may be repeated."""

    def register(self, job: str, table: TableName, role: TableRole) -> None:
        """Announce that `job` will read or write `table`.

        Raises:
            MetaError: `JOB_NAME_TAKEN` by a pipeline, `DATASET_OWNED_BY_ANOTHER_JOB`, `TOPOLOGY_CYCLE`.
        """
        key = {"job": job, "table_name": str(table), "role": role.value}
        with self._write() as connection:
            pipeline = connection.execute(select(t.jobs.c.pipeline).where(t.jobs.c.name == job)).scalar()
            if pipeline not in (None, REGISTERED):
                raise MetaError(
                    "JOB_NAME_TAKEN",
                    f"Job {job} belongs to pipeline {pipeline}, which registers its tables itself",
                    hint="Give the job another name.",
                )
            if role is TableRole.SINK:
                _require_free(connection, job, str(table))
            mine = _announced(connection, job)
            mine[role].add(str(table))
            edges = made_from(connection)
            for sink in mine[TableRole.SINK]:
                edges[sink] = edges.get(sink, frozenset()) | mine[TableRole.SOURCE]
            require_acyclic(edges, mine[TableRole.SINK])
            if connection.execute(select(_R.job).filter_by(**key)).first() is None:
                connection.execute(insert(t.registrations).values(**key, registered_at_ms=self._clock()))

    def start(self, job: str, claim: Claim | None = None) -> Fence:
        """The job runs now: what it announced becomes its topology. Older owners of it are refused.

        Raises:
            MetaError: `JOB_RUNNING`, another run has the job and `claim` may not end it.
            MetaError: `JOB_NOT_FOUND`, nothing was announced; or what `register` raises.
        """
        with self._read() as connection:
            mine = _announced(connection, job)
        if not mine[TableRole.SINK]:
            raise MetaError(
                "JOB_NOT_FOUND",
                f"Job {job} has registered no sink",
                hint="Register its sources and sinks first.",
            )
        inputs = frozenset(map(parse, mine[TableRole.SOURCE]))
        kind = DatasetKind.STREAMING_TABLE.value
        # A job without sources reads from outside the lake: what it reports is what a cut takes.
        entries = [
            DatasetEntry(parse(sink), kind, "", inputs, is_root=not inputs)
            for sink in sorted(mine[TableRole.SINK])
        ]
        self.start_run(REGISTERED, job, entries, claim=claim)
        return self.take_over(job, claim=claim)

    def unregister(self, job: str, fence: Fence | None = None) -> None:
        """The job ended: its relations are deleted, its open target is aborted, its fence rises.

        With `fence` a late word about an older run of the job changes nothing about the newer one.

        Raises:
            MetaError: `JOB_NOT_FOUND`.
            FencedError: `fence` is outdated.
        """
        with self._write() as connection:
            if fence is not None:
                check_fence(connection, job, fence)
            row = connection.execute(select(t.jobs).where(t.jobs.c.name == job).with_for_update()).first()
            announced = connection.execute(delete(t.registrations).where(_R.job == job)).rowcount
            if row is None and not announced:
                raise unknown_job(job)
            if row is None:
                return
            for number in reversed(pending(connection, job)):
                skip(connection, job, number)
            mine = select(_D.name).where(_D.job == job, _D.retired.is_(False))
            for name in connection.execute(mine).scalars().all():
                retire(connection, job, name)
            declare(connection, job, ())
            # The fence: what a process of the ended run still wants to write is refused.
            ended = {"state": JobState.ENDED.value, "lease_until_ms": None, "fence": row.fence + 1}
            connection.execute(update(t.jobs).where(t.jobs.c.name == job).values(ended))

    def job_entries(self) -> tuple[JobEntry, ...]:
        """All jobs, with the tables that they read and write, by name."""
        with self._read() as connection:
            jobs = {row.name: row for row in connection.execute(select(t.jobs))}
            sinks: dict[str, set[str]] = {}
            owners: dict[str, str] = {}
            for row in connection.execute(select(_D.name, _D.job).where(_D.retired.is_(False))):
                sinks.setdefault(row.job, set()).add(row.name)
                owners[row.name] = row.job
            sources: dict[str, set[str]] = {}
            for dataset, inputs in made_from(connection).items():
                if dataset in owners:
                    sources.setdefault(owners[dataset], set()).update(inputs)
            announced: dict[str, set[str]] = {}
            for row in connection.execute(select(t.registrations)):
                known = sources if row.role == TableRole.SOURCE else sinks
                if row.table_name not in known.get(row.job, ()):
                    announced.setdefault(row.job, set()).add(row.table_name)
        return tuple(
            JobEntry(
                name=name,
                pipeline=jobs[name].pipeline if name in jobs else REGISTERED,
                fence=Fence(jobs[name].fence) if name in jobs and jobs[name].fence else None,
                sources=frozenset(map(parse, sources.get(name, ()))),
                sinks=frozenset(map(parse, sinks.get(name, ()))),
                announced=frozenset(map(parse, announced.get(name, ()))),
            )
            for name in sorted(jobs.keys() | announced.keys())
        )


def _announced(connection: Connection, job: str) -> dict[TableRole, set[str]]:
    found: dict[TableRole, set[str]] = {role: set() for role in TableRole}
    for row in connection.execute(select(t.registrations).where(_R.job == job)):
        found[TableRole(row.role)].add(row.table_name)
    return found


def _require_free(connection: Connection, job: str, table: str) -> None:
    owner = connection.execute(select(_D.job).where(_D.name == table, _D.retired.is_(False))).scalar()
    if owner is not None and owner != job:
        raise MetaError(
            "DATASET_OWNED_BY_ANOTHER_JOB",
            f"Dataset {table} is written by job {owner}; job {job} must not write it too",
            hint=f"Let job {owner} write it by another flow, or unregister that job.",
        )

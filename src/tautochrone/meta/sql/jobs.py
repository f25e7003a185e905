"""`store.jobs` and `store.registrations` in SQL: who owns a job, and which datasets it writes.

A claim is checked in the transaction that takes the job, with its row locked: of two runs that start at the
same moment exactly one gets it. It must never know how to check that a process has ended.

People copy and rename projects, so a job's name alone says nothing: a copy of a project has the same. So each
job remembers the lake that its tables are in, and a run over another lake is refused before it takes anything
over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection, Row, delete, func, insert, select, update

from tautochrone.errors import MetaError
from tautochrone.meta.database import tables as t
from tautochrone.meta.database.repository import (
    VERSIONED_KINDS,
    Repository,
    check_fence,
    parse,
    unknown_job_error,
)
from tautochrone.meta.protocols.datasets import DatasetEntry
from tautochrone.meta.protocols.jobs import REGISTERED, JobEntry, TableRole
from tautochrone.meta.queries import version_intervals as intervals
from tautochrone.meta.queries.checkpoints import (
    is_alive,
    job_statuses,
    liveness_of,
    pending,
    skip,
    unrecorded_datasets,
)
from tautochrone.meta.queries.dataset_changes import require_no_pending_change
from tautochrone.meta.queries.invariant_checks import replace_invariants
from tautochrone.meta.queries.run_reports import as_json, report_from_json
from tautochrone.meta.queries.source_observations import (
    latest_observations,
    mark_source_times_unknown,
    record_shown,
    reset_observations,
)
from tautochrone.meta.queries.topology import direct_inputs, read_topology, require_acyclic
from tautochrone.meta.sql.revisions import rename_job_of_plans, unfinished_revisions
from tautochrone.model.checkpoint import InvariantEntry
from tautochrone.model.definitions import DatasetKind
from tautochrone.model.jobs import JOB_LEASE_MS, Claim, JobState, JobStatus, Liveness, RunProcess
from tautochrone.model.moments import iso_timestamp
from tautochrone.model.names import Fence, TableName
from tautochrone.model.project_build import BuildState
from tautochrone.model.run_report import RunEnd, RunReport

__all__ = ["SqlJobs", "SqlRegistrations", "job_running_error"]

_D, _J, _P, _R = t.datasets.c, t.jobs.c, t.checkpoint_jobs.c, t.registrations.c
_TABLES_BY_JOB = tuple(table for table in t.metadata.sorted_tables if "job" in table.c)
"""Tables whose rows name a job under `job`."""


class SqlJobs(Repository):
    """`protocols.jobs.Jobs` in SQL."""

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
        entries, invariants = {str(entry.name): entry for entry in datasets}, tuple(invariants)
        with self._write() as connection:
            if claim is not None:
                _require_free_job(connection, job, claim, self._clock(), lock=True)
            known = connection.execute(select(t.jobs).where(_J.name == job)).first()
            if known is None:
                connection.execute(insert(t.jobs).values(name=job, pipeline=pipeline, fence=0))
            else:
                _require_pipeline(job, known.pipeline, pipeline)
            _bind_lake(connection, job, None if known is None else known.lake, lake)
            if fence is not None:
                check_fence(connection, job, fence)
            if claim is not None:
                now = self._clock()
                own = _ownership_columns(claim, now, lease_ms) | {"ended": _ended_before(known, now)}
                connection.execute(update(t.jobs).where(_J.name == job).values(own))
            # The lock puts this change of the topology before or after any revision.
            connection.execute(select(t.stores.c.last_number).with_for_update())
            inputs = {str(table) for entry in entries.values() for table in entry.inputs}
            inputs |= {str(table) for invariant in invariants for table in invariant.tables}
            require_no_pending_change(connection, job, entries, inputs)
            _replace_datasets(connection, job, entries)
            require_acyclic(direct_inputs(connection), entries)
            replace_invariants(connection, job, invariants)

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
        with self._write() as connection:
            query = select(t.jobs).where(_J.name == job).with_for_update()
            stored = connection.execute(query).first()
            if stored is None:
                raise unknown_job_error(job)
            fence = Fence(max(stored.fence, at_least) + 1)
            now = self._clock()
            if claim is not None:
                _require_free_job(connection, job, claim, now)
            own = _ownership_columns(claim, now, lease_ms, owner) | {"ended": _ended_before(stored, now)}
            connection.execute(update(t.jobs).where(_J.name == job).values(fence=fence, **own))
            reset_observations(
                connection, job, None if ingests is None else [str(table) for table in ingests]
            )
            mark_source_times_unknown(connection, job)
            incarnation = connection.execute(select(t.stores.c.incarnation)).scalar_one()
            self._taken_over_in[job] = incarnation
            return fence

    def heartbeat(
        self,
        job: str,
        fence: Fence,
        lease_ms: int = JOB_LEASE_MS,
        *,
        observed_ms: int | None = None,
        observations: Mapping[TableName, int] | None = None,
        checkpoint: int | None = None,
        report: RunReport | None = None,
    ) -> None:
        with self._fenced(job, fence, durable=False) as connection:
            now = self._clock()
            values: dict[str, Any] = {"heartbeat_ms": now, "lease_until_ms": now + lease_ms}
            if report is not None:
                values["report"] = as_json(report)
            if observed_ms is not None:
                values["observed_ms"] = observed_ms
            observed_at_ms = {str(name): at_ms for name, at_ms in (observations or {}).items()}
            if observed_at_ms:
                values["observations"] = latest_observations(connection, job, observed_at_ms)
            connection.execute(update(t.jobs).where(_J.name == job).values(values))
            if observed_at_ms and checkpoint is not None:
                record_shown(connection, checkpoint, observed_at_ms)

    def end_run(
        self, job: str, fence: Fence, end: RunEnd | None = None, report: RunReport | None = None
    ) -> None:
        with self._fenced(job, fence) as connection:
            now = self._clock()
            values: dict[str, Any] = {
                "state": JobState.ENDED.value,
                "lease_until_ms": None,
                "heartbeat_ms": now,
            }
            if end is not None:
                values["ended"] = as_json(replace(end, at_ms=now))
            if report is not None:
                values["report"] = as_json(report)
            connection.execute(update(t.jobs).where(_J.name == job).values(values))

    def record_failed_start(self, job: str, end: RunEnd) -> None:
        with self._write() as connection:
            query = select(_J.state, _J.lease_until_ms).where(_J.name == job).with_for_update()
            row = connection.execute(query).first()
            now = self._clock()
            if row is None or is_alive(row.state, row.lease_until_ms, now):
                return
            ended = as_json(replace(end, at_ms=now, before_takeover=True))
            connection.execute(update(t.jobs).where(_J.name == job).values(ended=ended))

    def report(self, job: str) -> RunReport | None:
        with self._read() as connection:
            return report_from_json(connection.execute(select(_J.report).where(_J.name == job)).scalar())

    def newest_fence(self, job: str) -> Fence:
        with self._read() as connection:
            stored = connection.execute(select(_J.fence).where(_J.name == job)).scalar()
            if stored is None:
                raise unknown_job_error(job)
            return Fence(stored)

    def require_free(self, job: str, claim: Claim) -> None:
        with self._read() as connection:
            _require_free_job(connection, job, claim, self._clock())

    def owner_process(self, job: str) -> RunProcess | None:
        with self._read() as connection:
            process = connection.execute(select(_J.process).where(_J.name == job)).scalar()
            return None if process is None else RunProcess(**process)

    def registered(self) -> tuple[JobEntry, ...]:
        with self._read() as connection:
            jobs = {row.name: row for row in connection.execute(select(t.jobs))}
            sinks: dict[str, set[str]] = {}
            owners: dict[str, str] = {}
            for row in connection.execute(select(_D.name, _D.job).where(_D.retired.is_(False))):
                sinks.setdefault(row.job, set()).add(row.name)
                owners[row.name] = row.job
            sources: dict[str, set[str]] = {}
            for dataset, inputs in direct_inputs(connection).items():
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

    def states(self) -> tuple[JobStatus, ...]:
        with self._read() as connection:
            topology = read_topology(connection)
            return job_statuses(connection, topology, self._clock())

    def become_copy(self, lake: str) -> str:
        incarnation = str(uuid4())
        with self._write() as connection:
            connection.execute(update(t.stores).values(incarnation=incarnation))
            connection.execute(update(t.jobs).where(_J.lake.is_not(None)).values(lake=lake))
            # Up to these fences the commit metadata of the copied lake names the original store.
            connection.execute(update(t.jobs).values(lake_fence=_J.fence))
            running = _J.state == JobState.RUNNING.value
            ended = {"state": JobState.ENDED.value, "lease_until_ms": None}
            connection.execute(update(t.jobs).where(running).values(ended))
            # They are about the original and its machine.
            connection.execute(update(t.jobs).values(report=None, ended=None))
            connection.execute(delete(t.alarms))
            connection.execute(delete(t.pins))
        return incarnation

    def move_lake(self, pipeline: str, lake: str) -> int:
        with self._write() as connection:
            of_pipeline = update(t.jobs).where(_J.pipeline == pipeline).values(lake=lake)
            return connection.execute(of_pipeline).rowcount

    def rename_pipeline(self, before: str, after: str) -> int:
        with self._write() as connection:
            connection.execute(select(t.stores.c.last_number).with_for_update())
            now = self._clock()
            rows = connection.execute(select(t.jobs).where(_J.pipeline == before).with_for_update()).all()
            for row in rows:
                if row.state == JobState.RUNNING.value and (row.lease_until_ms or 0) > now:
                    raise MetaError(
                        "JOB_RUNNING",
                        f"Job {row.name} of pipeline {before} is running",
                        hint="end it first; a job that was killed counts as running until its lease is over",
                        sqlstate="55006",
                    )
            jobs = {row.name for row in rows}
            _require_nothing_decided(connection, jobs, before)
            taken = connection.execute(select(t.jobs).where(_J.name == after)).first()
            if taken is not None and (taken.pipeline not in (before, after) or before in jobs):
                if taken.pipeline != after or _has_history(connection, after):
                    raise MetaError(
                        "JOB_NAME_TAKEN",
                        f"There is a job {after} of pipeline {taken.pipeline} already",
                        hint="Give the pipeline another name.",
                    )
                connection.execute(delete(t.jobs).where(_J.name == after))
                for table in (t.invariants, t.registrations):
                    connection.execute(delete(table).where(table.c.job == after))
            # The higher fence refuses later writes of a process under the old name.
            moved = update(t.jobs).where(_J.pipeline == before)
            connection.execute(moved.values(pipeline=after, fence=_J.fence + 1))
            connection.execute(
                update(t.jobs).where(_J.name == before, _J.pipeline == after).values(name=after)
            )
            if before in jobs:
                for table in _TABLES_BY_JOB:
                    connection.execute(update(table).where(table.c.job == before).values(job=after))
                rename_job_of_plans(connection, before, after)
                waits = t.checkpoint_jobs.c.waits_for
                connection.execute(update(t.checkpoint_jobs).where(waits == before).values(waits_for=after))
            return len(rows)


class SqlRegistrations(Repository):
    """`protocols.jobs.Registrations` in SQL."""

    def register(self, job: str, table: TableName, role: TableRole) -> None:
        key = {"job": job, "table_name": str(table), "role": role.value}
        with self._write() as connection:
            pipeline = connection.execute(select(_J.pipeline).where(_J.name == job)).scalar()
            if pipeline not in (None, REGISTERED):
                raise MetaError(
                    "JOB_NAME_TAKEN",
                    f"Job {job} belongs to pipeline {pipeline}, which registers its tables itself",
                    hint="Give the job another name.",
                )
            if role is TableRole.SINK:
                _require_free_table(connection, job, str(table))
            announced_tables = _announced_tables(connection, job)
            announced_tables[role].add(str(table))
            edges = direct_inputs(connection)
            for sink in announced_tables[TableRole.SINK]:
                edges[sink] = edges.get(sink, frozenset()) | announced_tables[TableRole.SOURCE]
            require_acyclic(edges, announced_tables[TableRole.SINK])
            if connection.execute(select(_R.job).filter_by(**key)).first() is None:
                connection.execute(insert(t.registrations).values(**key, registered_at_ms=self._clock()))

    def start(self, job: str, claim: Claim | None = None) -> Fence:
        with self._read() as connection:
            announced_tables = _announced_tables(connection, job)
        if not announced_tables[TableRole.SINK]:
            raise MetaError(
                "JOB_NOT_FOUND",
                f"Job {job} has registered no sink",
                hint="Register its sources and sinks first.",
            )
        inputs = frozenset(map(parse, announced_tables[TableRole.SOURCE]))
        kind = DatasetKind.STREAMING_TABLE.value
        # A job without sources reads from outside the lake, so a cut takes the versions that it reports.
        entries = [
            DatasetEntry(parse(sink), kind, "", inputs, is_root=not inputs)
            for sink in sorted(announced_tables[TableRole.SINK])
        ]
        jobs = SqlJobs(self._database, self._clock, self._taken_over_in)
        jobs.start_run(REGISTERED, job, entries, claim=claim)
        return jobs.take_over(job, claim=claim)

    def unregister(self, job: str, fence: Fence | None = None) -> None:
        with self._write() as connection:
            if fence is not None:
                check_fence(connection, job, fence)
            row = connection.execute(select(t.jobs).where(_J.name == job).with_for_update()).first()
            announced = connection.execute(delete(t.registrations).where(_R.job == job)).rowcount
            if row is None and not announced:
                raise unknown_job_error(job)
            if row is None:
                return
            for number in reversed(pending(connection, job)):
                skip(connection, job, number)
            announced_tables = select(_D.name).where(_D.job == job, _D.retired.is_(False))
            for name in connection.execute(announced_tables).scalars().all():
                _retire(connection, job, name)
            replace_invariants(connection, job, ())
            # The higher fence refuses later writes of a process of the ended run.
            ended = {"state": JobState.ENDED.value, "lease_until_ms": None, "fence": row.fence + 1}
            connection.execute(update(t.jobs).where(_J.name == job).values(ended))


def _announced_tables(connection: Connection, job: str) -> dict[TableRole, set[str]]:
    tables_by_role: dict[TableRole, set[str]] = {role: set() for role in TableRole}
    for row in connection.execute(select(t.registrations).where(_R.job == job)):
        tables_by_role[TableRole(row.role)].add(row.table_name)
    return tables_by_role


def _require_free_table(connection: Connection, job: str, table: str) -> None:
    owner = connection.execute(select(_D.job).where(_D.name == table, _D.retired.is_(False))).scalar()
    if owner is not None and owner != job:
        raise MetaError(
            "DATASET_OWNED_BY_ANOTHER_JOB",
            f"Dataset {table} is written by job {owner}; job {job} must not write it too",
            hint=f"Let job {owner} write it by another flow, or unregister that job.",
        )


def _require_free_job(
    connection: Connection, job: str, claim: Claim, now: int, *, lock: bool = False
) -> None:
    """See `Jobs.require_free`; with `lock` the job's row is locked until the transaction ends."""
    query = select(t.jobs).where(_J.name == job)
    row = connection.execute(query.with_for_update() if lock else query).first()
    if row is None or claim.takeover or not is_alive(row.state, row.lease_until_ms, now):
        return
    process = row.process or {}
    # The run that owns the job repeats its call, or the owner has ended.
    if process and process["run"] in (claim.process.run, claim.ended_run):
        return
    raise job_running_error(connection, row, process, now)


def require_no_run(
    connection: Connection, now: int, is_over: Callable[[str, RunProcess | None], bool]
) -> None:
    """Check that no job of a store of an earlier release has a living owner: a process of that release could
    not open the store again once it is migrated. Reads only what the first release wrote.

    Args:
        is_over: see `MetaStore.open`.

    Raises:
        MetaError: `JOB_RUNNING`.
    """
    columns: list[Any] = [_J.name, _J.state, _J.owner, _J.lease_until_ms, _J.started_ms, _J.process]
    for row in connection.execute(select(*columns).order_by(_J.name)):
        if not is_alive(row.state, row.lease_until_ms, now):
            continue
        process = None if row.process is None else RunProcess(**row.process)
        if is_over(row.name, process):
            continue
        left_ms = row.lease_until_ms - now
        raise MetaError(
            "JOB_RUNNING",
            f"Job {row.name} is run by {_owner_text(row, row.process or {})} over a store of an earlier "
            "release, which that process could not open any more if it were migrated",
            hint="end the runs of all jobs that share the store first; should the process be "
            f"dead and not of this machine, its lease ends in {left_ms / 1000:.0f} s",
            retryable=True,
            sqlstate="55006",
            parameters=_owner_parameters(row, row.process or {}, now),
        )


def _ownership_columns(
    claim: Claim | None, now: int, lease_ms: int, owner: str | None = None
) -> dict[str, Any]:
    """The columns of `jobs` by which the run of `claim`, or `owner`, owns the job from now on."""
    process = None if claim is None else claim.process
    if process is not None:
        owner = process.host if process.pid is None else f"{process.host}:{process.pid}"
    return {
        "state": JobState.RUNNING.value,
        "owner": owner,
        "process": None if process is None else asdict(process),
        "started_ms": now,
        "heartbeat_ms": now,
        "lease_until_ms": now + lease_ms,
    }


def _ended_before(row: Row[Any] | None, now: int) -> Any:
    """What `jobs.ended` has while a new owner has the job: how the last run ended, if the job was down.

    A command that owns the job for a while, such as `taut maintain`, leaves it down.
    """
    liveness = None if row is None else liveness_of(row, now)
    if row is None or liveness in (Liveness.ENDED, Liveness.REGISTERED):
        return None
    if liveness is not Liveness.STOPPED:
        return row.ended
    error = f"its process ({row.owner or 'unknown'}) ended without saying so"
    return as_json(RunEnd(at_ms=row.heartbeat_ms or row.started_ms or 0, error=error))


def _owner_text(row: Row[Any], process: Mapping[str, Any]) -> str:
    owner = "a process that did not say who it is" if row.owner is None else f"process {row.owner}"
    if process.get("pid") is not None:
        owner = f"process {process['pid']} on host {process['host']}"
    if row.started_ms is None:
        return owner
    return f"{owner} since {iso_timestamp(row.started_ms, 'seconds')}"


def _owner_parameters(row: Row[Any], process: Mapping[str, Any], now: int) -> dict[str, str]:
    parameters = {"job": row.name, "owner": row.owner or ""}
    parameters |= {key: str(process[key]) for key in ("host", "pid") if process.get(key) is not None}
    parameters["since_ms"] = "" if row.started_ms is None else str(row.started_ms)
    return parameters | {"lease_left_ms": str(row.lease_until_ms - now)}


def job_running_error(
    connection: Connection, row: Row[Any], process: Mapping[str, Any], now: int
) -> MetaError:
    """The refusal to do what its owner would not see, from the row of `jobs` and its `process`."""
    job = row.name
    open_checkpoints = pending(connection, job)
    count = select(func.count()).where(_D.job == job, _D.retired.is_(False), _D.kind.in_(VERSIONED_KINDS))
    datasets = connection.execute(count).scalar_one()
    parameters = {**_owner_parameters(row, process, now), "datasets": str(datasets)}
    left_ms = row.lease_until_ms - now
    if open_checkpoints:
        done = datasets - len(unrecorded_datasets(connection, job, open_checkpoints[0]))
        parameters |= {"checkpoint": str(open_checkpoints[0]), "done": str(done)}
        progress = f"checkpoint {open_checkpoints[0]} is open, with {done} of {datasets} datasets done"
    else:
        progress = "no checkpoint of it is open"
    owner = _owner_text(row, process)
    return MetaError(
        "JOB_RUNNING",
        f"Job {job} is run by {owner}; {progress}",
        hint="--wait waits until it has ended, --takeover fences it off; should it be dead and not of this "
        f"machine, its lease ends in {left_ms / 1000:.0f} s",
        retryable=True,
        sqlstate="55006",
        parameters=parameters,
    )


def _require_nothing_decided(connection: Connection, jobs: Collection[str], pipeline: str) -> None:
    """Refuse to rename a pipeline while a job of it has something to do that was decided.

    Raises:
        MetaError: `RENAME_NOT_POSSIBLE`.
    """
    revisions = [f"revision {each}" for each in unfinished_revisions(connection, jobs)]
    b = t.builds.c
    decided = select(b.id).where(b.job.in_(tuple(jobs)), b.state == BuildState.DECIDED.value).order_by(b.id)
    builds = [f"built plan {each}" for each in connection.execute(decided).scalars()]
    for name in (*revisions, *builds):
        raise MetaError(
            "RENAME_NOT_POSSIBLE",
            f"Pipeline {pipeline} cannot be renamed: {name} is decided and not carried out",
            hint=f"put the name {pipeline} back into the spec and let `taut run` carry it out; a built plan "
            "may be dropped instead, by `taut plan --drop`; then rename",
            sqlstate="55000",
        )


def _require_pipeline(job: str, current: str, pipeline: str) -> None:
    if current != pipeline:
        raise MetaError(
            "JOB_NAME_TAKEN",
            f"Job {job} belongs to pipeline {current}, not to {pipeline}",
            hint="Give the job another name; if the pipeline was renamed: "
            f"`taut adopt --from-pipeline {current}`.",
        )


def _bind_lake(connection: Connection, job: str, known: str | None, lake: str | None) -> None:
    """Let the job belong to `lake`; nothing happens for a caller that knows none.

    Raises:
        MetaError: `JOB_OF_ANOTHER_LAKE`.
    """
    if lake is None or lake == known:
        return
    if known is not None:
        raise MetaError(
            "JOB_OF_ANOTHER_LAKE",
            f"Job {job} of this store writes the tables of {known}, not those of {lake}",
            hint="a copy of a project needs a store of its own ([meta] url), or another name in its spec; "
            "if it is the same project whose lake was moved: `taut relocate --moved`",
            sqlstate="42P07",
            parameters={"job": job, "lake": lake, "known": known},
        )
    connection.execute(update(t.jobs).where(_J.name == job).values(lake=lake))


def _has_history(connection: Connection, job: str) -> bool:
    """Whether a job wrote anything that readers could have seen."""
    p = t.versions.c
    return bool(connection.execute(select(func.count()).where(p.job == job)).scalar())


def _replace_datasets(connection: Connection, job: str, entries: Mapping[str, DatasetEntry]) -> None:
    """Register the datasets of a job, and retire those that it no longer has."""
    rows = {row.name: row for row in connection.execute(select(t.datasets)).all()}
    edges = direct_inputs(connection)
    for name, entry in entries.items():
        _register_dataset(connection, job, name, entry, rows.get(name), edges.get(name, ()))
    for name, row in rows.items():
        if row.job == job and not row.retired and name not in entries:
            _retire(connection, job, name)


def _register_dataset(
    connection: Connection,
    job: str,
    name: str,
    entry: DatasetEntry,
    row: Row[Any] | None,
    inputs: Collection[str],
) -> None:
    """Write what is not as it is registered: mostly nothing.

    Args:
        row: of the dataset, if it was ever registered.
        inputs: as they are registered.
    """
    values = {
        "job": job,
        "kind": entry.kind,
        "definition": entry.definition,
        "is_root": entry.is_root,
        "retired": False,
    }
    if row is None:
        connection.execute(insert(t.datasets).values(name=name, **values))
        intervals.end_external(connection, name)
    elif row.job != job and not row.retired:
        raise MetaError(
            "DATASET_OWNED_BY_ANOTHER_JOB",
            f"Dataset {name} is written by job {row.job}; job {job} must not write it too",
        )
    else:
        if row.job != job:
            # The recorded versions stay those of the job that wrote them: its parts say where they count.
            is_report = (t.reports.c.job == row.job) & (t.reports.c.table_name == name)
            connection.execute(update(t.reports).where(is_report).values(job=job))
        if any(getattr(row, column) != value for column, value in values.items()):
            connection.execute(update(t.datasets).where(_D.name == name).values(**values))
    if {*map(str, entry.inputs)} == {*inputs}:
        return
    connection.execute(delete(t.dataset_inputs).where(t.dataset_inputs.c.dataset == name))
    for table in sorted(map(str, entry.inputs)):
        connection.execute(insert(t.dataset_inputs).values(dataset=name, input=table))


def _retire(connection: Connection, job: str, name: str) -> None:
    """No job writes the dataset any more."""
    connection.execute(update(t.datasets).where(_D.name == name).values(retired=True))
    connection.execute(delete(t.dataset_inputs).where(t.dataset_inputs.c.dataset == name))
    intervals.retire(connection, job, name)

"""The status of each dataset: its state, how far it is, how far behind, and why.

It takes a number of queries that does not grow with the datasets; a topology that is late takes some more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Row, func, or_, select

from tautochrone.meta.database import tables as t
from tautochrone.meta.database.repository import VERSIONED_KINDS, VISIBLE_STATES, parse
from tautochrone.meta.protocols.datasets import DatasetState, DatasetStatus
from tautochrone.meta.queries.checkpoints import liveness_of, stored_failure
from tautochrone.meta.queries.invariant_checks import held_back, visibility_limits
from tautochrone.meta.queries.read_versions import newest_readable
from tautochrone.meta.queries.refresh_records import skipped_files_of, stored_expectations
from tautochrone.meta.queries.run_reports import report_from_json
from tautochrone.meta.queries.source_observations import observed_up_to
from tautochrone.meta.queries.topology import Topology, read_topology
from tautochrone.model.checkpoint import RefreshMode
from tautochrone.model.jobs import JOB_LEASE_MS, Liveness, Part
from tautochrone.model.names import CheckpointNumber, Version
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.run_report import FlowFailure, RunReport

__all__ = ["statuses_of"]

_C, _D, _F, _P, _V = (
    table.c for table in (t.checkpoints, t.datasets, t.failures, t.checkpoint_jobs, t.versions)
)
_CONDITIONS = 200
"""In one query. SQLite takes an expression of 1,000 levels, and each alternative is one."""


@dataclass(frozen=True, slots=True)
class _Cut:
    number: int
    cut_at_ms: int


@dataclass(frozen=True, slots=True)
class _Job:
    """What the status of its datasets takes from a job.

    Attributes:
        newest: its newest cut.
        done: the newest of which it did its part.
        liveness: whether it runs.
        seen_ms: its last sign of life.
        report: what its newest run said last.
    """

    newest: _Cut | None
    done: _Cut | None
    liveness: Liveness
    seen_ms: int
    report: RunReport | None

    @property
    def runs(self) -> bool:
        # Of a job of another program that renews no lease nothing else is known.
        return self.liveness in (Liveness.RUNNING, Liveness.REGISTERED)

    @property
    def usual_lag_ms(self) -> int:
        """So old are the observations of a run that keeps up, at most."""
        interval_ms = None if self.report is None else self.report.interval_ms
        return max(JOB_LEASE_MS, 3 * (interval_ms or 0))

    def flow_failure(self, dataset: str) -> tuple[str, FlowFailure] | None:
        """The flow into a dataset that fails, and how; of several the first by name."""
        flows = {} if self.report is None else self.report.flows
        failures = ((name, flow) for name, flow in sorted(flows.items()) if flow.dataset == dataset)
        return next(failures, None)


def _jobs(connection: Connection, now: int) -> dict[str, _Job]:
    newest, done = _newest_cuts(connection), _newest_cuts(connection, done=True)
    jobs = {}
    for row in connection.execute(select(t.jobs)):
        jobs[row.name] = _Job(
            newest=newest.get(row.name),
            done=done.get(row.name),
            liveness=liveness_of(row, now),
            seen_ms=row.heartbeat_ms or row.started_ms or 0,
            report=report_from_json(row.report),
        )
    return jobs


def statuses_of(connection: Connection, now: int) -> tuple[DatasetStatus, ...]:
    """Every dataset that isn't retired, by name.

    This alone decides the state of a dataset: commands, pages, metrics, HTTP interface and alarms show it.
    """
    jobs, topology = _jobs(connection, now), read_topology(connection)
    rows = connection.execute(select(t.datasets).where(_D.retired.is_(False)).order_by(_D.name)).all()
    done = {name: job.done for name, job in jobs.items() if job.done is not None}
    versions = _newest_versions(connection)
    complete_now = _complete_at(connection, done)
    errors = _newest_errors(connection)
    kept_back = _kept_from_readers(connection)
    readable = _readable_cuts(connection, rows, done, complete_now, versions, topology)
    complete = {row.name: done[row.job] for row in rows if (row.job, row.name) in complete_now}
    late = [row.name for row in rows if row.name not in complete and row.name in versions]
    complete |= _last_complete_checkpoints(connection, late)
    observed = observed_up_to(connection, topology, {name: cut.number for name, cut in complete.items()})
    observed_by_readers = observed_up_to(connection, topology, {n: cut.number for n, cut in readable.items()})
    result = []
    first_failures = _first_failures(connection, errors, complete)
    for row in rows:
        job, cut = jobs[row.job], complete.get(row.name)
        version = versions.get(row.name)
        status = _status(row, version, cut, job, errors.get(row.name), observed.get(row.name), now)
        status = _with_failure(status, job, first_failures.get(row.name))
        if row.name in kept_back:
            error, seen_ms = kept_back[row.name]
            lag_ms = status.lag_ms
            if cut is not None:
                lag_ms = max(lag_ms or 0, now - min(seen_ms, cut.cut_at_ms))
            status = replace(status, error=status.error or error, lag_ms=lag_ms)
        seen = readable.get(row.name)
        if seen is not None:
            lag_ms = _lag_ms(seen, job, observed_by_readers.get(row.name), now)
            if row.name in kept_back:
                lag_ms = max(lag_ms, status.lag_ms or 0)
            status = replace(status, readable=CheckpointNumber(seen.number), readable_lag_ms=lag_ms)
        result.append(replace(status, state=_state(status, job)))
    return tuple(result)


def _with_failure(status: DatasetStatus, job: _Job, since_ms: int | None) -> DatasetStatus:
    """The status with the failure of a flow into the dataset, and with when its failure began."""
    if status.failure is not None:
        return replace(status, failing_since_ms=since_ms)
    failing = job.flow_failure(str(status.dataset))
    if failing is None:
        return status
    name, flow = failing
    failure = Reason.of(ReasonCode.FLOW_FAILED, flow=name, attempts=flow.attempts, text=flow.error)
    return replace(status, failure=failure, error=str(failure), failing_since_ms=flow.since_ms)


def _first_failures(
    connection: Connection, errors: Mapping[str, Row[Any]], complete: Mapping[str, _Cut]
) -> dict[str, int]:
    """By dataset that failed after it was complete the cut of its first failure since."""
    last = {name: complete[name].number if name in complete else 0 for name in errors}
    failing = sorted(name for name, error in errors.items() if error.checkpoint > last[name])
    result: dict[str, int] = {}
    for start in range(0, len(failing), _CONDITIONS):
        since = [
            (_F.dataset == name) & (_F.checkpoint > last[name]) for name in failing[start:][:_CONDITIONS]
        ]
        query = (
            select(_F.dataset, func.min(_C.cut_at_ms).label("cut_at_ms"))
            .join(t.checkpoints, _C.number == _F.checkpoint)
            .where(or_(*since))
            .group_by(_F.dataset)
        )
        result |= {row.dataset: row.cut_at_ms for row in connection.execute(query)}
    return result


def _state(status: DatasetStatus, job: _Job) -> DatasetState:
    state = _state_while_running(status, job)
    needs_its_job = state not in (DatasetState.FAILING, DatasetState.WAITING)
    return DatasetState.NOT_RUNNING if job.liveness.is_down and needs_its_job else state


def _state_while_running(status: DatasetStatus, job: _Job) -> DatasetState:
    code = None if status.failure is None else status.failure.code
    if code is ReasonCode.WAITS_FOR_BULK:
        # The first load of a database table is not complete.
        return DatasetState.BUILDING
    if status.error is not None:
        return DatasetState.WAITING if code is ReasonCode.WAITS_FOR_INPUT else DatasetState.FAILING
    if status.checkpoint is None:
        return DatasetState.NEVER
    if job.done is None or status.checkpoint < job.done.number:
        return DatasetState.BEHIND
    if job.newest is not None and status.checkpoint < job.newest.number:
        # No dataset of the job has a version for its newest cut yet: that checkpoint is being refreshed.
        return DatasetState.BUILDING
    # After the end of a one-shot run only another run could know more.
    return DatasetState.BEHIND if job.runs and status.lag_ms else DatasetState.FRESH


def _status(
    row: Row[Any],
    version: str | None,
    complete: _Cut | None,
    job: _Job,
    error: Row[Any] | None,
    observed_ms: int | None,
    now: int,
) -> DatasetStatus:
    """A status whose state is not known yet."""
    lag_ms = None if complete is None else _lag_ms(complete, job, observed_ms, now)
    if error is not None and row.kind not in VERSIONED_KINDS:
        error = None
    if error is not None and complete is not None and error.checkpoint <= complete.number:
        error = None
    return DatasetStatus(
        dataset=parse(row.name),
        job=row.job,
        kind=row.kind,
        state=DatasetState.NEVER,
        version=None if version is None else Version(version),
        checkpoint=None if complete is None else CheckpointNumber(complete.number),
        mode=RefreshMode(row.last_mode) if row.last_mode else None,
        reason=(
            None
            if row.last_reason is None
            else Reason.stored(row.last_reason, row.last_reason_code, row.last_reason_params)
        ),
        error=None if error is None else error.error,
        failure=None if error is None else stored_failure(error),
        lag_ms=lag_ms,
        refreshed_at_ms=row.last_at_ms,
        skipped=skipped_files_of(row.skipped_files),
        expectations=stored_expectations(row.expectations),
    )


def _lag_ms(seen: _Cut, job: _Job, observed_ms: int | None, now: int) -> int:
    """For how long there may be news that the cut does not have, in milliseconds.

    Args:
        observed_ms: all that the sources held at this time is in the cut; None: not known.
    """
    if job.newest is not None and seen.number < job.newest.number:
        return max(0, now - seen.cut_at_ms if observed_ms is None else now - observed_ms)
    if job.runs:
        lag_ms = 0 if observed_ms is None else now - observed_ms
        return lag_ms if lag_ms > job.usual_lag_ms else 0
    return max(0, now - (max(seen.cut_at_ms, job.seen_ms) if observed_ms is None else observed_ms))


def _readable_cuts(
    connection: Connection,
    rows: Sequence[Row[Any]],
    done: Mapping[str, _Cut],
    complete_now: Collection[tuple[str, str]],
    versions: Collection[str],
    topology: Topology,
) -> dict[str, _Cut]:
    """By table the newest checkpoint at which strong readers see it. Related tables share one query, and need
    it only where one of them is late."""
    built = {row.name: row.job for row in rows if row.name in versions}
    ever_built = {*versions}
    remaining = set(built)
    result: dict[str, _Cut] = {}
    late: dict[str, int] = {}
    while remaining:
        first = remaining.pop()
        related = {first} | topology.related({first})
        related_tables = related & built.keys()
        remaining -= related_tables
        newest = {done[built[name]] for name in related_tables if built[name] in done}
        if len(newest) == 1 and all((built[name], name) in complete_now for name in related_tables):
            (seen,) = newest
            result |= dict.fromkeys(related_tables, seen)
            continue
        number = newest_readable(connection, related_tables, related & ever_built)
        if number is not None:
            late |= dict.fromkeys(related_tables, number)
    cuts = select(_C.number, _C.cut_at_ms).where(_C.number.in_({*late.values()}))
    cut_at_ms = {row.number: row.cut_at_ms for row in connection.execute(cuts)} if late else {}
    return result | {name: _Cut(number, cut_at_ms[number]) for name, number in late.items()}


def _kept_from_readers(connection: Connection) -> dict[str, tuple[str, int]]:
    """By table that a broken invariant hides from readers: the error, and when the cut was that they see."""
    kept_back = held_back(connection)
    if not kept_back:
        return {}
    seen = visibility_limits(connection)
    numbers = {number for number, _ in kept_back.values()} | {*seen.values()}
    query = select(_C.number, _C.cut_at_ms).where(_C.number.in_(numbers))
    cut_at_ms = {row.number: row.cut_at_ms for row in connection.execute(query)}
    result = {}
    for name, (number, error) in kept_back.items():
        result[name] = error, cut_at_ms.get(seen.get(name, number), cut_at_ms.get(number, 0))
    return result


def _newest_cuts(connection: Connection, *, done: bool = False) -> dict[str, _Cut]:
    """By job its newest visible checkpoint; with `done` the newest of which it did its part."""
    parts = (
        select(_P.job, func.max(_C.number).label("number"))
        .join(t.checkpoints, _P.checkpoint == _C.number)
        .where(_C.state.in_(VISIBLE_STATES))
    )
    if done:
        parts = parts.where(_P.state == Part.DONE.value)
    top = parts.group_by(_P.job).subquery()
    query = select(top.c.job, _C.number, _C.cut_at_ms).join(t.checkpoints, _C.number == top.c.number)
    return {row.job: _Cut(row.number, row.cut_at_ms) for row in connection.execute(query)}


def _newest_versions(connection: Connection) -> dict[str, str]:
    top = (
        select(_V.table_name, func.max(_V.from_checkpoint).label("start")).group_by(_V.table_name).subquery()
    )
    query = select(t.versions).join(
        top,
        (_V.table_name == top.c.table_name) & (_V.from_checkpoint == top.c.start),
    )
    return {row.table_name: row.version for row in connection.execute(query)}


def _complete_at(connection: Connection, done: dict[str, _Cut]) -> set[tuple[str, str]]:
    """The tables that have a version at the newest checkpoint of which their job did its part."""
    groups: dict[int, list[str]] = {}
    for job, cut in done.items():
        groups.setdefault(cut.number, []).append(job)
    result: set[tuple[str, str]] = set()
    for number, jobs in groups.items():
        query = select(_V.job, _V.table_name).where(_V.job.in_(jobs), _covers(number))
        result |= {(row.job, row.table_name) for row in connection.execute(query)}
    return result


def _last_complete_checkpoints(connection: Connection, names: Collection[str]) -> dict[str, _Cut]:
    """The newest checkpoint that shows each of these tables."""
    if not names:
        return {}
    newest = (
        select(_C.number)
        .join(t.versions, _covers(_C.number))
        .join(t.checkpoint_jobs, (_P.checkpoint == _C.number) & (_P.job == _V.job))
        .where(_V.table_name == _D.name)
        .where(_P.state == Part.DONE.value, _C.state.in_(VISIBLE_STATES))
        .order_by(_C.number.desc())
        .limit(1)
        .correlate(t.datasets)
        .scalar_subquery()
    )
    numbered = select(_D.name, newest.label("number")).where(_D.name.in_(names)).subquery()
    query = select(numbered.c.name, _C.number, _C.cut_at_ms).join(
        t.checkpoints, _C.number == numbered.c.number
    )
    return {row.name: _Cut(row.number, row.cut_at_ms) for row in connection.execute(query)}


def _covers(number: Any) -> Any:
    return (_V.from_checkpoint <= number) & or_(_V.to_checkpoint.is_(None), _V.to_checkpoint >= number)


def _newest_errors(connection: Connection) -> dict[str, Row[Any]]:
    """By dataset the newest failure: its checkpoint and error."""
    top = select(_F.dataset, func.max(_F.checkpoint).label("number")).group_by(_F.dataset).subquery()
    query = select(t.failures).join(top, (_F.dataset == top.c.dataset) & (_F.checkpoint == top.c.number))
    return {row.dataset: row for row in connection.execute(query)}

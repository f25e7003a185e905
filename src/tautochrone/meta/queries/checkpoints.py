"""Checkpoint rows, the parts of jobs in them, and the errors of asking for one that can't be read.

Connected jobs share their checkpoints. When a job asks what to do, the answer is one of three:

- *do checkpoint n*: the rendezvous if the job has not done it, else the newest. The rendezvous is the
  oldest open checkpoint that no job has skipped. All jobs do it first, so they complete it together however
  different their speeds are. A job that goes to a newer checkpoint has *skipped* the ones before.
- *open a new one*: the job has done its part of all, and so has every live job, or the others have been
  working for longer than the patience.
- *wait*: a live job is still working; the answer names it.

Leases (by this store's clock) decide only for whom the others wait. Who may write is decided by fences.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, select, update

from tautochrone.errors import CheckpointUnavailableError
from tautochrone.meta.database import tables as t
from tautochrone.meta.database.repository import VERSIONED_KINDS
from tautochrone.meta.protocols.checkpoints import BusyJob
from tautochrone.meta.protocols.jobs import REGISTERED
from tautochrone.meta.queries import version_intervals as intervals
from tautochrone.meta.queries.invariant_checks import broken_at
from tautochrone.meta.queries.run_reports import end_from_json, report_from_json
from tautochrone.meta.queries.source_observations import unobserved_roots
from tautochrone.meta.queries.topology import Topology, read_topology
from tautochrone.meta.queries.version_intervals import Cut, cut_at, discard, recorded
from tautochrone.model.checkpoint import Checkpoint, CheckpointState
from tautochrone.model.jobs import (
    BlockerKind,
    JobState,
    JobStatus,
    Liveness,
    Part,
    PublicationBlocker,
    RunProcess,
)
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.reason import Reason, ReasonCode

__all__ = [
    "as_checkpoint",
    "as_versions",
    "assign_parts",
    "busy_jobs_with",
    "checkpoint_not_found_error",
    "checkpoint_row",
    "close_if_finished",
    "is_alive",
    "job_statuses",
    "liveness_of",
    "next_checkpoint",
    "pending",
    "require_readable",
    "row_cut",
    "set_state",
    "skip",
    "skip_before",
    "skip_stale_parts",
    "stored_failure",
    "unfinished_parts",
    "unobserved_sources",
    "unrecorded_datasets",
]

_C, _P, _J = t.checkpoints.c, t.checkpoint_jobs.c, t.jobs.c


def stored_failure(row: Row[Any]) -> Reason | None:
    """The failure of a row that has the columns `error`, `error_code` and `error_params`."""
    return None if row.error is None else Reason.stored(row.error, row.error_code, row.error_params)


def checkpoint_row(connection: Connection, number: int, *, lock: bool = False) -> Row[Any]:
    """The row of a checkpoint.

    Raises:
        CheckpointUnavailableError: `CHECKPOINT_NOT_FOUND`.
    """
    query = select(t.checkpoints).where(_C.number == number)
    row = connection.execute(query.with_for_update() if lock else query).first()
    if row is None:
        raise checkpoint_not_found_error(number)
    return row


def checkpoint_not_found_error(number: int) -> CheckpointUnavailableError:
    """The store knows no such checkpoint."""
    return CheckpointUnavailableError(
        "CHECKPOINT_NOT_FOUND",
        f"There is no checkpoint {number}: it never was, or it expired long ago",
        hint="`taut checkpoints` lists those that can be read.",
    )


_WHY_NOT = {
    CheckpointState.OPEN: ("CHECKPOINT_NOT_PUBLISHED", "is still being built"),
    CheckpointState.ABORTED: ("CHECKPOINT_NOT_PUBLISHED", "was aborted and never published"),
    CheckpointState.EXPIRED: ("CHECKPOINT_EXPIRED", "has expired"),
    CheckpointState.REVOKED: ("CHECKPOINT_REVOKED", "was revoked"),
}


def require_readable(connection: Connection, row: Row[Any]) -> None:
    """Raise the error class that fits a checkpoint's state unless some job's tables can be read at it."""
    if row.state in (CheckpointState.PUBLISHED, CheckpointState.PARTIAL):
        return
    p = t.checkpoint_jobs.c
    done = select(p.job).where(p.checkpoint == row.number, p.state == Part.DONE.value).limit(1)
    if row.state == CheckpointState.OPEN and connection.execute(done).first() is not None:
        return
    error_class, state = _WHY_NOT[CheckpointState(row.state)]
    raise CheckpointUnavailableError(
        error_class,
        f"Checkpoint {row.number} {state}",
        hint="`taut checkpoints` lists those that can be read.",
    )


def row_cut(connection: Connection, row: Row[Any]) -> Cut:
    """The tables at this checkpoint; for an open one, what was recorded for it so far."""
    return cut_at(connection, row.number)


def as_versions(versions: Any) -> dict[TableName, Version]:
    """Names and versions as values of the model."""
    return {TableName.parse(name): Version(version) for name, version in versions.items()}


def as_checkpoint(connection: Connection, row: Row[Any], cut: Cut | None = None) -> Checkpoint:
    """The row as a value, with the versions of its roots (empty once it was given up).

    Args:
        cut: of the row, if it was read already.
    """
    cut = cut or row_cut(connection, row)
    roots = {name: version for name, version in cut.versions.items() if name in cut.roots}
    return Checkpoint(
        number=CheckpointNumber(row.number),
        state=CheckpointState(row.state),
        cut_at_ms=row.cut_at_ms,
        published_at_ms=row.published_at_ms,
        roots=as_versions({} if row.state == CheckpointState.ABORTED else roots),
        broken=broken_at(connection, row.number) if row.state != CheckpointState.PUBLISHED else (),
    )


def set_state(connection: Connection, number: int, state: CheckpointState) -> None:
    """Change the state of one checkpoint."""
    connection.execute(update(t.checkpoints).where(_C.number == number).values(state=state.value))


def unrecorded_datasets(connection: Connection, job: str, number: int) -> list[str]:
    """Datasets of the job that have neither a version nor a failure at its open target."""
    d, f = t.datasets.c, t.failures.c
    names = connection.execute(
        select(d.name).where(d.job == job, d.retired.is_(False), d.kind.in_(VERSIONED_KINDS))
    ).scalars()
    failed = set(connection.execute(select(f.dataset).where(f.checkpoint == number)).scalars())
    known = recorded(connection, job, number)
    return sorted(name for name in names if name not in failed and name not in known)


def close_if_finished(connection: Connection, number: int, at_ms: int | None = None) -> CheckpointState:
    """Close a checkpoint when no job is at work on it any more: published when all did their part,
    partial when some did, aborted (what was recorded is forgotten) when nobody did. Answers its state."""
    p = t.checkpoint_jobs.c
    parts = set(connection.execute(select(p.state).where(p.checkpoint == number)).scalars())
    if Part.PENDING in parts:
        return CheckpointState.OPEN
    if Part.DONE not in parts:
        connection.execute(delete(t.failures).where(t.failures.c.checkpoint == number))
        discard(connection, number)
        set_state(connection, number, CheckpointState.ABORTED)
        return CheckpointState.ABORTED
    state = CheckpointState.PARTIAL if Part.SKIPPED in parts else CheckpointState.PUBLISHED
    connection.execute(
        update(t.checkpoints).where(_C.number == number).values(state=state.value, published_at_ms=at_ms)
    )
    return state


def unfinished_parts(
    connection: Connection, job: str, number: int, alive: set[str]
) -> Iterator[PublicationBlocker]:
    """The other jobs that have not done their part of a checkpoint; none when it is published."""
    state = connection.execute(select(_C.state).where(_C.number == number)).scalar_one()
    if state == CheckpointState.PUBLISHED:
        return
    broken: dict[str, dict[str, str]] = {}
    for name, broken_job, error in _broken(connection, number):
        broken.setdefault(broken_job, {})[name] = error
    parts = select(_P.job, _P.state, _P.waits_for).where(
        _P.checkpoint == number, _P.job != job, _P.state != Part.DONE.value
    )
    for row in connection.execute(parts.order_by(_P.job)):
        names = tuple(sorted(broken.get(row.job, ())))
        if names:
            blocker_kind, text = BlockerKind.INVARIANT, "; ".join(broken[row.job][name] for name in names)
            reason = Reason.of(ReasonCode.INVARIANT_BROKEN, invariants=list(names), text=text)
        elif row.state == Part.SKIPPED:
            blocker_kind = BlockerKind.SKIPPED
            reason = Reason.of(ReasonCode.JOB_SKIPPED_CHECKPOINT, job=row.job, checkpoint=number)
        elif row.job not in alive:
            blocker_kind = BlockerKind.AWAY
            reason = Reason.of(ReasonCode.JOB_NOT_RUNNING, job=row.job, checkpoint=number)
        else:
            blocker_kind = BlockerKind.PENDING
            reason = Reason.of(
                ReasonCode.JOB_UNFINISHED, job=row.job, checkpoint=number, waits_for=row.waits_for
            )
        yield PublicationBlocker(
            job=row.job,
            checkpoint=CheckpointNumber(number),
            kind=blocker_kind,
            invariants=names,
            reason=reason,
        )


def _broken(connection: Connection, number: int) -> list[tuple[str, str, str]]:
    """Name, job and sentence of the invariants that were broken at a checkpoint."""
    b = t.invariants_broken.c
    rows = connection.execute(
        select(b.name, b.job).where(b.checkpoint == number).order_by(b.job, b.name)
    ).all()
    errors = [invariant.error for invariant in broken_at(connection, number)]
    return [(row.name, row.job, error) for row, error in zip(rows, errors, strict=True)]


def unobserved_sources(
    connection: Connection, job: str, number: int, alive: set[str], sources_as_of_ms: int
) -> Iterator[PublicationBlocker]:
    """The live jobs that have not observed a source of the job's tables since `sources_as_of_ms`."""
    reported: set[str] = set()
    for name, observers in unobserved_roots(
        connection, number, read_topology(connection).datasets(job), sources_as_of_ms
    ):
        for observer in observers:
            # The job has observed its own sources, and no live job observes the others.
            if observer == job or observer not in alive or job in observers or observer in reported:
                continue
            reported.add(observer)
            yield PublicationBlocker(
                job=observer,
                checkpoint=CheckpointNumber(number),
                kind=BlockerKind.SOURCE,
                reason=Reason.of(
                    ReasonCode.SOURCE_NOT_OBSERVED, checkpoint=number, table=str(name), job=observer
                ),
            )


def busy_jobs_with(
    connection: Connection, job: str, topology: Topology, now: int, patience_ms: int
) -> list[BusyJob]:
    """See `Checkpoints.busy_jobs`."""
    other_jobs = topology.jobs_sharing_with(job) - {job}
    if not other_jobs:
        return []
    query = (
        select(_P.job, _P.checkpoint, _P.started_ms, _P.waits_for, _C.opened_ms)
        .join(t.checkpoints, _C.number == _P.checkpoint)
        .where(_P.job.in_(other_jobs), _P.state == Part.PENDING.value)
        .order_by(_P.checkpoint)
    )
    jobs = connection.execute(select(_J.name, _J.state, _J.lease_until_ms))
    alive = {row.name for row in jobs if is_alive(row.state, row.lease_until_ms, now)}
    busy_by_job: dict[str, BusyJob] = {}
    within_patience: dict[str, bool] = {}
    for row in connection.execute(query):
        since = row.opened_ms if row.started_ms is None else row.started_ms
        if row.job not in alive or not {row.waits_for or row.job} <= alive:
            continue
        # A job that exceeds the patience for one checkpoint is not waited for at all.
        within_patience[row.job] = within_patience.get(row.job, True) and now - since <= patience_ms
        busy_by_job[row.job] = BusyJob(
            job=row.job, checkpoint=CheckpointNumber(row.checkpoint), since_ms=since
        )
    return [holder for name, holder in sorted(busy_by_job.items()) if within_patience[name]]


def assign_parts(
    connection: Connection,
    opener: str,
    number: int,
    roots: Mapping[str, str],
    topology: Topology,
    now: int,
) -> frozenset[str]:
    """Give every job of the topology its part in a new checkpoint.

    Returns the jobs that have something to do. The others are done at once: jobs whose inputs did
    not change, because their versions stay valid, and jobs that only ingest.
    """
    jobs = topology.jobs_sharing_with(opener)
    unchanged = _jobs_without_new_input(connection, jobs - {opener}, roots, topology)
    # The cut already names all versions of a job that only ingests.
    unchanged |= {
        job
        for job in jobs - {opener}
        if topology.only_ingests(job) and topology.datasets(job) <= roots.keys()
    }
    for job in sorted(jobs):
        done = job in unchanged
        connection.execute(
            insert(t.checkpoint_jobs).values(
                checkpoint=number,
                job=job,
                state=(Part.DONE if done else Part.PENDING).value,
                started_ms=now if done or job == opener else None,
                finished_ms=now if done else None,
            )
        )
        if done:
            intervals.confirm(connection, job, number)
    return jobs - unchanged


def skip_stale_parts(connection: Connection, jobs: Iterable[str], number: int, now: int) -> None:
    """Skip the parts of checkpoints older than `number` that the jobs will not do any more, and close those
    checkpoints."""
    for job in jobs:
        _skip_older(connection, job, number, now)


def pending(connection: Connection, job: str) -> list[int]:
    """The checkpoints of which the job has not done its part yet, oldest first."""
    query = select(_P.checkpoint).where(_P.job == job, _P.state == Part.PENDING.value)
    return list(connection.execute(query.order_by(_P.checkpoint)).scalars())


def next_checkpoint(connection: Connection, job: str) -> int | None:
    numbers = pending(connection, job)
    if not numbers:
        return None
    rendezvous = _rendezvous(numbers, _skipped(connection, numbers))
    return numbers[-1] if rendezvous is None else rendezvous


def _skipped(connection: Connection, numbers: Collection[int]) -> frozenset[int]:
    """Those of the checkpoints that some job has skipped."""
    skipped = select(_P.checkpoint).where(_P.checkpoint.in_(numbers), _P.state == Part.SKIPPED.value)
    return frozenset(connection.execute(skipped).scalars())


def _rendezvous(numbers: Iterable[int], skipped: Collection[int]) -> int | None:
    """The oldest of a job's pending checkpoints that no job has skipped."""
    return next((number for number in numbers if number not in skipped), None)


def skip_before(connection: Connection, job: str, number: int) -> None:
    for older in pending(connection, job):
        if older < number:
            skip(connection, job, older)


def skip(connection: Connection, job: str, number: int) -> None:
    """Record that the job will not do its part of the checkpoint."""
    connection.execute(
        update(t.checkpoint_jobs)
        .where(_P.checkpoint == number, _P.job == job)
        .values(state=Part.SKIPPED.value)
    )
    close_if_finished(connection, number)


def _skip_older(connection: Connection, job: str, number: int, now: int) -> None:
    """Skip a job's older checkpoints, except the one that it has started and the rendezvous. A job that is
    not alive skips all: it will continue with the newest."""
    query = (
        select(_P.checkpoint, _P.started_ms)
        .where(_P.job == job, _P.state == Part.PENDING.value, _P.checkpoint < number)
        .order_by(_P.checkpoint)
    )
    rows = connection.execute(query).all()
    if not rows:
        return
    kept_numbers: set[int] = set()
    job_row = connection.execute(select(_J.state, _J.lease_until_ms).where(_J.name == job)).one()
    if is_alive(job_row.state, job_row.lease_until_ms, now):
        kept_numbers = {row.checkpoint for row in rows if row.started_ms is not None}
        numbers = [row.checkpoint for row in rows]
        rendezvous = _rendezvous(numbers, _skipped(connection, numbers))
        kept_numbers |= set() if rendezvous is None else {rendezvous}
    for row in rows:
        if row.checkpoint not in kept_numbers:
            skip(connection, job, row.checkpoint)


def _jobs_without_new_input(
    connection: Connection, jobs: frozenset[str], roots: Mapping[str, str], topology: Topology
) -> set[str]:
    """The jobs whose inputs all have the versions of their newest checkpoint, where no dataset failed."""
    last: dict[str, int] = {}
    for job in jobs:
        query = (
            select(_P.checkpoint, _P.state, _C.state.label("checkpoint_state"))
            .join(t.checkpoints, _C.number == _P.checkpoint)
            .where(_P.job == job, _P.state != Part.SKIPPED.value)
        )
        newest = connection.execute(query.order_by(_P.checkpoint.desc()).limit(1)).first()
        # The tables no longer have the versions of a revoked checkpoint.
        revoked = newest is not None and newest.checkpoint_state == CheckpointState.REVOKED
        if newest is not None and newest.state == Part.DONE and not revoked:
            last[job] = newest.checkpoint
    cuts = {number: intervals.cut_at(connection, number) for number in {*last.values()}}
    before = {number: cut.versions for number, cut in cuts.items()}
    candidates = {
        job
        for job, number in last.items()
        if (own := topology.datasets(job)) <= cuts[number].versions_for(job, own - topology.roots).keys()
    }
    while True:
        now = dict(roots)
        for job in candidates:
            cut = before[last[job]]
            now |= {name: cut[name] for name in topology.datasets(job) if name not in topology.roots}
        still_unchanged = {
            job
            for job in candidates
            if all(
                name in now and before[last[job]].get(name) == now[name]
                for name in topology.reads(job) | (topology.datasets(job) & topology.roots)
            )
        }
        if still_unchanged == candidates:
            return still_unchanged
        candidates = still_unchanged


def is_alive(state: str, lease_until_ms: int | None, now: int) -> bool:
    """Whether a job runs and its lease has not ended."""
    return state == JobState.RUNNING and lease_until_ms is not None and lease_until_ms > now


def liveness_of(row: Row[Any], now: int) -> Liveness:
    """What the row of a job says of its process."""
    if row.state == JobState.ENDED:
        return Liveness.FAILED if (row.ended or {}).get("error") is not None else Liveness.ENDED
    if is_alive(row.state, row.lease_until_ms, now):
        return Liveness.RUNNING
    # A job of another program may start by the API and never renew its lease.
    renews_lease = row.pipeline != REGISTERED or row.heartbeat_ms != row.started_ms
    return Liveness.STOPPED if row.state == JobState.RUNNING and renews_lease else Liveness.REGISTERED


def job_statuses(connection: Connection, topology: Topology, now: int) -> tuple[JobStatus, ...]:
    """All jobs, by name."""
    done = select(_P.job, func.max(_P.checkpoint).label("number")).where(_P.state == Part.DONE.value)
    newest = {row.job: row.number for row in connection.execute(done.group_by(_P.job))}
    targets = _next_checkpoints(connection)
    rows = connection.execute(select(t.jobs).order_by(_J.name)).all()
    return tuple(_job_status(row, newest.get(row.name), targets.get(row.name), topology, now) for row in rows)


def _next_checkpoints(connection: Connection) -> dict[str, int]:
    """What `next_checkpoint` says of each job that has one."""
    query = select(_P.job, _P.checkpoint).where(_P.state == Part.PENDING.value).order_by(_P.checkpoint)
    pending_numbers: dict[str, list[int]] = {}
    for row in connection.execute(query):
        pending_numbers.setdefault(row.job, []).append(row.checkpoint)
    numbers = {number for some in pending_numbers.values() for number in some}
    skipped = _skipped(connection, numbers) if numbers else frozenset()
    return {job: _rendezvous(some, skipped) or some[-1] for job, some in pending_numbers.items()}


def _job_status(
    row: Row[Any], newest: int | None, target: int | None, topology: Topology, now: int
) -> JobStatus:
    return JobStatus(
        name=row.name,
        pipeline=row.pipeline,
        fence=Fence(row.fence),
        state=JobState(row.state),
        alive=is_alive(row.state, row.lease_until_ms, now),
        owner=row.owner,
        started_ms=row.started_ms,
        heartbeat_ms=row.heartbeat_ms,
        lease_until_ms=row.lease_until_ms,
        target=None if target is None else CheckpointNumber(target),
        newest_done=None if newest is None else CheckpointNumber(newest),
        datasets=len(topology.datasets(row.name)),
        liveness=liveness_of(row, now),
        process=None if row.process is None else RunProcess(**row.process),
        report=report_from_json(row.report),
        end=end_from_json(row.ended),
    )

"""Which checkpoint a job does next, and when a new one may be opened.

Connected jobs share their checkpoints. When a job asks, the answer is one of three:

- *do checkpoint n*: the rendezvous if the job has not done it, else the newest. The rendezvous is the
  oldest open checkpoint that no job has skipped. All jobs do it first, so they complete it together however
  different their speeds are. A job that goes to a newer checkpoint has *skipped* the ones before.
- *open a new one*: the job has done its part of all, and so has every live job, or the others have been
  working for longer than the patience.
- *wait*: a live job is still working; the answer names it.

Leases (by this store's clock) decide only for whom the others wait. Who may write is decided by fences.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, Row, func, insert, select, update

from tautochrone.meta.database import tables as t
from tautochrone.meta.protocols.checkpoints import BusyJob
from tautochrone.meta.queries import version_intervals as intervals
from tautochrone.meta.queries.read_models import close_if_finished
from tautochrone.meta.queries.topology import Topology
from tautochrone.model.checkpoint import CheckpointState
from tautochrone.model.jobs import JobState, JobStatus, Part, RunProcess
from tautochrone.model.names import CheckpointNumber, Fence

__all__ = [
    "assign_parts",
    "busy_jobs_with",
    "is_alive",
    "job_status",
    "next_checkpoint",
    "pending",
    "skip",
    "skip_before",
    "skip_stale_parts",
]


_C, _P, _J = t.checkpoints.c, t.checkpoint_jobs.c, t.jobs.c


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
    rendezvous = _rendezvous(connection, numbers)
    return numbers[-1] if rendezvous is None else rendezvous


def _rendezvous(connection: Connection, numbers: list[int]) -> int | None:
    """The oldest of a job's pending checkpoints that no job has skipped."""
    skipped = select(_P.checkpoint).where(_P.checkpoint.in_(numbers), _P.state == Part.SKIPPED.value)
    skipped_numbers = set(connection.execute(skipped).scalars())
    return next((number for number in numbers if number not in skipped_numbers), None)


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
        rendezvous = _rendezvous(connection, [row.checkpoint for row in rows])
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
    before = {number: intervals.cut_at(connection, number).versions for number in {*last.values()}}
    candidates = {job for job, number in last.items() if topology.datasets(job) <= before[number].keys()}
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


def job_status(connection: Connection, row: Row[Any], topology: Topology, now: int) -> JobStatus:
    done = select(func.max(_P.checkpoint)).where(_P.job == row.name, _P.state == Part.DONE.value)
    newest = connection.execute(done).scalar()
    target = next_checkpoint(connection, row.name)
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
        process=None if row.process is None else RunProcess(**row.process),
    )

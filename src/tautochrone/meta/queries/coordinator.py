"""Which checkpoint a job does next, and when a new one may be opened.

Jobs that belong together share their checkpoints. When a job asks, the answer is one of three:

- *do checkpoint n*: the rendezvous if the job has not done it, else the newest. The rendezvous is the
  oldest open checkpoint that no job has skipped. As everybody does it first, all meet there however
  different their speeds are; what a job leaves behind by going to a newer one it has *skipped*.
- *open a new one*: the job has done all, and so has everybody who is alive, or they have been at work
  for longer than anybody's patience.
- *wait*: somebody who is alive is still at work; the answer names who.

Leases (by this store's clock) decide only for whom the others wait. Who may write is decided by fences.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Row, func, insert, select, update

from tautochrone.meta.database import tables as t
from tautochrone.meta.protocols.checkpoints import Holder
from tautochrone.meta.queries import version_intervals as intervals
from tautochrone.meta.queries.read_models import settle
from tautochrone.meta.queries.topology import Topology
from tautochrone.model.checkpoint import CheckpointState
from tautochrone.model.jobs import JobState, JobStatus, Part, RunProcess
from tautochrone.model.names import CheckpointNumber, Fence

__all__ = ["enlist", "holders", "is_alive", "job_status", "next_checkpoint", "pending", "skip", "skip_before"]


_C, _P, _J = t.checkpoints.c, t.checkpoint_jobs.c, t.jobs.c


def holders(connection: Connection, job: str, found: Topology, now: int, patience_ms: int) -> list[Holder]:
    """See `Checkpoints.busy_jobs`."""
    others = found.jobs_with(job) - {job}
    if not others:
        return []
    query = (
        select(_P.job, _P.checkpoint, _P.started_ms, _P.waits_for, _C.opened_ms)
        .join(t.checkpoints, _C.number == _P.checkpoint)
        .where(_P.job.in_(others), _P.state == Part.PENDING.value)
        .order_by(_P.checkpoint)
    )
    jobs = connection.execute(select(_J.name, _J.state, _J.lease_until_ms))
    alive = {row.name for row in jobs if is_alive(row.state, row.lease_until_ms, now)}
    held: dict[str, Holder] = {}
    patient: dict[str, bool] = {}
    for row in connection.execute(query):
        since = row.opened_ms if row.started_ms is None else row.started_ms
        if row.job not in alive or not {row.waits_for or row.job} <= alive:
            continue
        # One that is late with anything isn't waited for, whatever else it has to do.
        patient[row.job] = patient.get(row.job, True) and now - since <= patience_ms
        held[row.job] = Holder(job=row.job, checkpoint=CheckpointNumber(row.checkpoint), since_ms=since)
    return [holder for name, holder in sorted(held.items()) if patient[name]]


def enlist(
    connection: Connection, opener: str, number: int, roots: Mapping[str, str], found: Topology, now: int
) -> None:
    """Give every job of the topology its part in a new checkpoint.

    Jobs whose inputs are what they were have nothing to do: their versions last, and they are done. So
    are those that only ingest.
    What is left of older checkpoints and cannot become complete any more is closed.
    """
    jobs = found.jobs_with(opener)
    carried = _unchanged(connection, jobs - {opener}, roots, found)
    # Of a job that only ingests everything was said by the cut.
    carried |= {
        job for job in jobs - {opener} if found.only_ingests(job) and found.datasets(job) <= roots.keys()
    }
    for job in sorted(jobs):
        done = job in carried
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
    for job in jobs - carried:
        _leave_behind(connection, job, number, now)


def pending(connection: Connection, job: str) -> list[int]:
    """The checkpoints that the job has still to do, the oldest first."""
    query = select(_P.checkpoint).where(_P.job == job, _P.state == Part.PENDING.value)
    return list(connection.execute(query.order_by(_P.checkpoint)).scalars())


def next_checkpoint(connection: Connection, job: str) -> int | None:
    mine = pending(connection, job)
    if not mine:
        return None
    meeting = _rendezvous(connection, mine)
    return mine[-1] if meeting is None else meeting


def _rendezvous(connection: Connection, mine: list[int]) -> int | None:
    """The oldest of a job's pending checkpoints that no job has skipped."""
    skipped = select(_P.checkpoint).where(_P.checkpoint.in_(mine), _P.state == Part.SKIPPED.value)
    lost = set(connection.execute(skipped).scalars())
    return next((number for number in mine if number not in lost), None)


def skip_before(connection: Connection, job: str, number: int) -> None:
    for left in pending(connection, job):
        if left < number:
            skip(connection, job, left)


def skip(connection: Connection, job: str, number: int) -> None:
    """The job will never do its part of the checkpoint."""
    connection.execute(
        update(t.checkpoint_jobs)
        .where(_P.checkpoint == number, _P.job == job)
        .values(state=Part.SKIPPED.value)
    )
    settle(connection, number)


def _leave_behind(connection: Connection, job: str, number: int, now: int) -> None:
    """Of a job's older checkpoints keep the one it is at work on and the rendezvous, or nothing when it
    isn't alive: it will begin at the newest."""
    query = (
        select(_P.checkpoint, _P.started_ms)
        .where(_P.job == job, _P.state == Part.PENDING.value, _P.checkpoint < number)
        .order_by(_P.checkpoint)
    )
    rows = connection.execute(query).all()
    if not rows:
        return
    kept: set[int] = set()
    known = connection.execute(select(_J.state, _J.lease_until_ms).where(_J.name == job)).one()
    if is_alive(known.state, known.lease_until_ms, now):
        kept = {row.checkpoint for row in rows if row.started_ms is not None}
        meeting = _rendezvous(connection, [row.checkpoint for row in rows])
        kept |= set() if meeting is None else {meeting}
    for row in rows:
        if row.checkpoint not in kept:
            skip(connection, job, row.checkpoint)


def _unchanged(
    connection: Connection, jobs: frozenset[str], roots: Mapping[str, str], found: Topology
) -> set[str]:
    """The jobs of which every input is what it was at their newest checkpoint, and nothing failed there."""
    last: dict[str, int] = {}
    for job in jobs:
        query = (
            select(_P.checkpoint, _P.state, _C.state.label("checkpoint_state"))
            .join(t.checkpoints, _C.number == _P.checkpoint)
            .where(_P.job == job, _P.state != Part.SKIPPED.value)
        )
        newest = connection.execute(query.order_by(_P.checkpoint.desc()).limit(1)).first()
        # What was revoked is no longer what its tables are.
        revoked = newest is not None and newest.checkpoint_state == CheckpointState.REVOKED
        if newest is not None and newest.state == Part.DONE and not revoked:
            last[job] = newest.checkpoint
    before = {number: intervals.cut_at(connection, number).versions for number in {*last.values()}}
    candidates = {job for job, number in last.items() if found.datasets(job) <= before[number].keys()}
    while True:
        now = dict(roots)
        for job in candidates:
            cut = before[last[job]]
            now |= {name: cut[name] for name in found.datasets(job) if name not in found.roots}
        kept = {
            job
            for job in candidates
            if all(
                name in now and before[last[job]].get(name) == now[name]
                for name in found.reads(job) | (found.datasets(job) & found.roots)
            )
        }
        if kept == candidates:
            return kept
        candidates = kept


def is_alive(state: str, lease_until_ms: int | None, now: int) -> bool:
    """Whether a job runs and its lease did not run out."""
    return state == JobState.RUNNING and lease_until_ms is not None and lease_until_ms > now


def job_status(connection: Connection, row: Row[Any], found: Topology, now: int) -> JobStatus:
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
        datasets=len(found.datasets(row.name)),
        process=None if row.process is None else RunProcess(**row.process),
    )

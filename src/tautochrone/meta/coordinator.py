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
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, func, insert, select, update

from tautochrone.meta import tables as t
from tautochrone.meta import version_intervals as intervals
from tautochrone.meta.read_models import as_checkpoint, checkpoint_row, settle
from tautochrone.meta.repository import Repository
from tautochrone.meta.topology import OUTSIDE, Topology, topology
from tautochrone.model.checkpoint import Checkpoint, CheckpointState
from tautochrone.model.jobs import JobProgress, JobState, JobStatus, Part, RunProcess
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version

__all__ = ["PATIENCE_MS", "Coordinator", "Holder", "enlist", "holders", "is_alive", "pending", "skip"]

PATIENCE_MS = 30_000
"""So long those that are done wait for a job that is alive and still at work."""

_C, _P, _J = t.checkpoints.c, t.checkpoint_jobs.c, t.jobs.c


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A job for which the others wait, and the checkpoint that it is at work on."""

    job: str
    checkpoint: CheckpointNumber
    since_ms: int


class Coordinator(Repository):
    """The jobs' side of shared checkpoints."""

    def open_target(self, job: str) -> Checkpoint | None:
        """The checkpoint that the job has to do next; None when it has done all."""
        with self._read() as connection:
            number = _chosen(connection, job)
            return None if number is None else as_checkpoint(connection, checkpoint_row(connection, number))

    def take_target(self, job: str, fence: Fence) -> Checkpoint | None:
        """As `open_target`, and the job begins: older ones that it has not done it will never do.

        Raises:
            FencedError: a newer owner exists.
        """
        with self._fenced(job, fence, durable=False) as connection:
            number = _chosen(connection, job)
            if number is None:
                return None
            _skip_before(connection, job, number)
            connection.execute(
                update(t.checkpoint_jobs)
                .where(_P.checkpoint == number, _P.job == job, _P.started_ms.is_(None))
                .values(started_ms=self._clock())
            )
            return as_checkpoint(connection, checkpoint_row(connection, number))

    def held_back_by(self, job: str, patience_ms: int = PATIENCE_MS) -> tuple[Holder, ...]:
        """Who must finish, or lose its lease or the others' patience, before `job` may open a checkpoint."""
        with self._read() as connection:
            return tuple(holders(connection, job, topology(connection), self._clock(), patience_ms))

    def wait(self, job: str, fence: Fence, number: int, waits_for: str | None) -> None:
        """The job cannot go on with its target without the tables of another one (None: it can again).

        Nobody waits for a job that waits for one that is away.

        Raises:
            FencedError: a newer owner exists.
        """
        with self._fenced(job, fence, durable=False) as connection:
            connection.execute(
                update(t.checkpoint_jobs)
                .where(_P.checkpoint == number, _P.job == job)
                .values(waits_for=waits_for)
            )

    def now_ms(self) -> int:
        """The store's clock: epoch milliseconds."""
        return self._clock()

    def observe(
        self, job: str, fence: Fence, table: TableName, before: Version | None, now: Version
    ) -> Version:
        """Somebody else's table moved from `before` to `now`; answers what counts.

        Jobs look at different moments. The report of one that looked earlier and comes later must not
        turn the table back, so it counts only on top of what its reporter knew.

        Raises:
            FencedError: a newer owner exists.
        """
        with self._fenced(job, fence) as connection:
            r = t.reports.c
            key = (r.job == OUTSIDE) & (r.table_name == str(table))
            known = connection.execute(select(r.version).where(key).with_for_update()).scalar()
            if known is None:
                values = {"job": OUTSIDE, "table_name": str(table), "version": now, "at_ms": self._clock()}
                connection.execute(insert(t.reports).values(values))
            elif known == before:
                connection.execute(update(t.reports).where(key).values(version=now, at_ms=self._clock()))
            else:
                return Version(known)
            return now

    def observed(self) -> dict[TableName, Version]:
        """What was last observed of the tables that no job writes."""
        with self._read() as connection:
            rows = connection.execute(select(t.reports).where(t.reports.c.job == OUTSIDE))
            return {TableName.parse(row.table_name): Version(row.version) for row in rows}

    def shared_clocks(self, job: str) -> frozenset[TableName]:
        """The clocks that the jobs read which share checkpoints with `job`."""
        with self._read() as connection:
            found = topology(connection)
            return frozenset(map(TableName.parse, found.clocks(found.jobs_with(job))))

    def foreign(self, job: str) -> dict[TableName, str]:
        """The datasets that other jobs write, with the job of each."""
        with self._read() as connection:
            owner = topology(connection).owner
            return {TableName.parse(name): by for name, by in owner.items() if by != job}

    def job_states(self) -> tuple[JobStatus, ...]:
        """Every job, by name."""
        with self._read() as connection:
            found = topology(connection)
            now = self._clock()
            rows = connection.execute(select(t.jobs).order_by(_J.name)).all()
            return tuple(_status(connection, row, found, now) for row in rows)

    def progress(self, number: int) -> tuple[JobProgress, ...]:
        """The part of each job in a checkpoint, by job.

        Raises:
            CheckpointUnavailableError: `CHECKPOINT_NOT_FOUND`.
        """
        with self._read() as connection:
            checkpoint_row(connection, number)
            query = select(t.checkpoint_jobs, _J.state.label("job_state"), _J.lease_until_ms)
            query = query.join(t.jobs, _J.name == _P.job).where(_P.checkpoint == number)
            now = self._clock()
            return tuple(
                JobProgress(
                    job=row.job,
                    part=Part(row.state),
                    alive=is_alive(row.job_state, row.lease_until_ms, now),
                    started_ms=row.started_ms,
                    finished_ms=row.finished_ms,
                    cpu_ms=row.cpu_ms,
                    waits_for=row.waits_for,
                )
                for row in connection.execute(query.order_by(_P.job))
            )


def holders(connection: Connection, job: str, found: Topology, now: int, patience_ms: int) -> list[Holder]:
    """See `Coordinator.held_back_by`."""
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


def _chosen(connection: Connection, job: str) -> int | None:
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


def _skip_before(connection: Connection, job: str, number: int) -> None:
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


def _status(connection: Connection, row: Row[Any], found: Topology, now: int) -> JobStatus:
    done = select(func.max(_P.checkpoint)).where(_P.job == row.name, _P.state == Part.DONE.value)
    newest = connection.execute(done).scalar()
    target = _chosen(connection, row.name)
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

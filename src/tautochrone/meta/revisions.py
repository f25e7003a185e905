"""Revisions in the store: the decision is one transaction, everything after it may be repeated.

1. `decide`: against the fences of all jobs that own a table of the plan, the checkpoints after the one that
   stays are revoked, open targets are given up, the plan is written down. All of it or nothing.
2. whoever holds those jobs carries the plan out, then `complete_revision`. Until then no job that shares
   checkpoints with them opens one: it would be cut with what is being taken back.
3. `confirm_revision`: the old data is no longer kept

It must never know how tables are rolled back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Row, Select, func, insert, or_, select, update

from tautochrone.errors import ConflictError, MetaError
from tautochrone.meta import tables as t
from tautochrone.meta.read_models import checkpoint_row, require_readable, set_state, settle
from tautochrone.meta.repository import STANDING, Repository, check_fence
from tautochrone.meta.topology import Topology, topology
from tautochrone.model.checkpoint import CheckpointState
from tautochrone.model.jobs import Part
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.revision import RevisedTable, Revision, RevisionPlan, RevisionState

__all__ = ["Revisions", "require_none_under_way"]

_C, _P, _R, _V = t.checkpoints.c, t.checkpoint_jobs.c, t.revisions.c, t.versions.c
_SHOWN = (CheckpointState.PUBLISHED.value, CheckpointState.PARTIAL.value)


class Revisions(Repository):
    """Everything about `t.revisions`, and what a revision does to checkpoints."""

    def published_after(self, number: int, jobs: Iterable[str]) -> tuple[CheckpointNumber, ...]:
        """The readable checkpoints of these jobs that a revision to `number` would revoke, oldest first."""
        with self._read() as connection:
            return tuple(map(CheckpointNumber, _published_after(connection, number, jobs)))

    def revoked_after(self, job: str, number: int) -> bool:
        """Whether the job has a revoked checkpoint after `number`."""
        query = _numbers([job]).where(_C.number > number, _C.state == CheckpointState.REVOKED.value)
        with self._read() as connection:
            return connection.execute(query.limit(1)).first() is not None

    def last_complete(
        self, number: int, tables: Iterable[TableName]
    ) -> dict[TableName, tuple[CheckpointNumber, Version]]:
        """Of each table the newest checkpoint up to `number` that shows it, and its version there; tables
        that none shows are left out."""
        with self._read() as connection:
            found = {table: _last_complete(connection, number, str(table)) for table in tables}
        return {table: known for table, known in found.items() if known is not None}

    def decide(self, revision: str, plan: RevisionPlan, fences: Mapping[str, Fence]) -> Revision:
        """Write the decision down and revoke, in one transaction. Deciding it again is a no-op.

        The plan that is written down names exactly the checkpoints that were revoked.

        Args:
            revision: its id, never used before.
            fences: for each job of the plan the fence that the caller took it over with.

        Raises:
            FencedError: a job was taken over meanwhile; nothing happened.
            CheckpointUnavailableError: the checkpoint that should stay is not readable (any more).
            MetaError: `REVISION_PENDING`, another one has to be finished first.
            ConflictError: `REVISION_PLAN_CHANGED`, a table of the plan has another job, or a reader that
                the plan does not know.
        """
        with self._write() as connection:
            for job in plan.jobs:
                check_fence(connection, job, fences[job])
            # Neither a checkpoint nor a topology comes in between.
            newest = connection.execute(select(t.stores.c.last_number).with_for_update()).scalar_one()
            known = connection.execute(select(t.revisions).where(_R.id == revision)).first()
            if known is not None:
                return _as_revision(known)
            _require_whole(topology(connection), plan)
            for other in _pending(connection):
                if set(other.plan.jobs) & set(plan.jobs):
                    raise MetaError(
                        "REVISION_PENDING",
                        f"Revision {other.id} is decided and not finished",
                        hint="`taut revise` without names finishes it, and so does `taut run`",
                    )
            _give_up(connection, plan.jobs)
            if plan.to is not None:
                require_readable(connection, checkpoint_row(connection, plan.to, lock=True))
                revoked = _revoke(connection, plan.to, plan.jobs)
                _end_intervals(connection, plan.to, plan.changed)
                plan = replace(plan, revoked=revoked, last=CheckpointNumber(newest))
            # Whoever follows decisions goes on from the time of the last one: no two have the same.
            last = connection.execute(select(func.max(_R.decided_at_ms))).scalar() or 0
            decided = Revision(
                id=revision,
                state=RevisionState.DECIDED,
                plan=plan,
                decided_at_ms=max(self._clock(), last + 1),
            )
            row = {
                "id": revision,
                "state": decided.state.value,
                "plan": plan.as_json(),
                "decided_at_ms": decided.decided_at_ms,
            }
            connection.execute(insert(t.revisions).values(row))
            return decided

    def complete_revision(self, revision: str) -> None:
        """All tables are taken back. Repeatable."""
        self._advance(revision, RevisionState.DECIDED, RevisionState.DONE)

    def confirm_revision(self, revision: str) -> None:
        """The tags are dropped. Repeatable."""
        self._advance(revision, RevisionState.DONE, RevisionState.CONFIRMED)

    def revision(self, revision: str) -> Revision:
        """One revision.

        Raises:
            MetaError: `REVISION_NOT_FOUND`.
        """
        with self._read() as connection:
            row = connection.execute(select(t.revisions).where(_R.id == revision)).first()
        if row is None:
            raise MetaError(
                "REVISION_NOT_FOUND",
                f"There is no revision {revision} in this store",
                hint="`taut revise` without names lists those that are not confirmed",
            )
        return _as_revision(row)

    def revisions(self, states: Collection[RevisionState] = ()) -> tuple[Revision, ...]:
        """The revisions in one of these states (or all), oldest first."""
        query = select(t.revisions).order_by(_R.decided_at_ms, _R.id)
        if states:
            query = query.where(_R.state.in_([state.value for state in states]))
        with self._read() as connection:
            return tuple(map(_as_revision, connection.execute(query)))

    def newest_decision(self) -> int:
        """When the newest revision was decided, in epoch milliseconds; 0 for none."""
        with self._read() as connection:
            return connection.execute(select(func.max(_R.decided_at_ms))).scalar() or 0

    def decided_after(self, at_ms: int) -> tuple[Revision, ...]:
        """The revisions decided after that one, oldest first."""
        query = select(t.revisions).where(_R.decided_at_ms > at_ms).order_by(_R.decided_at_ms)
        with self._read() as connection:
            return tuple(map(_as_revision, connection.execute(query)))

    def pending_revisions(self, job: str) -> tuple[Revision, ...]:
        """Decided and unfinished revisions that change a table of the job."""
        with self._read() as connection:
            return tuple(found for found in _pending(connection) if job in found.plan.jobs)

    def _advance(self, revision: str, old: RevisionState, new: RevisionState) -> None:
        with self._write() as connection:
            connection.execute(
                update(t.revisions).where(_R.id == revision, _R.state == old.value).values(state=new.value)
            )


def require_none_under_way(connection: Connection, jobs: frozenset[str]) -> None:
    """Refuse a new checkpoint of jobs of which some table is being taken back.

    Raises:
        MetaError: `CHECKPOINT_HELD_BACK` (retryable).
    """
    for revision in _pending(connection):
        taken = jobs & set(revision.plan.jobs)
        if taken:
            raise MetaError(
                "CHECKPOINT_HELD_BACK",
                f"Revision {revision.id} takes tables of {', '.join(sorted(taken))} back and is not finished",
                hint="`taut revise` without names finishes it, and so does a run of such a job",
                retryable=True,
            )


def _require_whole(found: Topology, plan: RevisionPlan) -> None:
    """That the plan still knows who writes and who reads its tables."""
    planned = {str(one.table) for one in plan.tables}
    moved = sorted(
        str(one.table)
        for one in plan.changed
        if found.owner.get(str(one.table)) not in (one.job, None)  # nobody writes a retired one any more
    )
    readers = sorted(name for name in found.owner if found.inputs.get(name, set()) & planned)
    unknown = [name for name in readers if name not in planned]
    if moved or unknown:
        why = f"{moved[0]} has another job" if moved else f"{unknown[0]} reads one of the tables"
        raise ConflictError(
            "REVISION_PLAN_CHANGED",
            f"{why} since they were listed; nothing was changed",
            hint="look at the new list and accept it",
        )


def _last_complete(
    connection: Connection, number: int, table: str
) -> tuple[CheckpointNumber, Version] | None:
    shown = (_V.from_checkpoint <= _C.number) & or_(_V.to_checkpoint.is_(None), _V.to_checkpoint >= _C.number)
    query = (
        select(_C.number, _V.version)
        .join(t.versions, shown)
        .join(t.checkpoint_jobs, (_P.checkpoint == _C.number) & (_P.job == _V.job))
        .where(_V.table_name == table, _P.state == Part.DONE.value)
        .where(_C.state.in_(STANDING), _C.number <= number)
        .order_by(_C.number.desc())
        .limit(1)
    )
    row = connection.execute(query).first()
    return None if row is None else (CheckpointNumber(row.number), Version(row.version))


def _numbers(jobs: Iterable[str]) -> Select[int]:
    """Checkpoints in which one of the jobs takes part."""
    parts = select(_P.checkpoint).where(_P.job.in_(tuple(jobs)))
    return select(_C.number).where(_C.number.in_(parts)).order_by(_C.number)


def _published_after(connection: Connection, number: int, jobs: Iterable[str]) -> list[int]:
    query = _numbers(jobs).where(_C.number > number, _C.state.in_(_SHOWN))
    return list(connection.execute(query).scalars())


def _give_up(connection: Connection, jobs: Iterable[str], *, after: int | None = None) -> None:
    """These jobs give up what they have not done; after `after` all jobs do with whom they share it."""
    pending = select(_P.checkpoint).where(_P.job.in_(tuple(jobs)), _P.state == Part.PENDING.value)
    if after is not None:
        pending = _numbers(jobs).where(_C.number > after, _C.state == CheckpointState.OPEN.value)
    for number in connection.execute(pending).scalars().all():
        mine = (_P.checkpoint == number) & (_P.state == Part.PENDING.value)
        if after is None:
            mine &= _P.job.in_(tuple(jobs))
        connection.execute(update(t.checkpoint_jobs).where(mine).values(state=Part.SKIPPED.value))
        settle(connection, number)


def _pending(connection: Connection) -> list[Revision]:
    query = select(t.revisions).where(_R.state == RevisionState.DECIDED.value)
    return list(map(_as_revision, connection.execute(query)))


def _revoke(connection: Connection, number: int, jobs: Iterable[str]) -> tuple[CheckpointNumber, ...]:
    _give_up(connection, jobs, after=number)
    gone = tuple(map(CheckpointNumber, _published_after(connection, number, jobs)))
    for one in gone:
        set_state(connection, one, CheckpointState.REVOKED)
    return gone


def _end_intervals(connection: Connection, number: int, tables: Iterable[RevisedTable]) -> None:
    """What the tables were after `number` is no longer what they are."""
    last = connection.execute(select(t.stores.c.last_number)).scalar_one()
    names = [str(one.table) for one in tables]
    connection.execute(
        update(t.versions)
        .where(_V.table_name.in_(names), _V.from_checkpoint > number, _V.to_checkpoint.is_(None))
        .values(to_checkpoint=last)
    )


def _as_revision(row: Row[Any]) -> Revision:
    return Revision(
        id=row.id,
        state=RevisionState(row.state),
        plan=RevisionPlan.from_json(row.plan),
        decided_at_ms=row.decided_at_ms,
    )

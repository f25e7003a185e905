"""`store.revisions` in SQL."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Row, Select, func, insert, or_, select, update

from tautochrone.errors import ConflictError, MetaError
from tautochrone.meta.database import tables as t
from tautochrone.meta.database.repository import VISIBLE_STATES, Repository, check_fence
from tautochrone.meta.queries.checkpoints import (
    checkpoint_row,
    close_if_finished,
    require_readable,
    set_state,
)
from tautochrone.meta.queries.topology import Topology, read_topology
from tautochrone.model.checkpoint import CheckpointState
from tautochrone.model.jobs import Part
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.revision import RevisedTable, Revision, RevisionPlan, RevisionState

__all__ = ["SqlRevisions", "rename_job_of_plans", "require_no_pending_revision", "unfinished_revisions"]


_C, _P, _R, _V = t.checkpoints.c, t.checkpoint_jobs.c, t.revisions.c, t.versions.c
_PUBLISHED_STATES = (CheckpointState.PUBLISHED.value, CheckpointState.PARTIAL.value)


class SqlRevisions(Repository):
    """`protocols.revisions.Revisions` in SQL."""

    def decide(self, revision: str, plan: RevisionPlan, fences: Mapping[str, Fence]) -> Revision:
        with self._write() as connection:
            for job in plan.jobs:
                check_fence(connection, job, fences[job])
            # The lock keeps out new checkpoints and changes of the topology until the decision is written.
            newest = connection.execute(select(t.stores.c.last_number).with_for_update()).scalar_one()
            known = connection.execute(select(t.revisions).where(_R.id == revision)).first()
            if known is not None:
                return _as_revision(known)
            _require_whole(read_topology(connection), plan)
            for pending in _pending(connection):
                if set(pending.plan.jobs) & set(plan.jobs):
                    raise MetaError(
                        "REVISION_PENDING",
                        f"Revision {pending.id} is decided and not finished",
                        hint="`taut revise` without names finishes it, and so does `taut run`",
                    )
            _skip_pending(connection, plan.jobs)
            if plan.to is not None:
                require_readable(connection, checkpoint_row(connection, plan.to, lock=True))
                revoked = _revoke(connection, plan.to, plan.jobs)
                _end_intervals_after(connection, plan.to, plan.changed)
                plan = replace(plan, revoked=revoked, last=CheckpointNumber(newest))
            # Callers ask for the decisions after a time, so each decision needs a time of its own.
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

    def complete(self, revision: str) -> None:
        self._advance(revision, RevisionState.DECIDED, RevisionState.DONE)

    def confirm(self, revision: str) -> None:
        self._advance(revision, RevisionState.DONE, RevisionState.CONFIRMED)

    def get(self, revision: str) -> Revision:
        with self._read() as connection:
            row = connection.execute(select(t.revisions).where(_R.id == revision)).first()
        if row is None:
            raise MetaError(
                "REVISION_NOT_FOUND",
                f"There is no revision {revision} in this store",
                hint="`taut revise` without names lists those that are not confirmed",
            )
        return _as_revision(row)

    def find(self, states: Collection[RevisionState] = ()) -> tuple[Revision, ...]:
        query = select(t.revisions).order_by(_R.decided_at_ms, _R.id)
        if states:
            query = query.where(_R.state.in_([state.value for state in states]))
        with self._read() as connection:
            return tuple(map(_as_revision, connection.execute(query)))

    def pending(self, job: str) -> tuple[Revision, ...]:
        with self._read() as connection:
            return tuple(revision for revision in _pending(connection) if job in revision.plan.jobs)

    def newest_decision(self) -> int:
        with self._read() as connection:
            return connection.execute(select(func.max(_R.decided_at_ms))).scalar() or 0

    def decided_after(self, at_ms: int) -> tuple[Revision, ...]:
        query = select(t.revisions).where(_R.decided_at_ms > at_ms).order_by(_R.decided_at_ms)
        with self._read() as connection:
            return tuple(map(_as_revision, connection.execute(query)))

    def published_after(self, number: int, jobs: Iterable[str]) -> tuple[CheckpointNumber, ...]:
        with self._read() as connection:
            return tuple(map(CheckpointNumber, _published_after(connection, number, jobs)))

    def last_complete(
        self, number: int, tables: Iterable[TableName]
    ) -> dict[TableName, tuple[CheckpointNumber, Version]]:
        with self._read() as connection:
            complete = {table: _last_complete_checkpoint(connection, number, str(table)) for table in tables}
        return {table: known for table, known in complete.items() if known is not None}

    def _advance(self, revision: str, old: RevisionState, new: RevisionState) -> None:
        with self._write() as connection:
            connection.execute(
                update(t.revisions).where(_R.id == revision, _R.state == old.value).values(state=new.value)
            )


def require_no_pending_revision(connection: Connection, jobs: frozenset[str]) -> None:
    """Refuse a new checkpoint for jobs with a revision that is not finished.

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


def unfinished_revisions(connection: Connection, jobs: Collection[str]) -> list[str]:
    """The ids of revisions of these jobs that are decided and not carried out."""
    return [each.id for each in _pending(connection) if set(each.plan.jobs) & set(jobs)]


def rename_job_of_plans(connection: Connection, before: str, after: str) -> None:
    """The plans of all revisions name the job by its new name."""
    for row in connection.execute(select(t.revisions)).all():
        plan = RevisionPlan.from_json(row.plan)
        tables = tuple(replace(each, job=after) if each.job == before else each for each in plan.tables)
        if tables != plan.tables:
            renamed = replace(plan, tables=tables).as_json()
            connection.execute(update(t.revisions).where(_R.id == row.id).values(plan=renamed))


def _require_whole(topology: Topology, plan: RevisionPlan) -> None:
    """Refuse a plan when other jobs write its tables, or other datasets read them, than when it was made."""
    planned = {str(table.table) for table in plan.tables}
    moved = sorted(
        str(table.table)
        for table in plan.changed
        if topology.owner.get(str(table.table))
        not in (table.job, None)  # nobody writes a retired one any more
    )
    readers = sorted(name for name in topology.owner if topology.inputs.get(name, set()) & planned)
    unknown = [name for name in readers if name not in planned]
    if moved or unknown:
        change = f"{moved[0]} has another job" if moved else f"{unknown[0]} reads one of the tables"
        raise ConflictError(
            "REVISION_PLAN_CHANGED",
            f"{change} since they were listed; nothing was changed",
            hint="look at the new list and accept it",
        )


def _last_complete_checkpoint(
    connection: Connection, number: int, table: str
) -> tuple[CheckpointNumber, Version] | None:
    shown = (_V.from_checkpoint <= _C.number) & or_(_V.to_checkpoint.is_(None), _V.to_checkpoint >= _C.number)
    query = (
        select(_C.number, _V.version)
        .join(t.versions, shown)
        .join(t.checkpoint_jobs, (_P.checkpoint == _C.number) & (_P.job == _V.job))
        .where(_V.table_name == table, _P.state == Part.DONE.value)
        .where(_C.state.in_(VISIBLE_STATES), _C.number <= number)
        .order_by(_C.number.desc())
        .limit(1)
    )
    row = connection.execute(query).first()
    return None if row is None else (CheckpointNumber(row.number), Version(row.version))


def _numbers(jobs: Iterable[str]) -> Select[int]:
    """Select the checkpoints in which one of the jobs takes part."""
    parts = select(_P.checkpoint).where(_P.job.in_(tuple(jobs)))
    return select(_C.number).where(_C.number.in_(parts)).order_by(_C.number)


def _published_after(connection: Connection, number: int, jobs: Iterable[str]) -> list[int]:
    query = _numbers(jobs).where(_C.number > number, _C.state.in_(_PUBLISHED_STATES))
    return list(connection.execute(query).scalars())


def _skip_pending(connection: Connection, jobs: Iterable[str], *, after: int | None = None) -> None:
    """Skip what these jobs have not done; after checkpoint `after` skip the parts of all jobs that share
    it."""
    pending = select(_P.checkpoint).where(_P.job.in_(tuple(jobs)), _P.state == Part.PENDING.value)
    if after is not None:
        pending = _numbers(jobs).where(_C.number > after, _C.state == CheckpointState.OPEN.value)
    for number in connection.execute(pending).scalars().all():
        parts = (_P.checkpoint == number) & (_P.state == Part.PENDING.value)
        if after is None:
            parts &= _P.job.in_(tuple(jobs))
        connection.execute(update(t.checkpoint_jobs).where(parts).values(state=Part.SKIPPED.value))
        close_if_finished(connection, number)


def _pending(connection: Connection) -> list[Revision]:
    query = select(t.revisions).where(_R.state == RevisionState.DECIDED.value)
    return list(map(_as_revision, connection.execute(query)))


def _revoke(connection: Connection, number: int, jobs: Iterable[str]) -> tuple[CheckpointNumber, ...]:
    _skip_pending(connection, jobs, after=number)
    revoked = tuple(map(CheckpointNumber, _published_after(connection, number, jobs)))
    for revoked_number in revoked:
        set_state(connection, revoked_number, CheckpointState.REVOKED)
    return revoked


def _end_intervals_after(connection: Connection, number: int, tables: Iterable[RevisedTable]) -> None:
    """End the current intervals of the tables that began after checkpoint `number`."""
    last = connection.execute(select(t.stores.c.last_number)).scalar_one()
    names = [str(table.table) for table in tables]
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

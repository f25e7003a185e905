"""Which recorded versions must stay readable, and which checkpoints show a version that no later one does."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import ColumnElement, Connection, delete, func, or_, select

from tautochrone.meta.database import tables as t
from tautochrone.meta.database.repository import VISIBLE_STATES
from tautochrone.model.checkpoint import CheckpointState
from tautochrone.model.jobs import Part

__all__ = ["drop_unneeded", "has_newer", "is_live", "is_needed"]

_C, _V = t.checkpoints.c, t.versions.c


def is_live(without: Collection[int] = ()) -> ColumnElement[bool]:
    """The condition that a version is current, or that an unexpired checkpoint not in `without` shows it."""
    states = (*VISIBLE_STATES, CheckpointState.REVOKED.value)
    inside = (_C.number >= _V.from_checkpoint) & (_C.number <= _V.to_checkpoint)
    if without:
        inside &= _C.number.not_in(without)
    shown = select(_C.number).where(inside, _C.state.in_(states)).correlate(t.versions).exists()
    return or_(_V.to_checkpoint.is_(None), shown)


def has_newer() -> ColumnElement[bool]:
    """The condition that the same table has a later version."""
    later = t.versions.alias()
    return (
        select(later.c.id)
        .where(
            later.c.job == _V.job,
            later.c.table_name == _V.table_name,
            later.c.from_checkpoint > _V.from_checkpoint,
        )
        .correlate(t.versions)
        .exists()
    )


def is_needed(connection: Connection, number: int) -> bool:
    """Whether the checkpoint is the newest one that shows some table of a job that did its part."""
    p = t.checkpoint_jobs.c
    parts = select(p.job).where(p.checkpoint == number, p.state == Part.DONE.value)
    return any(_is_needed_by(connection, number, job) for job in connection.execute(parts).scalars().all())


def _is_needed_by(connection: Connection, number: int, job: str) -> bool:
    p = t.checkpoint_jobs.c
    later = (
        select(func.min(p.checkpoint))
        .join(t.checkpoints, _C.number == p.checkpoint)
        .where(p.job == job, p.state == Part.DONE.value, p.checkpoint > number, _C.state.in_(VISIBLE_STATES))
    )
    following = connection.execute(later).scalar()
    if following is None:
        return True
    d = t.datasets.c
    alive = select(d.name).where(d.job == job, d.retired.is_(False))
    return (
        connection.execute(
            select(_V.id)
            .where(_V.job == job, _V.table_name.in_(alive), _V.from_checkpoint <= number)
            .where(_V.to_checkpoint >= number, _V.to_checkpoint < following, ~has_newer())
            .limit(1)
        ).first()
        is not None
    )


def drop_unneeded(connection: Connection, number: int) -> None:
    """Delete the versions of an expired checkpoint that no other checkpoint shows and that are not the
    newest."""
    around = (_V.from_checkpoint <= number) & (_V.to_checkpoint >= number)
    ids = select(_V.id).where(around, ~is_live(), has_newer())
    unneeded = connection.execute(ids).scalars().all()
    if unneeded:
        connection.execute(delete(t.versions).where(_V.id.in_(unneeded)))

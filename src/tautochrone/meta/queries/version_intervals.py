"""Versions as intervals of checkpoints: the only module that writes or interprets them.

For one job and table the intervals never overlap. In a gap the table has no version. A version that many
checkpoints share is one row. The intervals also tell which versions must stay readable, and which checkpoints
show a version that no later one does. It must never know who asks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Row,
    Select,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)

from tautochrone.meta.database import tables as t
from tautochrone.meta.database.repository import VISIBLE_STATES
from tautochrone.meta.queries.topology import EXTERNAL
from tautochrone.model.checkpoint import CheckpointState
from tautochrone.model.jobs import Part

__all__ = [
    "CONFIRMED_VERSION",
    "Cut",
    "close_before",
    "confirm",
    "confirmed_version",
    "cut_at",
    "discard",
    "drop_unneeded",
    "end_external",
    "has_newer",
    "is_live",
    "is_needed",
    "record",
    "recorded",
    "repair",
    "retire",
]


_C, _P, _V = t.checkpoints.c, t.checkpoint_jobs.c, t.versions.c


def _cut() -> Select[Any]:
    """The versions that count at `:number`: of each job at the newest checkpoint that it has done."""
    number = bindparam("number", type_=BigInteger)
    revoked = select(t.checkpoints.c.number).where(t.checkpoints.c.state == CheckpointState.REVOKED.value)
    done = (_P.state == Part.DONE.value) & _P.checkpoint.not_in(revoked)
    points = (
        select(_P.job.label("job"), func.max(_P.checkpoint).label("number"))
        .where(_P.checkpoint <= number, or_(done, _P.checkpoint == number))
        .group_by(_P.job)
        .subquery()
    )
    # A job that took the table over has done its part since: what it has not recorded there is not there.
    later, owner = t.versions.alias(), t.datasets.c
    heirs = select(later.c.job).where(
        later.c.table_name == _V.table_name,
        later.c.from_checkpoint > _V.from_checkpoint,
        later.c.from_checkpoint <= number,
    )
    owners = select(owner.job).where(owner.name == _V.table_name, owner.retired.is_(False))
    parts_since = points.alias()
    is_taken_over = (
        select(parts_since.c.job)
        .where(
            parts_since.c.job != _V.job,
            parts_since.c.number > _V.to_checkpoint,
            or_(parts_since.c.job.in_(owners), parts_since.c.job.in_(heirs)),
        )
        .exists()
    )
    was_retired = _V.to_checkpoint.is_not(None) & _V.ended_by.is_(None)
    return (
        select(_V.job, _V.table_name, _V.version, _V.is_root, _V.confirmed)
        .join(points, (_V.job == points.c.job) & (_V.from_checkpoint <= points.c.number), isouter=True)
        .where(
            or_(
                (_V.job == EXTERNAL)
                & (_V.from_checkpoint <= number)
                & or_(_V.to_checkpoint.is_(None), _V.to_checkpoint >= number),
                points.c.number.is_not(None)
                & or_(_V.to_checkpoint.is_(None), _V.to_checkpoint >= points.c.number)
                & ~(was_retired & is_taken_over),
            )
        )
        .order_by(_V.from_checkpoint, _V.id)
    )


# Built once, because building these queries takes longer than running them.
_CUT = _cut()
_CUT_OF_SOME = _CUT.where(_V.table_name.in_(bindparam("only", expanding=True)))
_PARTS = select(_P.job, _P.checkpoint, _P.state).where(
    or_(
        _P.checkpoint == bindparam("number"),
        (_P.checkpoint < bindparam("number")) & (_P.state == Part.PENDING.value),
    )
)


_CURRENT = select(t.versions).where(
    _V.job == bindparam("job"), _V.table_name == bindparam("name"), _V.to_checkpoint.is_(None)
)
_ADD = insert(t.versions)
_CHANGE = update(t.versions).where(_V.id == bindparam("of_row"))

CONFIRMED_VERSION = select(_V.version).where(
    _V.job == bindparam("job"),
    _V.table_name == bindparam("name"),
    _V.from_checkpoint <= bindparam("number"),
    or_(
        _V.to_checkpoint.is_(None) & (_V.confirmed >= bindparam("number")),
        _V.to_checkpoint >= bindparam("number"),
    ),
)
"""The version recorded for the table `:name` at the checkpoint `:number` of the job itself."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The tables at one checkpoint: the version of each, the part of each job that takes part, and the job
    that recorded each version."""

    versions: Mapping[str, str]
    roots: frozenset[str]
    parts: Mapping[str, str]
    writers: Mapping[str, str]

    def versions_for(self, job: str, own: Collection[str]) -> dict[str, str]:
        """The versions, without those of `own` tables of the job that it has taken over from another one
        and not written itself yet."""
        return {
            name: version
            for name, version in self.versions.items()
            if name not in own or self.writers[name] == job
        }


def _current(connection: Connection, job: str, table: str) -> Row[Any] | None:
    return connection.execute(_CURRENT, {"job": job, "name": table}).first()


def _insert(
    connection: Connection, job: str, table: str, version: str, start: int, end: int | None, root: bool
) -> None:
    """Add an interval, or extend the preceding one when it has the same version."""
    before = (_V.job == job) & (_V.table_name == table) & (_V.version == version)
    stretched = connection.execute(
        update(t.versions)
        .where(before, _V.to_checkpoint == start - 1)
        .values(to_checkpoint=end, ended_by=_next(end), confirmed=start)
    ).rowcount
    if not stretched:
        _add(connection, job, table, version, start, end, root)


def _add(
    connection: Connection, job: str, table: str, version: str, start: int, end: int | None, root: bool
) -> None:
    values = {
        "job": job,
        "table_name": table,
        "version": version,
        "from_checkpoint": start,
        "to_checkpoint": end,
        "ended_by": _next(end),
        "confirmed": start,
        "is_root": root,
    }
    connection.execute(_ADD, values)


def _next(end: int | None) -> int | None:
    return None if end is None else end + 1


def record(
    connection: Connection, job: str, table: str, version: str, number: int, *, root: bool = False
) -> None:
    """Record the table's version for the open checkpoint `number`; a later call replaces it."""
    row = _current(connection, job, table)
    if row is not None and row.version == version:
        connection.execute(_CHANGE, {"of_row": row.id, "confirmed": number, "is_root": root})
        return
    if row is not None and row.from_checkpoint != number:
        # The preceding interval is this one, which has another version.
        connection.execute(_CHANGE, {"of_row": row.id, "to_checkpoint": number - 1, "ended_by": number})
        _add(connection, job, table, version, number, None, root)
        return
    if row is not None:
        connection.execute(delete(t.versions).where(_V.id == row.id))
    _insert(connection, job, table, version, number, None, root)


def close_before(connection: Connection, job: str, table: str, number: int) -> None:
    """End the table's interval before the open checkpoint `number`, for which it has no version."""
    row = _current(connection, job, table)
    if row is not None and row.from_checkpoint < number:
        connection.execute(_CHANGE, {"of_row": row.id, "to_checkpoint": number - 1, "ended_by": number})


def retire(connection: Connection, job: str, table: str) -> None:
    """End the interval of a table that no job writes any more. An open checkpoint that has no version of it
    yet will not contain it."""
    current = (_V.job == job) & (_V.table_name == table) & _V.to_checkpoint.is_(None)
    pending = select(func.min(_P.checkpoint)).where(_P.job == job, _P.state == Part.PENDING.value)
    target = connection.execute(pending).scalar()
    if target is not None:
        before = update(t.versions).where(current, _V.confirmed < target)
        connection.execute(before.values(to_checkpoint=target - 1))
    connection.execute(update(t.versions).where(current).values(to_checkpoint=_last_number(connection)))


def end_external(connection: Connection, table: str) -> None:
    """End the interval of a table that was external until now: from here on its job records its versions."""
    external = (_V.job == EXTERNAL) & (_V.table_name == table) & _V.to_checkpoint.is_(None)
    connection.execute(update(t.versions).where(external).values(to_checkpoint=_last_number(connection)))


def _last_number(connection: Connection) -> int:
    return int(connection.execute(select(t.stores.c.last_number)).scalar_one())


def repair(connection: Connection, job: str, table: str, version: str, number: int) -> None:
    """Fill a gap from a published checkpoint on, up to the next failure or version of the table."""
    f = t.failures.c
    failed = select(func.min(f.checkpoint)).where(f.dataset == table, f.checkpoint > number)
    known = select(func.min(_V.from_checkpoint)).where(_V.table_name == table, _V.from_checkpoint > number)
    bounds = [connection.execute(query).scalar() for query in (failed, known)]
    following = [bound for bound in bounds if bound is not None]
    end = min(following) - 1 if following else None
    _insert(connection, job, table, version, number, end, root=False)


def discard(connection: Connection, number: int) -> None:
    """Remove what was recorded for an aborted checkpoint, so that the versions that it ended continue.

    A version that a later checkpoint has too begins there instead. What ended otherwise stays ended: by a
    revision, because its table was dropped or is no longer external.
    """
    begun = _V.from_checkpoint == number
    connection.execute(delete(t.versions).where(begun, _V.confirmed == number))
    connection.execute(update(t.versions).where(begun).values(from_checkpoint=number + 1))
    retired = select(t.datasets.c.name).where(t.datasets.c.retired)
    is_of_job = (_V.job == EXTERNAL) & _V.table_name.in_(select(t.datasets.c.name))
    ended = select(t.versions).where(_V.ended_by == number, _V.table_name.not_in(retired), ~is_of_job)
    for row in connection.execute(ended).all():
        of_table = (_V.job == row.job) & (_V.table_name == row.table_name)
        following = select(func.min(_V.from_checkpoint)).where(of_table, _V.from_checkpoint > number)
        later = connection.execute(following).scalar()
        end = None if later is None else later - 1
        connection.execute(_CHANGE, {"of_row": row.id, "to_checkpoint": end, "ended_by": later})


def recorded(connection: Connection, job: str, number: int) -> dict[str, str]:
    """The versions that a job already recorded for its checkpoint `number`."""
    query = select(_V.table_name, _V.version).where(_V.job == job, _V.from_checkpoint <= number)
    query = query.where(or_(_V.to_checkpoint.is_(None), _V.to_checkpoint >= number), _V.confirmed >= number)
    return {row.table_name: row.version for row in connection.execute(query)}


def confirmed_version(connection: Connection, job: str, table: str, number: int) -> str | None:
    """The version recorded for the table at the job's own checkpoint `number`, or None."""
    version: str | None = connection.execute(
        CONFIRMED_VERSION, {"job": job, "name": table, "number": number}
    ).scalar()
    return version


def confirm(connection: Connection, job: str, number: int) -> None:
    """Confirm the current versions of all tables of the job for checkpoint `number`."""
    current = (_V.job == job) & _V.to_checkpoint.is_(None)
    connection.execute(update(t.versions).where(current).values(confirmed=number))


def cut_at(
    connection: Connection, number: int, *, only: Collection[str] | None = None, done_only: bool = False
) -> Cut:
    """All tables (or `only` some) at checkpoint `number`; `done_only` leaves out jobs still at work on it.

    - A job that is done with the checkpoint: all versions that it recorded for it.
    - A job still at work on it: the versions that it recorded so far.
    - A job that skipped it: its roots of the cut, no derived tables.
    - A job of an unrelated topology: its versions at the newest older checkpoint that it is done with.
    """
    at_work = connection.execute(_PARTS, {"number": number}).all()
    parts = {row.job: row.state for row in at_work if row.checkpoint == number}
    # Jobs that take no part and are still at work on an older checkpoint: their versions are not known yet.
    blocked = frozenset(row.job for row in at_work) - parts.keys()
    if only is None:
        rows = connection.execute(_CUT, {"number": number}).all()
    else:
        rows = connection.execute(_CUT_OF_SOME, {"number": number, "only": list(only)}).all()
    versions: dict[str, str] = {}
    writers: dict[str, str] = {}
    roots = set()
    for row in rows:
        part = parts.get(row.job)
        if row.job in blocked or (part == Part.PENDING and (done_only or row.confirmed < number)):
            continue
        if part == Part.SKIPPED and not (row.is_root and row.confirmed >= number):
            continue
        versions[row.table_name], writers[row.table_name] = row.version, row.job
        if row.is_root and (part is not None or row.job == EXTERNAL):
            roots.add(row.table_name)
    return Cut(versions, frozenset(roots), parts, writers)


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
    # Also those that another job has taken over since.
    alive = select(d.name).where(d.retired.is_(False))
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

"""Versions as intervals of checkpoints: the only module that writes or interprets them.

For one job and table the intervals never overlap; a gap means that the table is incomplete there.
A version that lasts costs one row however many checkpoints it serves. It must never know who asks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, or_, select, update

from tautochrone.meta import tables as t
from tautochrone.model.checkpoint import CheckpointState

__all__ = ["Cut", "close_before", "cut_at", "is_confirmed", "record", "repair", "undo"]

_V = t.versions.c


@dataclass(frozen=True, slots=True)
class Cut:
    """The tables at one checkpoint: the version of each, and why the others have none.

    `blocked` holds tables of another job whose own target isn't closed yet although its number is
    smaller: what they are at this checkpoint isn't decided.
    """

    versions: Mapping[str, str]
    roots: frozenset[str]
    blocked: frozenset[str]


def _current(connection: Connection, job: str, table: str) -> Row[Any] | None:
    query = select(t.versions).where(_V.job == job, _V.table_name == table, _V.to_checkpoint.is_(None))
    return connection.execute(query).first()


def _insert(
    connection: Connection, job: str, table: str, version: str, start: int, end: int | None, root: bool
) -> None:
    """Add an interval, or stretch the one before it when that ends just here with this version."""
    before = (_V.job == job) & (_V.table_name == table) & (_V.version == version)
    stretched = connection.execute(
        update(t.versions)
        .where(before, _V.to_checkpoint == start - 1)
        .values(to_checkpoint=end, confirmed=start)
    ).rowcount
    if not stretched:
        connection.execute(
            insert(t.versions).values(
                job=job,
                table_name=table,
                version=version,
                from_checkpoint=start,
                to_checkpoint=end,
                confirmed=start,
                is_root=root,
            )
        )


def record(
    connection: Connection, job: str, table: str, version: str, number: int, *, root: bool = False
) -> None:
    """At the job's open target `number` the table has `version`; the last word counts."""
    row = _current(connection, job, table)
    if row is not None and row.version == version:
        connection.execute(update(t.versions).where(_V.id == row.id).values(confirmed=number, is_root=root))
        return
    if row is not None and row.from_checkpoint == number:
        connection.execute(delete(t.versions).where(_V.id == row.id))
    elif row is not None:
        connection.execute(update(t.versions).where(_V.id == row.id).values(to_checkpoint=number - 1))
    _insert(connection, job, table, version, number, None, root)


def close_before(connection: Connection, job: str, table: str, number: int) -> None:
    """The table has no version at the open target `number`: its interval ends before it."""
    row = _current(connection, job, table)
    if row is not None and row.from_checkpoint < number:
        connection.execute(update(t.versions).where(_V.id == row.id).values(to_checkpoint=number - 1))


def repair(connection: Connection, job: str, table: str, version: str, number: int) -> None:
    """Fill a hole at a published checkpoint, up to the next checkpoint that says otherwise."""
    f = t.failures.c
    failed = select(func.min(f.checkpoint)).where(f.dataset == table, f.checkpoint > number)
    known = select(func.min(_V.from_checkpoint)).where(
        _V.job == job, _V.table_name == table, _V.from_checkpoint > number
    )
    found = [connection.execute(query).scalar() for query in (failed, known)]
    following = [other for other in found if other is not None]
    end = min(following) - 1 if following else None
    _insert(connection, job, table, version, number, end, root=False)


def undo(connection: Connection, job: str, number: int) -> None:
    """Forget what was recorded for an open target that is given up: the older versions go on."""
    connection.execute(delete(t.versions).where(_V.job == job, _V.from_checkpoint == number))
    retired = select(t.datasets.c.name).where(t.datasets.c.retired)
    connection.execute(
        update(t.versions)
        .where(_V.job == job, _V.to_checkpoint == number - 1, _V.table_name.not_in(retired))
        .values(to_checkpoint=None)
    )


def is_confirmed(connection: Connection, job: str, table: str, number: int) -> str | None:
    """The version recorded for the table at the job's own checkpoint `number`, or None."""
    found: str | None = connection.execute(
        select(_V.version).where(
            _V.job == job,
            _V.table_name == table,
            _V.from_checkpoint <= number,
            or_(_V.to_checkpoint.is_(None) & (_V.confirmed >= number), _V.to_checkpoint >= number),
        )
    ).scalar()
    return found


def cut_at(
    connection: Connection,
    number: int,
    job: str,
    *,
    confirmed_only: bool = False,
    only: Collection[str] | None = None,
) -> Cut:
    """All tables (or `only` some) at checkpoint `number` of `job`.

    A table's version is what this job recorded for it; failing that, what its owner did; for
    outsiders' tables, what any other job did. With `confirmed_only` (an open target) only what this
    job already recorded for exactly this number counts.
    """
    query = select(t.versions).where(
        _V.from_checkpoint <= number, or_(_V.to_checkpoint.is_(None), _V.to_checkpoint >= number)
    )
    if only is not None:
        query = query.where(_V.table_name.in_(only))
    if confirmed_only:
        query = query.where(_V.job == job, _V.confirmed >= number)
    rows = connection.execute(query.order_by(_V.id)).all()
    own = [row for row in rows if row.job == job]
    versions: dict[str, str] = {row.table_name: row.version for row in own}
    roots = frozenset(row.table_name for row in own if row.is_root)
    foreign = [row for row in rows if row.table_name not in versions]
    blocked: set[str] = set()
    if foreign:
        owners, targets = _owners(connection), _targets(connection, number)
        for row in foreign:
            if owners.get(row.table_name, row.job) != row.job:
                continue
            if row.job in targets:
                blocked.add(row.table_name)
            else:
                versions[row.table_name] = row.version
    return Cut(versions, roots, frozenset(blocked))


def _owners(connection: Connection) -> dict[str, str]:
    rows = connection.execute(select(t.datasets.c.name, t.datasets.c.job))
    return {row.name: row.job for row in rows}


def _targets(connection: Connection, upto: int) -> frozenset[str]:
    """Jobs whose own target, up to this number, is still open."""
    c = t.checkpoints.c
    query = select(c.job).where(c.state == CheckpointState.OPEN.value, c.number <= upto)
    return frozenset(connection.execute(query).scalars())

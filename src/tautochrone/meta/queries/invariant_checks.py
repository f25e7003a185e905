"""Invariants in the store: which job checks them, which are broken, and which tables they hold back.

It must never know how a query is evaluated.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, select

from tautochrone.meta.database import tables as t
from tautochrone.model.checkpoint import BrokenInvariant, CheckpointState, InvariantEntry
from tautochrone.model.jobs import Part

__all__ = [
    "broken_at",
    "held_back",
    "invariants_and_tables",
    "record_broken",
    "replace_invariants",
    "visibility_limits",
]

_B, _C, _I, _P = t.invariants_broken.c, t.checkpoints.c, t.invariants.c, t.checkpoint_jobs.c
_LAST = select(_B.job, func.max(_B.checkpoint).label("checkpoint")).group_by(_B.job).subquery()
_NEWEST_BROKEN = (
    select(t.invariants_broken)
    .join(_LAST, (_B.job == _LAST.c.job) & (_B.checkpoint == _LAST.c.checkpoint))
    .order_by(_B.name)
)
_NOT_COUNTED = (CheckpointState.REVOKED.value, CheckpointState.ABORTED.value)


def replace_invariants(connection: Connection, job: str, entries: Iterable[InvariantEntry]) -> None:
    """Replace the invariants of a job."""
    connection.execute(delete(t.invariants).where(_I.job == job))
    for entry in entries:
        connection.execute(
            insert(t.invariants).values(
                job=job,
                name=entry.name,
                location=entry.location,
                definition=entry.definition,
                tables=sorted(map(str, entry.tables)),
            )
        )


def invariants_and_tables(connection: Connection) -> list[tuple[str, frozenset[str]]]:
    """For each invariant the job that checks it and the tables that it reads, clocks included."""
    return [(row.job, frozenset(row.tables)) for row in connection.execute(select(_I.job, _I.tables))]


def record_broken(connection: Connection, job: str, number: int, broken: Iterable[BrokenInvariant]) -> None:
    """Record the broken invariants for which the job skips its part of a checkpoint."""
    for invariant in broken:
        values = asdict(invariant) | {"checkpoint": number, "job": job, "sample": list(invariant.sample)}
        connection.execute(insert(t.invariants_broken).values(values))


def broken_at(connection: Connection, number: int) -> tuple[BrokenInvariant, ...]:
    """The broken invariants for which jobs skipped a checkpoint."""
    query = select(t.invariants_broken).where(_B.checkpoint == number).order_by(_B.job, _B.name)
    return tuple(_broken(row) for row in connection.execute(query))


def visibility_limits(connection: Connection) -> dict[str, int]:
    """For each table under an invariant the newest checkpoint that readers may see of it; 0 for none.

    Readers see the tables of a job, and the tables that its invariants read, only up to the newest checkpoint
    that it has checked.
    """
    entries = invariants_and_tables(connection)
    if not entries:
        return {}
    jobs = {job for job, _ in entries}
    done = _newest_done(connection, jobs)
    result: dict[str, int] = {}
    for job, tables in _covered(connection, entries):
        for table in tables:
            result[table] = min(result.get(table, done.get(job, 0)), done.get(job, 0))
    return result


def held_back(connection: Connection, tables: Collection[str] | None = None) -> dict[str, tuple[int, str]]:
    """For each table that a broken invariant holds back the newest such checkpoint and the error.

    Invariants that held again at a later checkpoint are left out. `tables` restricts the answer to some
    tables.
    """
    newest: dict[str, list[Row[Any]]] = {}
    for row in connection.execute(_NEWEST_BROKEN):
        newest.setdefault(row.job, []).append(row)
    done = _newest_done(connection, newest) if newest else {}
    failed_checks = {job: rows for job, rows in newest.items() if rows[0].checkpoint > done.get(job, 0)}
    if not failed_checks:
        return {}
    result: dict[str, tuple[int, str]] = {}
    for job, covered in _covered(connection, invariants_and_tables(connection), failed_checks):
        if job not in failed_checks:
            continue
        number = failed_checks[job][0].checkpoint
        errors = "; ".join(_broken(row).error for row in failed_checks[job])
        for table in covered:
            if tables is None or table in tables:
                result[table] = max(result.get(table, (0, "")), (number, errors))
    return result


def _covered(
    connection: Connection, entries: Iterable[tuple[str, frozenset[str]]], jobs: Iterable[str] = ()
) -> list[tuple[str, set[str]]]:
    """For each job with invariants the tables that they cover: those that it writes and those that they read.

    `jobs` adds jobs that have no invariants any more.
    """
    result: dict[str, set[str]] = {job: set() for job in jobs}
    for job, tables in entries:
        result.setdefault(job, set()).update(tables)
    d = t.datasets.c
    for row in connection.execute(select(d.name, d.job).where(d.job.in_(result), d.retired.is_(False))):
        result[row.job].add(row.name)
    return list(result.items())


def _newest_done(connection: Connection, jobs: Collection[str]) -> dict[str, int]:
    query = (
        select(_P.job, func.max(_P.checkpoint).label("number"))
        .join(t.checkpoints, _C.number == _P.checkpoint)
        .where(_P.job.in_(jobs), _P.state == Part.DONE.value, _C.state.not_in(_NOT_COUNTED))
        .group_by(_P.job)
    )
    return {row.job: row.number for row in connection.execute(query)}


def _broken(row: Row[Any]) -> BrokenInvariant:
    return BrokenInvariant(
        name=row.name,
        location=row.location,
        rows=row.rows,
        at_least=row.at_least,
        sample=tuple(row.sample),
        problem=row.problem,
    )

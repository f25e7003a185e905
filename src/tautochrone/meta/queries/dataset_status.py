"""The status of every dataset, in a number of queries that does not grow with the datasets."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Row, func, or_, select

from tautochrone.meta.database import tables as t
from tautochrone.meta.database.repository import VERSIONED_KINDS, VISIBLE_STATES, parse
from tautochrone.meta.protocols.datasets import DatasetStatus
from tautochrone.meta.queries.invariant_checks import held_back, visibility_limits
from tautochrone.meta.queries.read_models import stored_failure
from tautochrone.meta.queries.read_versions import newest_readable
from tautochrone.meta.queries.refresh_records import skipped_files_of, stored_expectations
from tautochrone.meta.queries.topology import read_topology
from tautochrone.model.checkpoint import RefreshMode
from tautochrone.model.jobs import Part
from tautochrone.model.names import CheckpointNumber, Version
from tautochrone.model.reason import Reason

__all__ = ["statuses"]

_C, _D, _F, _P, _V = (
    table.c for table in (t.checkpoints, t.datasets, t.failures, t.checkpoint_jobs, t.versions)
)


@dataclass(frozen=True, slots=True)
class _Cut:
    number: int
    cut_at_ms: int


def statuses(connection: Connection) -> tuple[DatasetStatus, ...]:
    """Every dataset that isn't retired, by name."""
    rows = connection.execute(select(t.datasets).where(_D.retired.is_(False)).order_by(_D.name)).all()
    newest = _newest_cuts(connection)
    done = _newest_cuts(connection, done=True)
    versions = _newest_versions(connection)
    complete_now = _complete_at(connection, done)
    errors = _newest_errors(connection)
    kept_back = _kept_from_readers(connection)
    readable = _readable_cuts(connection, rows, done, complete_now, versions)
    result = []
    for row in rows:
        key = (row.job, row.name)
        # Nearly all are complete at the newest checkpoint that their job did. Only the others need a query.
        complete = done[row.job] if key in complete_now else None
        if complete is None and key in versions:
            complete = _last_complete_checkpoint(connection, row)
        status = _status(row, versions.get(key), complete, newest.get(row.job), errors.get(row.name))
        if row.name in kept_back:
            error, held_back_ms, seen_ms = kept_back[row.name]
            lag_ms = status.lag_ms
            if complete is not None:
                lag_ms = max(lag_ms or 0, held_back_ms - min(seen_ms, complete.cut_at_ms))
            status = replace(status, error=status.error or error, lag_ms=lag_ms)
        seen = readable.get(row.name)
        if seen is not None:
            lag_ms = _behind_ms(seen, newest.get(row.job))
            if row.name in kept_back:
                lag_ms = max(lag_ms, status.lag_ms or 0)
            status = replace(status, readable=CheckpointNumber(seen.number), readable_lag_ms=lag_ms)
        result.append(status)
    return tuple(result)


def _status(
    row: Row[Any], version: str | None, complete: _Cut | None, newest: _Cut | None, error: Row[Any] | None
) -> DatasetStatus:
    lag_ms = None
    if complete is not None:
        lag_ms = _behind_ms(complete, newest)
    if error is not None and row.kind not in VERSIONED_KINDS:
        error = None
    if error is not None and complete is not None and error.checkpoint <= complete.number:
        error = None
    return DatasetStatus(
        dataset=parse(row.name),
        job=row.job,
        kind=row.kind,
        version=None if version is None else Version(version),
        checkpoint=None if complete is None else CheckpointNumber(complete.number),
        mode=RefreshMode(row.last_mode) if row.last_mode else None,
        reason=(
            None
            if row.last_reason is None
            else Reason.stored(row.last_reason, row.last_reason_code, row.last_reason_params)
        ),
        error=None if error is None else error.error,
        failure=None if error is None else stored_failure(error),
        lag_ms=lag_ms,
        refreshed_at_ms=row.last_at_ms,
        skipped=skipped_files_of(row.skipped_files),
        expectations=stored_expectations(row.expectations),
    )


def _behind_ms(seen: _Cut, newest: _Cut | None) -> int:
    """How much older one cut is than the newest, in milliseconds."""
    if newest is None or seen.number >= newest.number:
        return 0
    return max(0, newest.cut_at_ms - seen.cut_at_ms)


def _readable_cuts(
    connection: Connection,
    rows: Sequence[Row[Any]],
    done: Mapping[str, _Cut],
    complete_now: Collection[tuple[str, str]],
    versions: Collection[tuple[str, str]],
) -> dict[str, _Cut]:
    """By table the newest checkpoint at which strong readers see it. Related tables share one query, and need
    it only where one of them is late."""
    built = {row.name: row.job for row in rows if (row.job, row.name) in versions}
    topology, remaining = read_topology(connection), set(built)
    result: dict[str, _Cut] = {}
    while remaining:
        first = remaining.pop()
        related_tables = {first} | (topology.related({first}) & built.keys())
        remaining -= related_tables
        newest = {done[built[name]] for name in related_tables if built[name] in done}
        seen: _Cut | None = None
        if len(newest) == 1 and all((built[name], name) in complete_now for name in related_tables):
            (seen,) = newest
        else:
            number = newest_readable(connection, related_tables)
            if number is not None:
                cut = select(_C.cut_at_ms).where(_C.number == number)
                seen = _Cut(number, connection.execute(cut).scalar_one())
        if seen is not None:
            result |= dict.fromkeys(related_tables, seen)
    return result


def _kept_from_readers(connection: Connection) -> dict[str, tuple[str, int, int]]:
    """By table that a broken invariant hides from readers: the error, the time of the cut that they do not
    see, and the time of the cut that they see."""
    kept_back = held_back(connection)
    if not kept_back:
        return {}
    seen = visibility_limits(connection)
    numbers = {number for number, _ in kept_back.values()} | {*seen.values()}
    query = select(_C.number, _C.cut_at_ms).where(_C.number.in_(numbers))
    cut_at_ms = {row.number: row.cut_at_ms for row in connection.execute(query)}
    result = {}
    for name, (number, error) in kept_back.items():
        held_back_ms = cut_at_ms.get(number, 0)
        result[name] = error, held_back_ms, cut_at_ms.get(seen.get(name, number), held_back_ms)
    return result


def _newest_cuts(connection: Connection, *, done: bool = False) -> dict[str, _Cut]:
    """By job its newest visible checkpoint; with `done` the newest of which it did its part."""
    parts = (
        select(_P.job, func.max(_C.number).label("number"))
        .join(t.checkpoints, _P.checkpoint == _C.number)
        .where(_C.state.in_(VISIBLE_STATES))
    )
    if done:
        parts = parts.where(_P.state == Part.DONE.value)
    top = parts.group_by(_P.job).subquery()
    query = select(top.c.job, _C.number, _C.cut_at_ms).join(t.checkpoints, _C.number == top.c.number)
    return {row.job: _Cut(row.number, row.cut_at_ms) for row in connection.execute(query)}


def _newest_versions(connection: Connection) -> dict[tuple[str, str], str]:
    top = (
        select(_V.job, _V.table_name, func.max(_V.from_checkpoint).label("start"))
        .group_by(_V.job, _V.table_name)
        .subquery()
    )
    query = select(t.versions).join(
        top,
        (_V.job == top.c.job) & (_V.table_name == top.c.table_name) & (_V.from_checkpoint == top.c.start),
    )
    return {(row.job, row.table_name): row.version for row in connection.execute(query)}


def _complete_at(connection: Connection, done: dict[str, _Cut]) -> set[tuple[str, str]]:
    """The tables that have a version at the newest checkpoint of which their job did its part."""
    groups: dict[int, list[str]] = {}
    for job, cut in done.items():
        groups.setdefault(cut.number, []).append(job)
    result: set[tuple[str, str]] = set()
    for number, jobs in groups.items():
        query = select(_V.job, _V.table_name).where(_V.job.in_(jobs), _covers(number))
        result |= {(row.job, row.table_name) for row in connection.execute(query)}
    return result


def _last_complete_checkpoint(connection: Connection, row: Row[Any]) -> _Cut | None:
    """The newest checkpoint that shows one table."""
    query = (
        select(_C.number, _C.cut_at_ms)
        .join(t.versions, _covers(_C.number))
        .join(t.checkpoint_jobs, (_P.checkpoint == _C.number) & (_P.job == row.job))
        .where(_V.table_name == row.name, _V.job == row.job)
        .where(_P.state == Part.DONE.value, _C.state.in_(VISIBLE_STATES))
        .order_by(_C.number.desc())
        .limit(1)
    )
    newest = connection.execute(query).first()
    return None if newest is None else _Cut(newest.number, newest.cut_at_ms)


def _covers(number: Any) -> Any:
    return (_V.from_checkpoint <= number) & or_(_V.to_checkpoint.is_(None), _V.to_checkpoint >= number)


def _newest_errors(connection: Connection) -> dict[str, Row[Any]]:
    """By dataset the newest failure: its checkpoint and error."""
    top = select(_F.dataset, func.max(_F.checkpoint).label("number")).group_by(_F.dataset).subquery()
    query = select(t.failures).join(top, (_F.dataset == top.c.dataset) & (_F.checkpoint == top.c.number))
    return {row.dataset: row for row in connection.execute(query)}

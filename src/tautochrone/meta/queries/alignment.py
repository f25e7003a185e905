"""Aligned cuts in the store: jobs report the source times of their roots, and the versions of a cut of the
whole topology are chosen by them. It must never know how source times are read."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import Connection, select, update

from tautochrone.meta.database import tables as t
from tautochrone.model.checkpoint import Alignment, SourceTime, align
from tautochrone.model.names import Version

__all__ = ["aligned_cut", "mark_source_times_unknown"]

_R, _V = t.reports.c, t.versions.c


def mark_source_times_unknown(connection: Connection, job: str) -> None:
    """For a new owner: its tables may have been reverted, so the reported times may be wrong. Until it
    reports again, cuts keep the versions of its aligned roots and of all roots that must not run ahead of
    them."""
    known = (_R.job == job) & _R.times.is_not(None)
    connection.execute(update(t.reports).where(known).values(times=[]))


def _source_time(version: str, at_ms: int, complete_until_ms: int | None = None) -> SourceTime:
    return SourceTime(version=Version(version), at_ms=at_ms, complete_until_ms=complete_until_ms)


def aligned_cut(
    connection: Connection, jobs: Collection[str], cut: Mapping[str, str], max_skew_ms: int
) -> Alignment:
    """See `model.checkpoint.align`, for the roots of a cut of these jobs."""
    reported_times = connection.execute(
        select(_R.table_name, _R.times).where(_R.job.in_(jobs), _R.times.is_not(None))
    ).all()
    times = {row.table_name: [_source_time(*values) for values in row.times] for row in reported_times}
    current = select(_V.table_name, _V.version).where(
        _V.table_name.in_(list(times)), _V.is_root.is_(True), _V.to_checkpoint.is_(None)
    )
    last = {row.table_name: row.version for row in connection.execute(current)}
    return align(cut, times, last, max_skew_ms)

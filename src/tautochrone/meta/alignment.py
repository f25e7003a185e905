"""Aligned cuts in the store: jobs tell how far the sources of their roots have come, and what a cut of the
whole topology takes is chosen from that. It must never know how source times are found."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import Connection, select, update

from tautochrone.meta import tables as t
from tautochrone.meta.repository import Repository
from tautochrone.meta.topology import reported_roots, topology
from tautochrone.model.alignment import Alignment, SourceTime, align
from tautochrone.model.names import Fence, TableName, Version

__all__ = ["Alignments", "aligned_cut", "begin_times"]

_R, _V = t.reports.c, t.versions.c


class Alignments(Repository):
    """The jobs' side of aligned cuts."""

    def tell_times(self, job: str, fence: Fence, times: Mapping[TableName, tuple[SourceTime, ...]]) -> None:
        """The versions of the job's roots that a cut may take, from the last cut's to the newest. Roots that
        are not named take no part in alignment. Repeatable.

        Raises:
            FencedError: a newer owner exists.
        """
        with self._fenced(job, fence, durable=False) as connection:
            told = {str(table): [[one.version, one.at_ms] for one in found] for table, found in times.items()}
            for row in connection.execute(select(_R.table_name, _R.times).where(_R.job == job)).all():
                if row.times != told.get(row.table_name):
                    mine = (_R.job == job) & (_R.table_name == row.table_name)
                    values = {"times": told.get(row.table_name)}
                    connection.execute(update(t.reports).where(mine).values(values))

    def aligned(self, job: str, roots: Mapping[TableName, Version], bound_ms: int) -> Alignment:
        """What a cut would take now, of the roots given and of all that the topology of `job` reports.

        Args:
            roots: as of `open_checkpoint`.
            bound_ms: the greatest skew in source time.
        """
        with self._read() as connection:
            found = topology(connection)
            own = {str(table): version for table, version in roots.items()}
            cut = reported_roots(connection, job, found) | own
            return aligned_cut(connection, found.jobs_with(job), cut, bound_ms)


def begin_times(connection: Connection, job: str) -> None:
    """A new owner: its tables may have been taken back, so what was told of them does not hold. Until it has
    looked, those that took part stay where they are, and with them all that must not run ahead of them."""
    known = (_R.job == job) & _R.times.is_not(None)
    connection.execute(update(t.reports).where(known).values(times=[]))


def aligned_cut(
    connection: Connection, jobs: Collection[str], cut: Mapping[str, str], bound_ms: int
) -> Alignment:
    """See `model.alignment.align`, for the roots of a cut of these jobs."""
    told = connection.execute(
        select(_R.table_name, _R.times).where(_R.job.in_(jobs), _R.times.is_not(None))
    ).all()
    times = {
        row.table_name: [SourceTime(version=Version(version), at_ms=at) for version, at in row.times]
        for row in told
    }
    current = select(_V.table_name, _V.version).where(
        _V.table_name.in_(list(times)), _V.is_root.is_(True), _V.to_checkpoint.is_(None)
    )
    last = {row.table_name: row.version for row in connection.execute(current)}
    return align(cut, times, last, bound_ms)

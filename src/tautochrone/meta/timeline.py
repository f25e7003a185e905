"""Light looks at many checkpoints and tables at once, for whoever draws them.

Rows only, without the versions of each cut: those of a hundred checkpoints would be thousands. It must
never decide anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, func, select

from tautochrone.meta import tables as t
from tautochrone.meta.history import as_record
from tautochrone.meta.repository import Repository, parse
from tautochrone.model.checkpoint import CheckpointState, RefreshRecord
from tautochrone.model.names import CheckpointNumber, TableName

__all__ = ["CheckpointLine", "Report", "Timeline"]

_C, _R = t.checkpoints.c, t.refreshes.c


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLine:
    """One checkpoint without its versions. `recorded` counts its refreshes in the history, `failed` those
    datasets that have no version for it. Times are epoch milliseconds."""

    number: CheckpointNumber
    job: str
    state: CheckpointState
    cut_at_ms: int
    published_at_ms: int | None
    recorded: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The last unit that a job reported for a table."""

    table: TableName
    job: str
    at_ms: int


class Timeline(Repository):
    """See the module docstring."""

    def timeline(self, limit: int = 50) -> tuple[CheckpointLine, ...]:
        """The newest checkpoints in any state, newest first."""
        newest = select(t.checkpoints).order_by(_C.number.desc()).limit(limit)
        with self._read() as connection:
            rows = connection.execute(newest).all()
            numbers = [row.number for row in rows]
            f = t.failures.c
            failed = _counted(
                connection.execute(
                    select(f.checkpoint, func.count()).where(f.checkpoint.in_(numbers)).group_by(f.checkpoint)
                )
            )
            recorded = _counted(
                connection.execute(
                    select(_R.checkpoint, func.count())
                    .where(_R.checkpoint.in_(numbers), _R.error.is_(None))
                    .group_by(_R.checkpoint)
                )
            )
        return tuple(
            CheckpointLine(
                number=CheckpointNumber(row.number),
                job=row.job,
                state=CheckpointState(row.state),
                cut_at_ms=row.cut_at_ms,
                published_at_ms=row.published_at_ms,
                recorded=recorded.get(row.number, 0),
                failed=failed.get(row.number, 0),
            )
            for row in rows
        )

    def cut_times(self, numbers: Iterable[int]) -> dict[int, int]:
        """When the cuts of checkpoints were taken, for those that are still known."""
        with self._read() as connection:
            query = select(_C.number, _C.cut_at_ms).where(_C.number.in_(set(numbers)))
            return {row.number: row.cut_at_ms for row in connection.execute(query)}

    def refreshes_at(self, number: int) -> tuple[RefreshRecord, ...]:
        """What was recorded for one checkpoint, in the order of recording; refreshes without data are not."""
        query = select(t.refreshes).where(_R.checkpoint == number).order_by(_R.id)
        with self._read() as connection:
            return tuple(as_record(row) for row in connection.execute(query))

    def recent_refreshes(self, limit: int = 50) -> tuple[RefreshRecord, ...]:
        """The newest refreshes and failures of all datasets, newest first."""
        query = select(t.refreshes).order_by(_R.id.desc()).limit(limit)
        with self._read() as connection:
            return tuple(as_record(row) for row in connection.execute(query))

    def reports(self) -> tuple[Report, ...]:
        """The newest report of each table, by table."""
        query = select(t.reports).order_by(t.reports.c.table_name)
        with self._read() as connection:
            return tuple(
                Report(table=parse(row.table_name), job=row.job, at_ms=row.at_ms)
                for row in connection.execute(query)
            )


def _counted(rows: Iterable[Row[Any]]) -> dict[Any, Any]:
    return dict(map(tuple, rows))

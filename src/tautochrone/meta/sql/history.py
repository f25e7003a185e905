"""`store.history` in SQL."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Row, func, select

from tautochrone.meta.database import tables as t
from tautochrone.meta.database.repository import Repository, parse
from tautochrone.meta.protocols.history import CheckpointLine, Delay, EdgeDelay
from tautochrone.meta.queries.refresh_records import as_record
from tautochrone.meta.queries.topology import direct_inputs
from tautochrone.model.checkpoint import CheckpointState, RefreshRecord
from tautochrone.model.inputs import is_clock
from tautochrone.model.names import CheckpointNumber, TableName

__all__ = ["SqlHistory"]


_R, _C, _D = t.refreshes.c, t.checkpoints.c, t.datasets.c


class SqlHistory(Repository):
    """`protocols.history.History` in SQL."""

    def refreshes(self, dataset: TableName, limit: int = 50) -> tuple[RefreshRecord, ...]:
        r = t.refreshes.c
        query = select(t.refreshes).where(r.dataset == str(dataset)).order_by(r.id.desc())
        with self._read() as connection:
            return tuple(as_record(row) for row in connection.execute(query.limit(limit)))

    def refreshes_at(self, number: int) -> tuple[RefreshRecord, ...]:
        query = select(t.refreshes).where(_R.checkpoint == number).order_by(_R.id)
        with self._read() as connection:
            return tuple(as_record(row) for row in connection.execute(query))

    def recent_refreshes(self, limit: int = 50) -> tuple[RefreshRecord, ...]:
        query = select(t.refreshes).order_by(_R.id.desc()).limit(limit)
        with self._read() as connection:
            return tuple(as_record(row) for row in connection.execute(query))

    def refreshes_after(self, last: int, limit: int) -> tuple[tuple[int, RefreshRecord], ...]:
        query = select(t.refreshes).where(_R.id > last).order_by(_R.id).limit(limit)
        with self._read() as connection:
            return tuple((row.id, as_record(row)) for row in connection.execute(query))

    def newest_refresh_id(self) -> int:
        with self._read() as connection:
            return connection.execute(select(func.max(_R.id))).scalar() or 0

    def timeline(self, limit: int = 50) -> tuple[CheckpointLine, ...]:
        newest = select(t.checkpoints).order_by(_C.number.desc()).limit(limit)
        with self._read() as connection:
            rows = connection.execute(newest).all()
            numbers = [row.number for row in rows]
            f = t.failures.c
            failed = _counts_by_checkpoint(
                connection.execute(
                    select(f.checkpoint, func.count()).where(f.checkpoint.in_(numbers)).group_by(f.checkpoint)
                )
            )
            recorded = _counts_by_checkpoint(
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

    def delays(self) -> tuple[Delay, ...]:
        with self._read() as connection:
            inputs = direct_inputs(connection)
            alive = select(_D.name).where(_D.retired.is_(False))
            done = _R.version.is_not(None)
            newest = select(func.max(_R.id)).where(done, _R.dataset.in_(alive)).group_by(_R.dataset)
            rows = connection.execute(
                select(_R.dataset, _R.checkpoint, _R.duration_ms, _R.finished_at_ms, _C.cut_at_ms)
                .join(t.checkpoints, _C.number == _R.checkpoint)
                .where(_R.id.in_(newest))
                .order_by(_R.dataset)
            ).all()
            numbers = {row.checkpoint for row in rows}
            ready = {
                (row.dataset, row.checkpoint): row.finished_at_ms
                for row in connection.execute(
                    select(_R.dataset, _R.checkpoint, _R.finished_at_ms)
                    .where(_R.checkpoint.in_(numbers), done)
                    .order_by(_R.id)
                )
            }
        return tuple(
            Delay(
                dataset=parse(row.dataset),
                checkpoint=CheckpointNumber(row.checkpoint),
                end_to_end_ms=max(0, row.finished_at_ms - row.cut_at_ms),
                refresh_ms=row.duration_ms,
                edges=tuple(
                    EdgeDelay(
                        input=parse(source),
                        delay_ms=max(
                            0, row.finished_at_ms - ready.get((source, row.checkpoint), row.cut_at_ms)
                        ),
                    )
                    for source in sorted(inputs.get(row.dataset, ()))
                    if not is_clock(parse(source))
                ),
            )
            for row in rows
        )


def _counts_by_checkpoint(rows: Iterable[Row[Any]]) -> dict[Any, Any]:
    return dict(map(tuple, rows))

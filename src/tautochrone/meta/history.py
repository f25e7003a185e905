"""What happened to each dataset, and where it stands now. It must never decide anything.

A refresh that changed nothing leaves no row in the history, only the newest words on its dataset:
otherwise a quiet table would cost a row a checkpoint. Of the others the newest `KEPT_PER_DATASET` stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Column, Connection, Row, Table, delete, func, insert, or_, select, update

from tautochrone.meta import tables as t
from tautochrone.meta.base import VERSIONED_KINDS, Repository, parse
from tautochrone.meta.rows import as_checkpoint, as_versions, checkpoint_row, row_cut
from tautochrone.model.checkpoint import Checkpoint, CheckpointState, RefreshRecord
from tautochrone.model.names import CheckpointNumber, TableName, Version
from tautochrone.model.refresh import NodeRefresh, Refresh, RefreshMode

__all__ = ["KEPT_PER_DATASET", "DatasetStatus", "History", "keep", "prune_failures"]

KEPT_PER_DATASET = 1_000

_PUBLISHED = CheckpointState.PUBLISHED.value
_C, _V = t.checkpoints.c, t.versions.c


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetStatus:
    """Where one dataset stands.

    `checkpoint` is the newest published checkpoint at which it is complete, `lag_ms` how much older
    that cut is than the job's newest cut (0 when it is up to date, None when it was never built).
    `mode` and `reason` are those of its last refresh, `error` is why the newest one gave no version.
    """

    dataset: TableName
    job: str
    kind: str
    version: Version | None
    checkpoint: CheckpointNumber | None
    mode: RefreshMode | None
    reason: str | None
    error: str | None
    lag_ms: int | None
    refreshed_at_ms: int | None


def keep(
    connection: Connection,
    number: int,
    dataset: str,
    version: str | None,
    refresh: Refresh | None,
    error: str | None,
    finished_at_ms: int,
) -> None:
    """Write one refresh down."""
    mode = refresh.mode.value if refresh else None
    reason = refresh.reason if refresh else None
    connection.execute(
        update(t.datasets)
        .where(t.datasets.c.name == dataset)
        .values(last_mode=mode, last_reason=reason, last_at_ms=finished_at_ms)
    )
    if error is None and mode == RefreshMode.NO_DATA:
        return
    connection.execute(
        insert(t.refreshes).values(
            checkpoint=number,
            dataset=dataset,
            version=version,
            mode=mode,
            reason=reason,
            rows_inserted=refresh.rows_inserted if refresh else 0,
            rows_deleted=refresh.rows_deleted if refresh else 0,
            duration_ms=refresh.duration_ms if refresh else 0,
            estimate_ms=refresh.estimate_ms if refresh else None,
            delta_rows=refresh.delta_rows if refresh else 0,
            nodes=[asdict(node) for node in refresh.nodes] if refresh else [],
            error=error,
            finished_at_ms=finished_at_ms,
        )
    )
    _prune(connection, t.refreshes, t.refreshes.c.id, dataset)


def prune_failures(connection: Connection, dataset: str) -> None:
    """Forget the oldest failures of a dataset that fails for ever; those left can still be repaired.

    Oldest first: a repair reaches up to the next failure, which must not be forgotten before it.
    """
    _prune(connection, t.failures, t.failures.c.checkpoint, dataset)


def _prune(connection: Connection, table: Table, order: Column[Any], dataset: str) -> None:
    mine = table.c.dataset == dataset
    newest = select(order).where(mine).order_by(order.desc())
    last = connection.execute(newest.offset(KEPT_PER_DATASET).limit(1)).scalar()
    if last is not None:
        connection.execute(delete(table).where(mine, order <= last))


class History(Repository):
    """Reading what was recorded."""

    def checkpoint(self, number: int) -> Checkpoint:
        """One checkpoint, whatever its state.

        Raises:
            CheckpointUnavailableError: `CHECKPOINT_NOT_FOUND`.
        """
        with self._read() as connection:
            return as_checkpoint(connection, checkpoint_row(connection, number))

    def checkpoints(self, limit: int = 20) -> tuple[Checkpoint, ...]:
        """The newest checkpoints in any state, newest first."""
        with self._read() as connection:
            query = select(t.checkpoints).order_by(_C.number.desc()).limit(limit)
            return tuple(as_checkpoint(connection, row) for row in connection.execute(query).all())

    def latest_published(self, job: str | None = None) -> Checkpoint | None:
        """The newest readable checkpoint, of one job or of all."""
        query = select(t.checkpoints).where(_C.state == _PUBLISHED)
        if job is not None:
            query = query.where(_C.job == job)
        with self._read() as connection:
            row = connection.execute(query.order_by(_C.number.desc()).limit(1)).first()
            return None if row is None else as_checkpoint(connection, row)

    def versions_at(self, number: int) -> dict[TableName, Version]:
        """Roots and datasets at a checkpoint; for an open one, what was recorded so far.

        A dataset that failed at the checkpoint is absent; `failures_at` tells why.
        """
        with self._read() as connection:
            row = checkpoint_row(connection, number)
            if row.state == CheckpointState.ABORTED:
                return {}
            return as_versions(row_cut(connection, row).versions)

    def failures_at(self, number: int) -> dict[TableName, str]:
        """Datasets without a version at a checkpoint, and the recorded error of each."""
        f = t.failures.c
        with self._read() as connection:
            rows = connection.execute(select(f.dataset, f.error).where(f.checkpoint == number))
            return {parse(row.dataset): row.error for row in rows}

    def history(self, dataset: TableName, limit: int = 50) -> tuple[RefreshRecord, ...]:
        """Refreshes and failures of a dataset, newest first; those without data are left out."""
        r = t.refreshes.c
        query = select(t.refreshes).where(r.dataset == str(dataset)).order_by(r.id.desc())
        with self._read() as connection:
            return tuple(_as_record(row) for row in connection.execute(query.limit(limit)))

    def status(self) -> tuple[DatasetStatus, ...]:
        """Every dataset that isn't retired, by name."""
        d = t.datasets.c
        with self._read() as connection:
            rows = connection.execute(select(t.datasets).where(d.retired.is_(False)).order_by(d.name)).all()
            newest = dict(_newest_cuts(connection))
            return tuple(_as_status(connection, row, newest) for row in rows)


def _newest_cuts(connection: Connection) -> list[tuple[str, tuple[int, int]]]:
    alive = _C.state.in_((_PUBLISHED, CheckpointState.OPEN.value))
    top = select(func.max(_C.number)).where(alive).group_by(_C.job)
    rows = connection.execute(select(t.checkpoints).where(_C.number.in_(top)))
    return [(row.job, (row.number, row.cut_at_ms)) for row in rows]


def _as_status(connection: Connection, row: Row[Any], newest: Mapping[str, tuple[int, int]]) -> DatasetStatus:
    mine = (_V.table_name == row.name) & (_V.job == row.job)
    interval = connection.execute(
        select(t.versions).where(mine).order_by(_V.from_checkpoint.desc()).limit(1)
    ).first()
    complete = connection.execute(
        select(_C.number, _C.cut_at_ms)
        .join(
            t.versions,
            (_V.from_checkpoint <= _C.number)
            & or_(_V.to_checkpoint.is_(None), _V.to_checkpoint >= _C.number),
        )
        .where(mine, _C.job == row.job, _C.state == _PUBLISHED)
        .order_by(_C.number.desc())
        .limit(1)
    ).first()
    number, cut_at_ms = newest.get(row.job, (0, 0))
    f = t.failures.c
    error = None
    if row.kind in VERSIONED_KINDS:
        error = connection.execute(
            select(f.error)
            .where(f.dataset == row.name, f.checkpoint > (complete.number if complete else 0))
            .order_by(f.checkpoint.desc())
            .limit(1)
        ).scalar()
    return DatasetStatus(
        dataset=parse(row.name),
        job=row.job,
        kind=row.kind,
        version=Version(interval.version) if interval else None,
        checkpoint=CheckpointNumber(complete.number) if complete else None,
        mode=RefreshMode(row.last_mode) if row.last_mode else None,
        reason=row.last_reason,
        error=error,
        lag_ms=None
        if complete is None
        else 0
        if complete.number >= number
        else max(0, cut_at_ms - complete.cut_at_ms),
        refreshed_at_ms=row.last_at_ms,
    )


def _as_record(row: Row[Any]) -> RefreshRecord:
    refresh = None
    if row.mode is not None:
        refresh = Refresh(
            mode=RefreshMode(row.mode),
            reason=row.reason,
            rows_inserted=row.rows_inserted,
            rows_deleted=row.rows_deleted,
            duration_ms=row.duration_ms,
            estimate_ms=row.estimate_ms,
            delta_rows=row.delta_rows,
            nodes=tuple(
                NodeRefresh(node=n["node"], mode=RefreshMode(n["mode"]), reason=n["reason"])
                for n in row.nodes
            ),
        )
    return RefreshRecord(
        checkpoint=CheckpointNumber(row.checkpoint),
        dataset=parse(row.dataset),
        version=None if row.version is None else Version(row.version),
        refresh=refresh,
        error=row.error,
        finished_at_ms=row.finished_at_ms,
    )

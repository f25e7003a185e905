"""How far the captures of a project are: what their log tables hold, and what the databases keep for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from tautochrone.app.open import Project
from tautochrone.errors import TautochroneError
from tautochrone.model.lake import TableVersion
from tautochrone.model.log_table import LOG_RETENTION
from tautochrone.model.moments import now_ms
from tautochrone.model.names import TableName, Version
from tautochrone.model.reason import Reason
from tautochrone.model.source import AwaitsTransactions, ChangeLog, KeepsLogs, KeptLog, SetsTablesAside
from tautochrone.model.source_position import LogPosition
from tautochrone.runtime.streams.change_logs import change_log_of, refused_tables

__all__ = ["CaptureStatus", "CommitRates", "capture_statuses", "commit_rates"]

RATE_WINDOW_MS = 60_000
"""Rates are of the commits of so long before the newest one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRates:
    """What the log table got in its newest commits.

    Attributes:
        events_per_s: of the log; `rows_per_s`: of the copy. None: there are no two commits to compare, or no
            copy in them.
        committed_ms: the time of the newest commit; None: there is none.
    """

    events_per_s: float | None = None
    rows_per_s: float | None = None
    committed_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureStatus:
    """
    Attributes:
        phase: `not begun`, or that of the position.
        relations: captured tables; `waiting`: those that have no state of the database yet.
        chunks_done: copied since the copy began, of all tables that it has; 0 when all of it is complete.
        lag: how far the log is ahead of the table, by unit.
        lag_ms: by at most so much the table is behind in time: 0 if it has all of the log, else the age of
            the newest transaction that it has. None: not known.
        log_rows: rows of the log table; None where its metadata does not tell.
        log_retention: how long it keeps them, as the capture says; None: all.
        waits_for: transactions of the database that the copy waits for, before it has begun.
        set_aside: by relation, tables that are not captured as they are now, and why.
        error: why the database did not answer; what it keeps is unknown then.
    """

    source: str
    table: TableName
    phase: str
    relations: int
    waiting: Sequence[str] = ()
    chunks_left: int = 0
    chunks_done: int = 0
    lag: Mapping[str, int] = field(default_factory=dict)
    lag_ms: int | None = None
    rates: CommitRates = field(default_factory=CommitRates)
    kept: Sequence[KeptLog] = ()
    log_rows: int | None = None
    log_retention: str | None = None
    waits_for: Sequence[Reason] = ()
    set_aside: Mapping[str, Reason] = field(default_factory=dict)
    error: TautochroneError | None = None


def capture_statuses(project: Project) -> Iterator[CaptureStatus]:
    """One for each log table. Changes nothing, neither in the lake nor in the database."""
    _definitions, graph = project.analysed()
    for resolved in graph.flows.values():
        log = change_log_of(graph, resolved)
        if log is not None:
            table, flow = resolved.flow.target, resolved.flow.name
            position = _position(project, table, flow)
            rates, rows = CommitRates(), None
            if position is not None:
                log_table = project.lake.load(table)
                rates = commit_rates(log_table.versions(), flow, log_table.row_count)
                rows = log_table.row_count(log_table.current_version())
            retention = graph.definitions.datasets[table].properties.get(LOG_RETENTION)
            try:
                status = _status(log, table, position, rates)
                refused = {} if position is None else refused_tables(graph, project.lake, table)
                set_aside = {**status.set_aside, **refused}
                yield replace(status, log_rows=rows, log_retention=retention, set_aside=set_aside)
            finally:
                log.close()


def commit_rates(
    versions: Sequence[TableVersion], flow: str, row_count: Callable[[Version], int | None]
) -> CommitRates:
    """From the history of a log table, oldest first.

    A commit of copied rows leaves the position's point where it was; events move it.
    """
    if not versions:
        return CommitRates()
    newest_ms = versions[-1].committed_at_ms
    recent = [version for version in versions if version.committed_at_ms >= newest_ms - RATE_WINDOW_MS]
    events = copied = 0
    counted = [(_point(version, flow), row_count(version.version) or 0) for version in recent]
    for (point_before, count_before), (point, count) in pairwise(counted):
        if point_before in (None, point):
            # Fewer rows: old ones were dropped.
            copied += max(0, count - count_before)
        else:
            events += count - count_before
    seconds = (newest_ms - recent[0].committed_at_ms) / 1000
    if not seconds:
        return CommitRates(committed_ms=newest_ms)
    return CommitRates(
        events_per_s=events / seconds,
        rows_per_s=copied / seconds if copied else None,
        committed_ms=newest_ms,
    )


def _point(version: TableVersion, flow: str) -> int | None:
    position = None if version.commit_metadata is None else version.commit_metadata.positions.get(flow)
    return position.point if isinstance(position, LogPosition) else None


def _status(
    log: ChangeLog, table: TableName, position: LogPosition | None, rates: CommitRates
) -> CaptureStatus:
    phase = "not begun" if position is None else position.phase
    lag: Mapping[str, int] = {}
    kept: Sequence[KeptLog] = ()
    waits_for: Sequence[Reason] = ()
    error = None
    try:
        if position is None and isinstance(log, AwaitsTransactions):
            waits_for = log.open_transactions()
        kept = log.kept_logs(position) if isinstance(log, KeepsLogs) else ()
        lag = {} if position is None else log.lag(position)
    except TautochroneError as failed:
        error = failed
    return CaptureStatus(
        source=log.name,
        table=table,
        phase=phase,
        relations=len(log.relations()),
        waiting=() if position is None else sorted(position.bulk.waiting),
        chunks_left=0 if position is None else position.bulk.chunks_left,
        chunks_done=0 if position is None else position.bulk.chunks_done,
        lag=lag,
        lag_ms=None if position is None or error is not None else position.lag_ms(lag, now_ms()),
        rates=rates,
        kept=kept,
        waits_for=waits_for,
        set_aside=log.set_aside() if isinstance(log, SetsTablesAside) else {},
        error=error,
    )


def _position(project: Project, table: TableName, flow: str) -> LogPosition | None:
    if not project.has_lake or not project.lake.exists(table):
        return None
    metadata = project.lake.load(table).fork().commit_metadata
    position = None if metadata is None else metadata.positions.get(flow)
    return position if isinstance(position, LogPosition) else None

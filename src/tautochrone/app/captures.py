"""How far the captures of a project are: what their log tables hold, and what the databases keep for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tautochrone.app.open import Project
from tautochrone.errors import TautochroneError
from tautochrone.model.kept_log import KeepsLogs, KeptLog
from tautochrone.model.names import TableName
from tautochrone.model.source import ChangeLog
from tautochrone.model.source_position import LogPosition
from tautochrone.runtime.streams.change_logs import change_log_of

__all__ = ["CaptureStatus", "capture_statuses"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureStatus:
    """
    Attributes:
        phase: `not begun`; `copying`: chunks are left; `passing`: all is copied, and the log has not
            passed it yet; `following`.
        relations: captured tables; `waiting`: those that have no state of the database yet.
        lag: how far the log is ahead of the table, by unit.
        error: why the database did not answer; what it keeps is unknown then.
    """

    source: str
    table: TableName
    phase: str
    relations: int
    waiting: Sequence[str] = ()
    chunks_left: int = 0
    lag: Mapping[str, int] = field(default_factory=dict)
    kept: Sequence[KeptLog] = ()
    error: TautochroneError | None = None


def capture_statuses(project: Project) -> Iterator[CaptureStatus]:
    """One for each log table. Changes nothing, neither in the lake nor in the database."""
    _definitions, graph = project.analysed()
    for resolved in graph.flows.values():
        log = change_log_of(graph, resolved)
        if log is not None:
            position = _position(project, resolved.flow.target, resolved.flow.name)
            try:
                yield _status(log, resolved.flow.target, position)
            finally:
                log.close()


def _status(log: ChangeLog, table: TableName, position: LogPosition | None) -> CaptureStatus:
    phase = "not begun"
    if position is not None:
        waits = position.bulk.waiting
        phase = "copying" if position.bulk.pending else "passing" if waits else "following"
    lag: Mapping[str, int] = {}
    kept: Sequence[KeptLog] = ()
    error = None
    try:
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
        chunks_left=0 if position is None else sum(map(len, position.bulk.pending.values())),
        lag=lag,
        kept=kept,
        error=error,
    )


def _position(project: Project, table: TableName, flow: str) -> LogPosition | None:
    file = project.settings.catalog.sqlite_file
    # Asking a catalog that is not there would make it.
    if (file is not None and not Path(file).exists()) or not project.lake.exists(table):
        return None
    metadata = project.lake.load(table).fork().commit_metadata
    position = None if metadata is None else metadata.positions.get(flow)
    return position if isinstance(position, LogPosition) else None

"""Refreshing derived streaming tables: their flows consume their inputs up to a checkpoint.

How a flow writes what it consumed belongs to its query (`Streams.query`). This module decides up to which
versions a flow reads, which changes of an input it accepts, and what the refresh is recorded as.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from pyspark.sql import SparkSession

from tautochrone.iceberg.changes.streams import waits_for_first_version
from tautochrone.ingest.staging import expectation_counts
from tautochrone.model.catalog import Streamed
from tautochrone.model.checkpoint import NodeRefresh, Refresh, RefreshMode
from tautochrone.model.lake import NO_VERSION, ChangeKind, LakeTable, TableChange
from tautochrone.model.names import TableName, Version
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.project.graph import ResolvedFlow
from tautochrone.runtime.refresh.sessions import SessionPool
from tautochrone.runtime.refresh.task import (
    RefreshContext,
    Refreshed,
    RefreshTask,
    refreshed_without_rows,
)
from tautochrone.runtime.streams.streams import Streams

__all__ = ["StreamRefresher", "changes_rows", "has_no_rows", "require_acceptable_changes"]


def changes_rows(change: TableChange) -> bool:
    """Whether a stream cannot take a change, because it is more than new rows."""
    return change.kind in (ChangeKind.CHANGED, ChangeKind.UNKNOWN) and not change.appended


def has_no_rows(table: LakeTable, version: Version) -> bool:
    """Whether a version has no rows. A flow that has not begun to read the table is shown one without
    versions then: Iceberg's source fails where it should begin at a version without rows."""
    is_unchanged = table.change_between(NO_VERSION, version).kind is ChangeKind.NONE
    return is_unchanged or table.row_count(version) == 0


def require_acceptable_changes(context: RefreshContext, task: RefreshTask) -> None:
    """Refuse inputs of a streaming table that did more than gain rows since its last checkpoint. A flow
    without a position takes its inputs as they are.

    Raises:
        RefreshError: `STREAM_INPUT_CHANGED`.
    """
    metadata = task.fork.commit_metadata
    positions = {} if metadata is None or task.is_full_requested else metadata.positions
    for flow in task.flows:
        if flow.flow.name in positions:
            for name in sorted(flow.inputs.stream):
                _require_appends(context, task, name)


def _require_appends(context: RefreshContext, task: RefreshTask, name: TableName) -> None:
    last = task.last_versions.get(name)
    if last is None:
        return
    change = context.load_input(name).change_between(last, task.inputs[name])
    if changes_rows(change):
        raise context.changed_input_error(task.name, name, change.reason)


class StreamRefresher:
    """Refreshes the derived streaming tables of one job; serves all checkpoints of a run, from several
    threads."""

    def __init__(self, context: RefreshContext, sessions: SessionPool, streams: Streams) -> None:
        self._context = context
        self._sessions = sessions
        self._streams = streams

    def refresh(self, task: RefreshTask) -> Refreshed:
        """Let the table's flows consume their inputs up to the checkpoint, no more and no less.

        Raises:
            RefreshError: an input changed in a way that the table cannot take.
        """
        require_acceptable_changes(self._context, task)
        before = {} if task.is_full_requested else task.violations_before
        rows = sum(self._consume(task, flow) for flow in task.flows)
        metadata = task.table.fork().commit_metadata if task.expectations else None
        counted = expectation_counts(
            task.expectations, before, {} if metadata is None else metadata.violations
        )
        version = task.table.current_version()
        last = task.last_version
        if task.is_full_requested:
            mode, reason = RefreshMode.FULL, Reason.of(ReasonCode.FULL_REFRESH_REQUESTED)
        elif last is None:
            mode, reason = RefreshMode.APPEND, Reason.of(ReasonCode.FIRST_BUILD)
        else:
            change = task.table.change_between(last, version)
            if change.kind is ChangeKind.NONE:
                result = refreshed_without_rows(last, RefreshMode.NO_DATA, ReasonCode.NO_NEW_ROWS)
                return replace(result, refresh=replace(result.refresh, expectations=counted))
            mode, reason = RefreshMode.APPEND, Reason.of(ReasonCode.INPUTS_APPENDED)
            if change.reason.code is ReasonCode.COLUMNS_ADDED:
                reason = change.reason
        node = NodeRefresh(node="stream", mode=mode, reason=reason)
        refresh = Refresh(mode=mode, reason=reason, rows_inserted=rows, nodes=(node,), expectations=counted)
        return Refreshed(version, refresh)

    def _consume(self, task: RefreshTask, flow: ResolvedFlow) -> int:
        """Run one flow until it has read its inputs; answers the rows that it wrote."""
        query = self._streams.query(task.name, flow)
        if query.position is None or waits_for_first_version(query.position.offsets):
            self._show_empty_versions_as_unwritten(task, flow.inputs.stream)
        rows_before = query.rows
        query.start(self._session(task, flow), task.metadata_with(RefreshMode.APPEND), availableNow=True)
        query.wait()
        return query.rows - rows_before

    # -- how inputs are shown to a flow -----------------------------------------------------------

    def _show_empty_versions_as_unwritten(self, task: RefreshTask, inputs: Collection[TableName]) -> None:
        """Show inputs without rows as tables without versions, at which a flow waits."""
        for name in sorted(inputs):
            is_empty = has_no_rows(self._context.load_table(name), task.inputs[name])
            self._sessions.show_as_empty(name, is_empty=is_empty)

    def _session(self, task: RefreshTask, flow: ResolvedFlow) -> SparkSession:
        """The flow's own: it may read a version otherwise than other readers do; see `Streamed`."""
        target, name = task.name, flow.flow.name

        def lookup(table: TableName) -> Version | str | Streamed | None:
            version = self._sessions.lookup(table)
            return None if version is None else self._streams.streamed(target, name, version)

        return self._sessions.session(f"{target}/{name}", flow.flow.conf, lookup)

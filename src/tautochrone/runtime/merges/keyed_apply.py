"""Bringing a streaming table that takes updates and deletes to a checkpoint.

    1. the rows that its input got since the version that the table has merged; those of a change log are
       read once for all tables (`runtime.merges.log_rows`)   2. the flow's query over them
    3. the last event of each key   4. one commit: old rows of these keys out, new rows in
       (`runtime.merges.keyed_merge`)

The commit names the version of the input, so what is merged follows from (table, old version, new version)
alone: a refresh that was interrupted is simply done again. A table over a change log whose bulk is not
complete has no version yet, which is no error.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, SparkSession

from tautochrone.errors import DefinitionError, RefreshError
from tautochrone.model.auto_cdc import KeyedApply, keyed_apply_of
from tautochrone.model.checkpoint import RefreshMode
from tautochrone.model.lake import AppendedRows, ChangeKind, LakeTable, ReadableTable
from tautochrone.model.names import TableName, Version
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.source_position import LogPosition
from tautochrone.runtime.merges.capture_files import LightLogRows, RelationChanges, copied_files
from tautochrone.runtime.merges.keyed_merge import KeyedMerge
from tautochrone.runtime.merges.log_rows import LogRange, LogRows, RelationRows
from tautochrone.runtime.refresh.sessions import SessionPool
from tautochrone.runtime.refresh.task import (
    RefreshContext,
    Refreshed,
    RefreshTask,
    no_data_refresh,
    recovered_refresh,
)
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan

__all__ = ["KeyedRefresher", "WaitingForBulkLoad", "added_rows", "require_appended", "require_no_rows"]


@dataclass(frozen=True, slots=True)
class WaitingForBulkLoad:
    """The table has no version for the checkpoint, because the bulk (the first load) of its
    relation is not complete."""

    reason: Reason


class KeyedRefresher:
    """Refreshes the streaming tables of one job whose events are merged by key."""

    def __init__(self, context: RefreshContext, sessions: SessionPool) -> None:
        self._context = context
        self._sessions = sessions
        self._log_rows = LogRows()
        self._light_log_rows = LightLogRows()
        self._log_positions: dict[tuple[TableName, Version], list[LogPosition]] = {}
        self._plans: dict[TableName, JavaObject] = {}
        """Of flows: only the rows below the query differ between two checkpoints of a run."""

    def forget(self) -> None:
        """Drop what was held for a checkpoint."""
        self._log_rows.forget()
        self._light_log_rows.forget()
        self._log_positions.clear()

    def keyed_apply(self, table: TableName) -> KeyedApply | None:
        """How a streaming table's events are merged; None: it only takes appended rows.

        Raises:
            DefinitionError: `KEYED_APPLY_INCOMPLETE`.
        """
        dataset = self._context.definitions.datasets[table]
        return keyed_apply_of(dataset.properties, str(dataset.location))

    def refresh(self, task: RefreshTask, apply: KeyedApply) -> Refreshed | WaitingForBulkLoad:
        """Merge what the table's input got since the last time.

        Raises:
            DefinitionError: the flow is not one query, row by row over one lake table.
            RefreshError: `STREAM_INPUT_CHANGED`, rows of the input were changed or removed;
                `CAPTURED_VALUE_INVALID`; `MERGED_INPUT_UNKNOWN`.
            ConflictError: somebody else moved the table.
        """
        input_name = _only_input(task)
        last_commit = task.fork.commit_metadata
        committed = recovered_refresh(task)
        if committed is not None:
            return committed
        source, newest = self._context.load_table(input_name), task.inputs[input_name]
        if apply.relation is not None and self._is_waiting(source, newest, apply.relation):
            return WaitingForBulkLoad(Reason.of(ReasonCode.WAITS_FOR_BULK, relation=apply.relation))
        last_input = None if last_commit is None else last_commit.inputs.get(str(input_name))
        if last_input is None:
            require_no_rows(task)
            _require_whole(task, source, newest, apply)
        old = None if last_input is None else Version(last_input)
        files_since_ms = self._files_since_ms(apply, source, newest)
        changes: RelationChanges | Reason | None = None
        left_to_spark = None
        if old is not None and files_since_ms:
            log_range = LogRange(source.name, old, newest)
            changes = self._light_log_rows.changes_of(source, log_range, str(apply.relation))
            merged = self._merge_files(task, apply, changes)
            if isinstance(merged, Refreshed):
                return merged
            left_to_spark = merged
        new_rows = self._new_rows(task, apply, source, old, newest)
        if new_rows is None or (old is not None and new_rows.count == 0):
            mode = RefreshMode.FULL if old is None else RefreshMode.INCREMENTAL
            task.table.commit_metadata_only(task.fork, task.metadata_with(mode))
            missing_rows = new_rows is None
            return no_data_refresh(
                task, ReasonCode.NO_NEW_ROWS if missing_rows else ReasonCode.NO_EVENTS_OF_KEYS
            )
        if task.name not in self._plans:
            self._plans[task.name] = analyzed_plan(task.flows[0].flow.evaluate(self._session(task)))
        merge = self._merge(task, apply, is_first=old is None)
        if files_since_ms:
            if not isinstance(changes, RelationChanges):
                changes = RelationChanges.of_frame(new_rows.rows)
            merge = replace(
                merge,
                files=copied_files(new_rows.rows) if old is None else (),
                copied_since_ms=files_since_ms,
                changes=changes.files,
                changes_left=left_to_spark,
            )
        return merge.merge(new_rows, self._plans[task.name])

    def _merge(self, task: RefreshTask, apply: KeyedApply, *, is_first: bool) -> KeyedMerge:
        return KeyedMerge(
            task=task,
            apply=apply,
            base=self._context.base,
            session=self._session(task),
            schema=self._context.schemas[task.name],
            is_first=is_first,
        )

    def _merge_files(
        self, task: RefreshTask, apply: KeyedApply, changes: RelationChanges | Reason
    ) -> Refreshed | Reason:
        """Take the files of a light capture; or why Spark must merge the changes."""
        if isinstance(changes, Reason):
            return changes
        if changes.has_others:
            return Reason.of(ReasonCode.EVENTS_BESIDE_FILES)
        if not changes.files:
            task.table.commit_metadata_only(task.fork, task.metadata_with(RefreshMode.INCREMENTAL))
            return no_data_refresh(task, ReasonCode.NO_EVENTS_OF_KEYS)
        return self._merge(task, apply, is_first=False).merge_files(changes.files)

    def _files_since_ms(self, apply: KeyedApply, source: LakeTable, version: Version) -> int:
        """Since when files may have rows of the table's relation: of its first copy, or of changes; 0: none
        has."""
        positions = [] if apply.relation is None else self._positions(source, version)
        return max((position.bulk.in_files.get(str(apply.relation), 0) for position in positions), default=0)

    def _is_waiting(self, source: LakeTable, version: Version, relation: str) -> bool:
        """See `LogPosition.is_waiting`."""
        positions = self._positions(source, version)
        return not positions or any(position.is_waiting(relation) for position in positions)

    def _positions(self, source: LakeTable, version: Version) -> list[LogPosition]:
        """All tables of a log ask for them, and they are in the metadata of all its commits."""
        if (source.name, version) not in self._log_positions:
            self._log_positions[source.name, version] = _log_positions(source, version)
        return self._log_positions[source.name, version]

    def _new_rows(
        self, task: RefreshTask, apply: KeyedApply, source: LakeTable, old: Version | None, new: Version
    ) -> RelationRows | None:
        """The rows that the input got, of the table's relation if it has one; None: it got none."""

        def read() -> DataFrame | None:
            return added_rows(task.name, source, self._context, old, new)

        if apply.relation is None or apply.relation_column is None:
            rows = read()
            return None if rows is None else RelationRows(rows, None)
        after, before = source.row_count(new), 0 if old is None else source.row_count(old)
        expected = sys.maxsize if after is None or before is None else max(0, after - before)
        log_range, column = LogRange(source.name, old, new), apply.relation_column

        def count(max_bytes: int) -> AppendedRows | Reason:
            if old is None or source.change_between(old, new).kind is not ChangeKind.APPEND:
                return Reason.of(ReasonCode.LOG_NOT_APPENDED)
            return source.appended_rows(old, new, column, max_bytes)

        return self._log_rows.of_relation(log_range, column, apply.relation, expected, read, count)

    def _session(self, task: RefreshTask) -> SparkSession:
        return self._sessions.session(str(task.name), task.flows[0].flow.conf)


def _only_input(task: RefreshTask) -> TableName:
    """The lake table whose events the table takes."""
    reads = [flow.inputs for flow in task.flows if not flow.stateful]
    if len(task.flows) == len(reads) == 1 and len(reads[0].stream) == 1 and not reads[0].batch:
        return next(iter(reads[0].stream))
    raise DefinitionError(
        "KEYED_APPLY_NOT_SUPPORTED",
        f"{task.name} takes updates and deletes: it needs one flow, row by row over one streaming table",
        location=task.location,
        hint="select and filter the events in the flow; join and aggregate in a materialized view over it",
    )


def _log_positions(source: LakeTable, version: Version) -> list[LogPosition]:
    """Up to where a version of a log's table has the log."""
    metadata = source.merged_commit_metadata_at(version)
    positions = [] if metadata is None else list(metadata.positions.values())
    return [position for position in positions if isinstance(position, LogPosition)]


def require_no_rows(task: RefreshTask) -> None:
    """Refuse to merge all events of the inputs into a table that has rows: it may have merged them.

    Raises:
        RefreshError: `MERGED_INPUT_UNKNOWN`.
    """
    if task.table.row_count(task.fork.version) != 0:
        raise RefreshError(
            "MERGED_INPUT_UNKNOWN",
            f"{task.name} has rows, and no commit of it says which events are merged",
            hint=f"merge all events again with --full-refresh {task.name.table}",
            location=task.location,
            sqlstate="55000",
        )


def _require_whole(task: RefreshTask, source: LakeTable, version: Version, apply: KeyedApply) -> None:
    """
    Raises:
        RefreshError: `LOG_SHORTENED`, the table is built from all rows of the log, and some are gone.
    """
    metadata = None if apply.relation is None else source.merged_commit_metadata_at(version)
    if metadata is not None and apply.relation in metadata.shortened:
        raise RefreshError(
            "LOG_SHORTENED",
            f"{task.name} cannot be built from {source.name}: "
            f"old rows of {apply.relation} were dropped from it",
            sqlstate="55000",
            location=task.location,
            hint=f"`taut run` without --full-refresh copies the rows of {apply.relation} again; if another "
            f"job writes {source.name}, copy the database again: --full-refresh of the log table and of all "
            "captured tables",
        )


def added_rows(
    table: TableName, source: LakeTable, context: RefreshContext, old: Version | None, new: Version
) -> DataFrame | None:
    """The rows that came to the input of a table between two versions; None: none did.

    Raises:
        RefreshError: `STREAM_INPUT_CHANGED`, rows were changed or removed.
    """
    if old is None:
        return source.read(context.base, new)  # type: ignore[no-any-return]
    if require_appended(table, source, context, old, new) is ChangeKind.NONE:
        return None
    return source.changed_rows(context.base, old, new).added


def require_appended(
    table: TableName, source: ReadableTable, context: RefreshContext, old: Version, new: Version
) -> ChangeKind:
    """How the input of a table changed, which may only have gained rows.

    Raises:
        RefreshError: `STREAM_INPUT_CHANGED`, rows were changed or removed.
    """
    change = source.change_between(old, new)
    if change.kind not in (ChangeKind.NONE, ChangeKind.APPEND) and not change.appended:
        raise context.changed_input_error(table, source.name, change.reason)
    return change.kind

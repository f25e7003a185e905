"""Bringing a streaming table that takes updates and deletes to a checkpoint.

    1. the rows that its input got since the version that the table has merged; those of a change log are
       read once for all tables (`runtime.refresh.log_rows`)   2. the flow's query over them
    3. the last event of each key   4. one commit: old rows of these keys out, new rows in

The commit names the version of the input, so what is merged follows from (table, old version, new version)
alone: a refresh that was interrupted is simply done again. A table over a change log whose bulk is not
complete has no version yet, which is no error.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from py4j.java_gateway import JavaObject
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from tautochrone.errors import DefinitionError, RefreshError
from tautochrone.ingest.column_alignment import align
from tautochrone.model import limits
from tautochrone.model.keyed_apply import KeyedApply, keyed_apply_of
from tautochrone.model.lake import (
    FILE_COLUMN,
    POSITION_COLUMN,
    ChangeKind,
    CommitMetadata,
    Committed,
    Fork,
    LakeTable,
    Staged,
)
from tautochrone.model.names import TableName, Version, quoted
from tautochrone.model.reason import Reason, ReasonCode, several
from tautochrone.model.refresh import NodeRefresh, Refresh, RefreshMode
from tautochrone.model.source_position import LogPosition
from tautochrone.runtime.refresh.choose_mode import is_committed
from tautochrone.runtime.refresh.driver_merge import (
    LastEvents,
    last_events,
    last_events_of_many,
)
from tautochrone.runtime.refresh.latest_events import InvalidValues, invalid_values, latest_rows, summarize
from tautochrone.runtime.refresh.log_rows import LogRange, LogRows, RelationRows
from tautochrone.runtime.refresh.session_pool import SessionPool
from tautochrone.runtime.refresh.task import (
    RefreshContext,
    Refreshed,
    RefreshTask,
    refreshed_without_rows,
    version_with_same_rows,
)
from tautochrone.runtime.refresh.weighted_apply import row_change
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan
from tautochrone.spark.analysis.session_context import dataframe_of_plan
from tautochrone.spark.execute.key_values import key_values
from tautochrone.spark.execute.materialize import checkpointed, materialize, unpersist
from tautochrone.spark.execute.tuning import tuned
from tautochrone.spark.sources.stream_as_batch import stream_as_batch

__all__ = ["KeyedRefresher", "WaitingForBulkLoad", "added_rows", "commit_change"]


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
        self._log_positions: dict[tuple[TableName, Version], list[LogPosition]] = {}
        self._plans: dict[TableName, JavaObject] = {}
        """Of flows: only the rows below the query differ between two checkpoints of a run."""

    def forget(self) -> None:
        """Drop what was held for a checkpoint."""
        self._log_rows.forget()
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
                `CAPTURED_VALUE_INVALID`.
            ConflictError: somebody else moved the table.
        """
        input_name = _only_input(task)
        last_commit = task.fork.commit_metadata
        if last_commit is not None and is_committed(task):
            mode = RefreshMode(last_commit.mode or RefreshMode.NO_DATA)
            result = refreshed_without_rows(task.fork.version, mode, ReasonCode.COMMITTED_BEFORE_CRASH)
            return replace(result, is_recovered=True)
        source, newest = self._context.load_table(input_name), task.inputs[input_name]
        if apply.relation is not None and self._is_waiting(source, newest, apply.relation):
            return WaitingForBulkLoad(Reason.of(ReasonCode.WAITS_FOR_BULK, relation=apply.relation))
        merged = None if last_commit is None else last_commit.inputs.get(str(input_name))
        if merged is None:
            _require_whole(task, source, newest, apply)
        old = None if merged is None else Version(merged)
        mode = RefreshMode.FULL if old is None else RefreshMode.INCREMENTAL
        metadata = task.metadata_with(mode)
        new_rows = self._new_rows(task, apply, source, old, newest)
        if new_rows is None or (old is not None and not new_rows.count):
            task.table.commit_metadata_only(task.fork, metadata)
            missing_rows = new_rows is None
            return _no_data(task, ReasonCode.NO_NEW_ROWS if missing_rows else ReasonCode.NO_EVENTS_OF_KEYS)
        session = self._session(task)
        if task.name not in self._plans:
            self._plans[task.name] = analyzed_plan(task.flows[0].flow.evaluate(session))
        events = stream_as_batch(session, self._plans[task.name], new_rows.rows)
        if new_rows.count > limits.MAX_HELD_LOG_ROWS:
            return self._merge(task, apply, events, None, metadata)
        # The query's casts are evaluated once for all that is asked about the events.
        if new_rows.fit_on_driver:
            with tuned(session, delta_rows=new_rows.count):
                events, count = materialize(events, max_rows=new_rows.count)
                return self._merge(task, apply, events, count, metadata, is_local=True)
        if apply.weight is None and old is not None:
            last = last_events_of_many(events, apply)
            if last is not None:
                return self._merge_last(task, apply, last, events, metadata, is_local=False)
        cached, count = checkpointed(events)
        try:
            return self._merge(task, apply, cached, count, metadata)
        finally:
            unpersist(cached)

    def _is_waiting(self, source: LakeTable, version: Version, relation: str) -> bool:
        """See `LogPosition.is_waiting`. All tables of a log ask, and the answer is in the metadata of all its
        commits."""
        if (source.name, version) not in self._log_positions:
            self._log_positions[source.name, version] = _log_positions(source, version)
        positions = self._log_positions[source.name, version]
        return not positions or any(position.is_waiting(relation) for position in positions)

    def _new_rows(
        self, task: RefreshTask, apply: KeyedApply, source: LakeTable, old: Version | None, new: Version
    ) -> RelationRows | None:
        """The rows that the input got, of the table's relation if it has one; None: it got none."""

        def read() -> DataFrame | None:
            return added_rows(task.name, source, self._context, old, new)

        if apply.relation is None or apply.relation_column is None:
            rows = read()
            return None if rows is None else RelationRows(rows, sys.maxsize)
        after, before = source.row_count(new), 0 if old is None else source.row_count(old)
        expected = sys.maxsize if after is None or before is None else max(0, after - before)
        log_range = LogRange(source.name, old, new)
        return self._log_rows.of_relation(log_range, apply.relation_column, apply.relation, expected, read)

    def _merge(
        self,
        task: RefreshTask,
        apply: KeyedApply,
        events: DataFrame,
        count: int | None,
        metadata: CommitMetadata,
        *,
        is_local: bool = False,
    ) -> Refreshed:
        """Merge the events of a flow.

        Args:
            count: of the events, which are held then; None: they are too many.
            is_local: they are on the driver.
        """
        mode = RefreshMode(metadata.mode or RefreshMode.FULL)
        is_first = mode is RefreshMode.FULL
        if count == 0 and not is_first:
            task.table.commit_metadata_only(task.fork, metadata)
            return _no_data(task, ReasonCode.NO_EVENTS_OF_KEYS)
        if apply.weight is not None:
            return self._add_and_remove_rows(task, apply, events, metadata)
        last = last_events(events, apply) if is_local else None
        if last is not None:
            return self._merge_last(task, apply, last, events, metadata, is_local=is_local)
        summary = summarize(events, apply, count if is_local else None)
        if not is_first and not summary.count:
            task.table.commit_metadata_only(task.fork, metadata)
            return _no_data(task, ReasonCode.NO_EVENTS_OF_KEYS)
        invalid = invalid_values(events, apply, summary)
        if invalid is not None and not apply.invalid_is_null:
            raise _invalid_value(task, invalid)
        merge = _Merge(
            task.table, task.fork, apply, self._context.base, self._session(task), count, is_local=is_local
        )
        # In one partition nothing is shuffled.
        rows = latest_rows(
            events.coalesce(1) if is_local else events,
            apply,
            summary,
            None if is_first else merge.stored_rows,
        )
        if count is not None and is_local:
            rows, _ = materialize(rows, max_rows=count)
        aligned = align(rows, self._context.schemas[task.name], task.flows[0].flow.name)
        staged = task.table.stage(task.fork, aligned, local=is_local)
        is_truncated = not is_first and summary.last_truncate is not None
        old_rows = {} if is_first or is_truncated else merge.old_rows(events)
        if is_truncated:
            committed: Committed | None = task.table.replace_rows(
                task.fork, [staged] if staged.rows else [], metadata
            )
        else:
            committed = commit_change(task.table, task.fork, staged, old_rows, metadata)
        if committed is None:
            return _no_data(task, ReasonCode.NO_EVENTS_OF_KEYS)
        return _refreshed(task, mode, committed.version, staged, old_rows, invalid)

    def _merge_last(
        self,
        task: RefreshTask,
        apply: KeyedApply,
        last: LastEvents,
        events: DataFrame,
        metadata: CommitMetadata,
        *,
        is_local: bool,
    ) -> Refreshed:
        """Merge events of which the last of each key is known."""
        mode = RefreshMode(metadata.mode or RefreshMode.FULL)
        rows = last.rows.drop(*apply.dropped)
        aligned = align(rows, self._context.schemas[task.name], task.flows[0].flow.name)
        staged = task.table.stage(task.fork, aligned, local=is_local)
        old_rows: Mapping[str, Sequence[int]] = {}
        if mode is not RefreshMode.FULL:
            session, count = self._session(task), last.keys.num_rows
            merge = _Merge(
                task.table, task.fork, apply, self._context.base, session, count, is_local=is_local
            )
            old_rows = merge.old_rows(events, last.keys)
        committed = commit_change(task.table, task.fork, staged, old_rows, metadata)
        if committed is None:
            return _no_data(task, ReasonCode.NO_EVENTS_OF_KEYS)
        return _refreshed(task, mode, committed.version, staged, old_rows, None)

    def _add_and_remove_rows(
        self, task: RefreshTask, apply: KeyedApply, events: DataFrame, metadata: CommitMetadata
    ) -> Refreshed:
        """Merge events of a table whose rows may be equal.

        Raises:
            RefreshError: `CAPTURED_VALUE_INVALID`; `CAPTURED_ROW_MISSING`.
        """
        change = row_change(events, apply)
        if change.invalid is not None and not apply.invalid_is_null:
            raise _invalid_value(task, change.invalid)
        mode = RefreshMode(metadata.mode or RefreshMode.FULL)
        is_first = mode is RefreshMode.FULL
        flow = task.flows[0].flow
        old_rows: dict[str, list[int]] = {}
        if not is_first and not change.replaces_all:
            merge = _Merge(task.table, task.fork, apply, self._context.base, self._session(task))
            removed = change.removed(merge.all_rows())
            if removed.missing:
                raise _row_missing(task, removed.missing)
            old_rows = removed.positions
        staged = task.table.stage(
            task.fork, align(change.added(), self._context.schemas[task.name], flow.name)
        )
        if change.replaces_all and not is_first:
            replaced = [staged] if staged.rows else []
            committed: Committed | None = task.table.replace_rows(task.fork, replaced, metadata)
        else:
            committed = commit_change(task.table, task.fork, staged, old_rows, metadata)
        if committed is None:
            return _no_data(task, ReasonCode.NO_EVENTS_OF_KEYS)
        return _refreshed(task, mode, committed.version, staged, old_rows, change.invalid)

    def _session(self, task: RefreshTask) -> SparkSession:
        return self._sessions.session(str(task.name), task.flows[0].flow.conf)


@dataclass(frozen=True, slots=True)
class _Merge:
    table: LakeTable
    fork: Fork
    apply: KeyedApply
    base: SparkSession
    """Reads the table itself, whatever the checkpoint shows of it."""
    session: SparkSession
    events: int | None = None
    """So many are merged; None: nobody knows."""
    is_local: bool = False
    """The events are on the driver."""

    def stored_rows(self, events: DataFrame) -> DataFrame:
        """The table's rows whose keys have events."""
        return self._of_keys(events, []).drop(FILE_COLUMN, POSITION_COLUMN)

    def old_rows(self, events: DataFrame, keys: Any = None) -> Mapping[str, Sequence[int]]:
        """Where the rows are whose keys have events: data file → positions.

        Args:
            keys: of the events, as an Arrow table, if they are known.
        """
        if keys is None and not self.is_local and self.events is not None:
            keys = events.select(*map(quoted, self.apply.keys)).toArrow()
        if keys is not None:
            positions = self.table.positions_of_keys(self.fork, keys)
            if positions is not None:
                return positions
        stored = self._of_keys(events, [FILE_COLUMN, POSITION_COLUMN])
        positions_by_file: dict[str, list[int]] = {}
        if not self.is_local:
            # Rows as Python objects would take longer than finding them.
            grouped = stored.toArrow().group_by(FILE_COLUMN).aggregate([(POSITION_COLUMN, "list")])
            for row in grouped.to_pylist():
                positions_by_file[row[FILE_COLUMN]] = sorted(row[f"{POSITION_COLUMN}_list"])
            return positions_by_file
        for row in stored.collect():
            positions_by_file.setdefault(row[FILE_COLUMN], []).append(row[POSITION_COLUMN])
        return {file: sorted(positions) for file, positions in positions_by_file.items()}

    def all_rows(self) -> DataFrame:
        """All rows of the table, with file and position."""
        stored = self.table.read(self.base, self.fork.version)
        return dataframe_of_plan(
            self.session, analyzed_plan(stored.select("*", FILE_COLUMN, POSITION_COLUMN))
        )

    def _of_keys(self, events: DataFrame, columns: Sequence[str]) -> DataFrame:
        """The table's rows whose keys have events, with these columns; all without any."""
        names = [quoted(name) for name in self.apply.keys]
        stored = self.table.read(self.base, self.fork.version)
        if columns:
            stored = stored.select(*names, *columns)
        if self.is_local:
            for key, column in key_values(events, self.apply.keys).items():
                stored = stored.where(column.condition(quoted(key), or_null=None in column.values))
        stored = dataframe_of_plan(self.session, analyzed_plan(stored)).alias("stored")
        touched = events.select(*names)
        # A few keys go to the rows of the table, which may be many.
        are_sent = self.events is not None and self.events * len(names) <= limits.MAX_BROADCAST_VALUES
        touched = (sf.broadcast(touched) if are_sent else touched.distinct()).alias("touched")
        equal: Column = sf.lit(True)
        for name in names:
            equal = equal & sf.col(f"stored.{name}").eqNullSafe(sf.col(f"touched.{name}"))
        rows = stored.join(touched, equal, "left_semi")
        return rows.select(*columns) if columns else rows


def commit_change(
    table: LakeTable,
    fork: Fork,
    staged: Staged,
    old_rows: Mapping[str, Sequence[int]],
    metadata: CommitMetadata,
) -> Committed | None:
    """One commit: old rows out, staged rows in. None: there are none, only the commit metadata is new."""
    rows = staged.rows
    if old_rows:
        return table.apply(fork, [staged] if rows else [], old_rows, metadata)
    if rows:
        return table.commit_staged(fork, [staged], metadata)
    table.commit_metadata_only(fork, metadata)
    return None


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


def _no_data(task: RefreshTask, code: ReasonCode) -> Refreshed:
    return refreshed_without_rows(version_with_same_rows(task), RefreshMode.NO_DATA, code)


def _refreshed(
    task: RefreshTask,
    mode: RefreshMode,
    version: Version,
    staged: Staged,
    old_rows: Mapping[str, Sequence[int]],
    invalid: InvalidValues | None,
) -> Refreshed:
    code = ReasonCode.EVENTS_MERGED
    if mode is RefreshMode.FULL:
        is_full = task.is_full_requested
        code = ReasonCode.FULL_REFRESH_REQUESTED if is_full else ReasonCode.FIRST_BUILD
    reason = Reason.of(code)
    nulled = [] if invalid is None else [_nulled(invalid)]
    refresh = Refresh(
        mode=mode,
        reason=several([reason, *nulled]),
        rows_inserted=staged.rows,
        rows_deleted=sum(len(positions) for positions in old_rows.values()),
        nodes=(NodeRefresh(node="apply", mode=mode, reason=reason),),
    )
    return Refreshed(version, refresh)


def _row_missing(task: RefreshTask, count: int) -> RefreshError:
    return RefreshError(
        "CAPTURED_ROW_MISSING",
        f"The log removes {count} rows that {task.name} does not have",
        sqlstate="58000",
        location=task.location,
        hint="somebody else changed the table, or its log: copy the database again, with --full-refresh of "
        "the log table and of the captured tables",
    )


def _invalid_value(task: RefreshTask, invalid: InvalidValues) -> RefreshError:
    return RefreshError(
        "CAPTURED_VALUE_INVALID",
        f"{invalid.rows} rows of {task.name} have a value that the type of its column does not have, such as "
        f"{invalid.example}",
        sqlstate="22000",
        location=task.location,
        hint="correct it in the database, then run again; or take the column as text, with as_text of the "
        'capture and --full-refresh of the table; or take such values as NULL: invalid_values="null"',
    )


def _nulled(invalid: InvalidValues) -> Reason:
    return Reason.of(ReasonCode.INVALID_VALUES_NULL, rows=invalid.rows, example=invalid.example)


def _log_positions(source: LakeTable, version: Version) -> list[LogPosition]:
    """Up to where a version of a log's table has the log."""
    metadata = source.merged_commit_metadata_at(version)
    positions = [] if metadata is None else list(metadata.positions.values())
    return [position for position in positions if isinstance(position, LogPosition)]


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
            hint="copy the database again: --full-refresh of the log table and of all captured tables",
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
    change = source.change_between(old, new)
    if change.kind is ChangeKind.NONE:
        return None
    if change.kind is not ChangeKind.APPEND and not change.appended:
        raise context.changed_input(table, source.name, change.reason)
    return source.changed_rows(context.base, old, new).added

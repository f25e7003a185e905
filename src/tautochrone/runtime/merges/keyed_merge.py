"""One refresh of a streaming table with new events, which are merged by key.

    few events       are held in the JVM, and the driver finds the last one of each key and the rows to remove
    more events      are handed to the driver as Arrow, which writes the rows that come
    many events      stay on the executors; the driver orders their keys alone
    copied rows      of keys without events are taken as they are, when the table is built
    very many, and events of which more must be known than key and order, are merged by Spark

A step that Spark did because the driver could not is a node of the refresh, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from tautochrone.errors import RefreshError
from tautochrone.ingest.staging import align, aligned_columns
from tautochrone.model import limits
from tautochrone.model.auto_cdc import KeyedApply
from tautochrone.model.checkpoint import NodeRefresh, Refresh, RefreshMode
from tautochrone.model.counts import counted
from tautochrone.model.lake import (
    FILE_COLUMN,
    POSITION_COLUMN,
    CommitMetadata,
    Committed,
    Fork,
    LakeTable,
    Staged,
)
from tautochrone.model.log_table import ChangeFile, CopiedFile
from tautochrone.model.names import quoted
from tautochrone.model.reason import Reason, ReasonCode, joined_reasons
from tautochrone.runtime.merges.capture_files import CopiedFileRows, events_of_change_files, net_files
from tautochrone.runtime.merges.copied_rows import CopiedRows, copied_rows
from tautochrone.runtime.merges.latest_events import (
    InvalidValues,
    LastEvents,
    invalid_values,
    last_events,
    last_events_of_many,
    last_rows,
    latest_rows,
    same_values,
    summarize,
    without_ignored,
)
from tautochrone.runtime.merges.log_rows import RelationRows
from tautochrone.runtime.merges.weighted_apply import weighted_change
from tautochrone.runtime.refresh.task import Refreshed, RefreshTask, no_data_refresh
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan
from tautochrone.spark.analysis.session_context import dataframe_of_plan, tuned_session
from tautochrone.spark.execute.key_lookups import key_values
from tautochrone.spark.execute.materialize import computed_on_executors, materialize, unpersist
from tautochrone.spark.sources.stream_as_batch import stream_as_batch

__all__ = ["KeyedMerge", "RowPositions", "StoredRows", "commit_change"]


@dataclass(frozen=True, slots=True)
class RowPositions:
    """Where rows are.

    Attributes:
        by_file: data file → positions of rows in it.
        left_to_spark: why a query found them; None: this process did.
    """

    by_file: Mapping[str, Sequence[int]]
    left_to_spark: Reason | None = None


@dataclass(frozen=True, slots=True)
class StoredRows:
    """The rows of a table at one version: those that it has for the keys of events, and where they are.

    Attributes:
        base: reads the table itself, whatever the checkpoint shows of it.
        session: of the flow whose events are merged.
        events: so many are merged; None: nobody knows.
        is_local: the events are on the driver.
    """

    table: LakeTable
    fork: Fork
    apply: KeyedApply
    base: SparkSession
    session: SparkSession
    events: int | None = None
    is_local: bool = False

    def of_keys(self, events: DataFrame) -> DataFrame:
        """The rows whose keys have events."""
        return self._of_keys(events, []).drop(FILE_COLUMN, POSITION_COLUMN)

    def positions_of_keys(self, events: DataFrame, keys: Any = None) -> RowPositions:
        """Where the rows are whose keys have events.

        Args:
            keys: of the events, as an Arrow table, if they are known.
        """
        if keys is None and not self.is_local and self.events is not None:
            keys = events.select(*map(quoted, self.apply.keys)).toArrow()
        if keys is None:
            return self._positions_by_query(events, None)
        positions = self.table.positions_of_keys(self.fork, keys)
        if isinstance(positions, Reason):
            return self._positions_by_query(events, positions)
        return RowPositions(positions)

    def positions_of(self, keys: Any) -> RowPositions:
        """Where the rows with these keys are, an Arrow table."""
        positions = self.table.positions_of_keys(self.fork, keys)
        if isinstance(positions, Reason):
            stored = self.table.read(self.base, self.fork.version)
            # Without it, times that have no zone would become times of the session's.
            schema = stored.select(*map(quoted, keys.column_names)).schema
            return self._positions_by_query(self.session.createDataFrame(keys, schema), positions)
        return RowPositions(positions)

    def _positions_by_query(self, events: DataFrame, left_to_spark: Reason | None) -> RowPositions:
        stored = self._of_keys(events, [FILE_COLUMN, POSITION_COLUMN])
        by_file: dict[str, list[int]] = {}
        if not self.is_local:
            # Rows as Python objects would take longer than finding them.
            grouped = stored.toArrow().group_by(FILE_COLUMN).aggregate([(POSITION_COLUMN, "list")])
            for row in grouped.to_pylist():
                by_file[row[FILE_COLUMN]] = sorted(row[f"{POSITION_COLUMN}_list"])
            return RowPositions(by_file, left_to_spark)
        for row in stored.collect():
            by_file.setdefault(row[FILE_COLUMN], []).append(row[POSITION_COLUMN])
        return RowPositions({file: sorted(rows) for file, rows in by_file.items()}, left_to_spark)

    def all(self) -> DataFrame:
        """All rows of the table, with file and position."""
        stored = self.table.read(self.base, self.fork.version)
        return dataframe_of_plan(
            self.session, analyzed_plan(stored.select("*", FILE_COLUMN, POSITION_COLUMN))
        )

    def _of_keys(self, events: DataFrame, columns: Sequence[str]) -> DataFrame:
        """The rows whose keys have events, with these columns; all without any."""
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
        rows = stored.join(touched, same_values("stored", "touched", names), "left_semi")
        return rows.select(*columns) if columns else rows


_COUNTED, _HELD, _LAST = "rows of the log", "events", "last events of keys"
_STORED, _WRITTEN = "stored rows of keys", "new rows"
_COPIED = "copied rows without events"
"""Steps, as nodes of the refresh."""


@dataclass(slots=True, kw_only=True)
class KeyedMerge:
    """
    Args:
        base: reads the table itself, whatever the checkpoint shows of it.
        session: of the table's flow.
        schema: of the table.
        is_first: the table has no rows that events made.
        files: with copied rows, if it is the first; the log table names them.
        copied_since_ms: when their copy began.
        changes: files with changes, in their order.
        changes_left: why Spark merges these, and not the driver.
    """

    task: RefreshTask
    apply: KeyedApply
    base: SparkSession
    session: SparkSession
    schema: StructType
    is_first: bool
    files: Sequence[CopiedFile] = ()
    copied_since_ms: int = 0
    changes: Sequence[ChangeFile] = ()
    changes_left: Reason | None = None
    _left_to_spark: list[NodeRefresh] = field(default_factory=list)

    @property
    def mode(self) -> RefreshMode:
        return RefreshMode.FULL if self.is_first else RefreshMode.INCREMENTAL

    def merge(self, rows: RelationRows, plan: JavaObject) -> Refreshed:
        """Merge the events that the flow's query, a plan, makes of new rows of its input.

        Raises:
            RefreshError: `CAPTURED_VALUE_INVALID`, `CAPTURED_ROW_MISSING`.
            ConflictError: somebody else moved the table.
        """
        events = without_ignored(stream_as_batch(self.session, plan, rows.rows), self.apply)
        if self.changes:
            events = events.unionByName(self._changes_in_files(events))
        if self.files:
            return self._merge_with_files(events)
        if self.changes:
            self._note(_HELD, self.changes_left)
            return self._merge_by_spark(events, None)
        return self._merge_events(events, rows)

    def _changes_in_files(self, events: DataFrame) -> DataFrame:
        staged = self._change_files(self.changes)
        return events_of_change_files(self.session, self.changes, staged, events, self.apply)

    def _change_files(self, files: Sequence[ChangeFile]) -> Staged:
        """
        Raises:
            RefreshError: `LOG_SHORTENED`.
        """
        # As if staged now: as long as the log names them to the table, orphans are not looked for among them.
        staged = self._files([file.name for file in files], None)
        for file, data_file in zip(files, staged.files, strict=True):
            rows = int(data_file.recordCount())
            if rows != file.rows:
                text = f"it has {counted(rows, 'row')} instead of {file.rows}"
                raise _files_gone_error(
                    self.task, Reason.of(ReasonCode.FILE_NOT_READ, file=file.name, text=text)
                )
        return staged

    def _merge_events(self, events: DataFrame, rows: RelationRows) -> Refreshed:
        """Merge events that are all in the log."""
        left_to_executors = rows.left_to_executors
        if left_to_executors is None and rows.count is not None:
            self._note(_COUNTED, rows.counted_by_spark)
            with tuned_session(self.session, delta_rows=rows.count):
                # The query's casts are evaluated once for all that is asked about the events.
                events, count = materialize(events, max_rows=rows.count)
                return self._merge_local(events, count)
        copied = copied_rows(events, self.apply) if self.is_first else None
        if isinstance(copied, CopiedRows):
            return self._take_copied(copied)
        if copied is not None:
            self._left_to_spark.append(NodeRefresh(node=_COPIED, mode=self.mode, reason=copied))
        self._note(_COUNTED, rows.counted_by_spark)
        self._note(_HELD, left_to_executors)
        if rows.count is None:
            return self._merge_by_spark(events, None)
        if rows.count > limits.MAX_HELD_LOG_ROWS:
            limit = limits.MAX_HELD_LOG_ROWS
            self._note(_LAST, Reason.of(ReasonCode.VERY_MANY_EVENTS, rows=rows.count, limit=limit))
            return self._merge_by_spark(events, None)
        if self.apply.weight is None and not self.is_first:
            refreshed = self._merge_many(events, rows)
            if refreshed is not None:
                return refreshed
        cached, count = computed_on_executors(events)
        try:
            return self._merge_by_spark(cached, count)
        finally:
            unpersist(cached)

    def merge_files(self, files: Sequence[ChangeFile]) -> Refreshed | Reason:
        """Merge changes that are all in files, which become the table's; or why Spark must merge them.

        Args:
            files: in their order.

        Raises:
            RefreshError: `LOG_SHORTENED`, a file is gone.
            ConflictError: somebody else moved the table.
        """
        task = self.task
        staged = self._change_files(files)
        net = net_files(task.table, task.fork, files, staged, self.apply.keys)
        if isinstance(net, Reason):
            return net
        old_rows = self._stored_rows(net.keys.num_rows).positions_of(net.keys)
        # A file that is added a second time would double its rows.
        if any(str(file.location()) in old_rows.by_file for file in staged.files):
            raise _files_gone_error(task, Reason.of(ReasonCode.FILES_TAKEN, version=task.fork.version))
        self._note(_STORED, old_rows.left_to_spark)
        staged = replace(staged, rows=net.rows)
        deletes = {**old_rows.by_file, **net.without} if net.rows else old_rows.by_file
        committed = commit_change(task.table, task.fork, staged, deletes, self._metadata)
        if committed is None:
            return no_data_refresh(task, ReasonCode.NO_EVENTS_OF_KEYS)
        old_count = sum(map(len, old_rows.by_file.values()))
        return self._refreshed(committed, staged, old_count, None)

    def _files(self, names: Sequence[str], copied_since_ms: int | None) -> Staged:
        """Files that the log table names.

        Args:
            copied_since_ms: of copied files, of which a table is built once, when their copy began.

        Raises:
            RefreshError: `LOG_SHORTENED`.
        """
        table, fork = self.task.table, self.task.fork
        taken = None if copied_since_ms is None else table.files_taken(fork, copied_since_ms)
        staged = taken or table.files_by_name(fork, names, copied_since_ms)
        if isinstance(staged, Reason):
            raise _files_gone_error(self.task, staged, is_built=not self.is_first)
        return staged

    def _merge_with_files(self, events: DataFrame) -> Refreshed:
        """Build a table of files that are written already, and events.

        Raises:
            RefreshError: `LOG_SHORTENED`, a file is gone, or may be the table's own already;
                `CAPTURED_VALUE_INVALID`.
        """
        staged = self._files([file.name for file in self.files], self.copied_since_ms)
        files = CopiedFileRows.read(self.session, self.files, staged, events, self.apply)
        copied = copied_rows(events, self.apply, files)
        if isinstance(copied, CopiedRows):
            return self._take_copied(copied, staged)
        if copied is not None:
            self._left_to_spark.append(NodeRefresh(node=_COPIED, mode=self.mode, reason=copied))
        refreshed = self._merge_by_spark(events.unionByName(files.rows), None)
        # All of their rows were written once more.
        self.task.table.discard(staged)
        return refreshed

    def _merge_many(self, events: DataFrame, rows: RelationRows) -> Refreshed | None:
        """Merge events of which the driver orders the keys; None: Spark must."""
        if rows.fit_in_arrow:
            obstacle = self.task.table.arrow_obstacle(self.task.fork)
            if obstacle is None:
                return self._merge_arrow(events)
            self._note(_WRITTEN, obstacle)
        last = last_events_of_many(events, self.apply)
        if not isinstance(last, Reason):
            return self._merge_last(last, events, is_local=False)
        self._note(_LAST, last)
        return None

    def _merge_arrow(self, events: DataFrame) -> Refreshed | None:
        """Merge events that Spark hands over as Arrow; None: Spark must merge them."""
        flow = self.task.flows[0].flow.name
        columns = aligned_columns(events, self.schema, flow, self.apply.dropped)
        last = last_rows(events, columns, self.apply)
        if isinstance(last, Reason):
            self._note(_LAST, last)
            return None
        rows = last.rows.rename_columns(self.schema.names)
        staged = self.task.table.stage_arrow(self.task.fork, rows)
        if isinstance(staged, Reason):
            self._note(_WRITTEN, staged)
            return None
        stored = self._stored_rows(last.keys.num_rows, is_local=False)
        return self._commit_staged(staged, stored.positions_of_keys(events, last.keys), None)

    def _note(self, step: str, reason: Reason | None) -> None:
        """Keep why Spark did a step. All rows of a table that is built anew are Spark's work."""
        if reason is not None and not self.is_first:
            self._left_to_spark.append(NodeRefresh(node=step, mode=self.mode, reason=reason))

    def _merge_local(self, events: DataFrame, count: int) -> Refreshed:
        """Merge events that are on the driver."""
        if not count or self.apply.weight is not None:
            return self._merge_by_spark(events, count, is_local=True)
        last = last_events(events, self.apply)
        if not isinstance(last, Reason):
            return self._merge_last(last, events, is_local=True)
        self._note(_LAST, last)
        return self._merge_by_spark(events, count, is_local=True)

    def _merge_by_spark(self, events: DataFrame, count: int | None, *, is_local: bool = False) -> Refreshed:
        """Merge any events.

        Args:
            count: of the events, which are held then; None: they are too many.
            is_local: they are on the driver.
        """
        if count == 0 and not self.is_first:
            return self._without_events()
        if self.apply.weight is not None:
            return self._add_and_remove_rows(events)
        summary = summarize(events, self.apply, count if is_local else None)
        if not self.is_first and not summary.count:
            return self._without_events()
        invalid = invalid_values(events, self.apply, summary)
        if invalid is not None and not self.apply.invalid_is_null:
            raise _invalid_value_error(self.task, invalid)
        stored = self._stored_rows(count, is_local=is_local)
        # In one partition nothing is shuffled.
        rows = latest_rows(
            events.coalesce(1) if is_local else events,
            self.apply,
            summary,
            None if self.is_first else stored.of_keys,
        )
        if count is not None and is_local:
            rows, _ = materialize(rows, max_rows=count)
        staged = self._stage(rows, is_local=is_local)
        is_truncated = not self.is_first and summary.last_truncate is not None
        if is_truncated:
            return self._replace_rows(staged, invalid)
        old_rows = RowPositions({}) if self.is_first else stored.positions_of_keys(events)
        return self._commit_staged(staged, old_rows, invalid)

    def _take_copied(self, copied: CopiedRows, files: Staged | None = None) -> Refreshed:
        """Build a table of which most rows are as they were copied.

        Args:
            files: of copied rows, which are written already.

        Raises:
            RefreshError: `CAPTURED_VALUE_INVALID`.
        """
        try:
            if files is not None and copied.is_empty:
                return self._commit_staged(files, RowPositions({}), None)
            staged = self._stage(copied.rows)
            invalid = copied.invalid()
            if invalid is not None and not self.apply.invalid_is_null:
                self.task.table.discard(staged)
                raise _invalid_value_error(self.task, invalid)
            if files is None:
                return self._commit_staged(staged, RowPositions({}), invalid)
            replaced = sum(map(len, copied.replaced.values()))
            committed = self.task.table.apply(
                self.task.fork, [files, staged], copied.replaced, self._metadata
            )
            built = replace(files, rows=files.rows - replaced + staged.rows)
            return self._refreshed(committed, built, 0, invalid)
        finally:
            copied.release()

    def _merge_last(self, last: LastEvents, events: DataFrame, *, is_local: bool) -> Refreshed:
        """Merge events of which the last of each key is known."""
        staged = self._stage(last.rows, is_local=is_local)
        if self.is_first:
            return self._commit_staged(staged, RowPositions({}), None)
        stored = self._stored_rows(last.keys.num_rows, is_local=is_local)
        return self._commit_staged(staged, stored.positions_of_keys(events, last.keys), None)

    def _add_and_remove_rows(self, events: DataFrame) -> Refreshed:
        """Merge events of a table whose rows may be equal.

        Raises:
            RefreshError: `CAPTURED_VALUE_INVALID`; `CAPTURED_ROW_MISSING`.
        """
        self._note(_LAST, Reason.of(ReasonCode.TABLE_WITHOUT_KEY))
        change = weighted_change(events, self.apply)
        if change.invalid is not None and not self.apply.invalid_is_null:
            raise _invalid_value_error(self.task, change.invalid)
        old_rows: Mapping[str, Sequence[int]] = {}
        if not self.is_first and not change.replaces_all:
            removed = change.removed(self._stored_rows().all())
            if removed.missing:
                raise _row_missing_error(self.task, removed.missing)
            old_rows = removed.positions
        staged = self._stage(change.added())
        if change.replaces_all and not self.is_first:
            return self._replace_rows(staged, change.invalid)
        return self._commit_staged(staged, RowPositions(old_rows), change.invalid)

    def _stored_rows(self, events: int | None = None, *, is_local: bool = False) -> StoredRows:
        task = self.task
        return StoredRows(task.table, task.fork, self.apply, self.base, self.session, events, is_local)

    def _stage(self, rows: DataFrame, *, is_local: bool = False) -> Staged:
        aligned = align(rows, self.schema, self.task.flows[0].flow.name, self.apply.dropped)
        staged = self.task.table.stage(self.task.fork, aligned, local=is_local)
        self._note(_WRITTEN, staged.left_to_spark)
        return staged

    # -- commits ----------------------------------------------------------------------------------

    @property
    def _metadata(self) -> CommitMetadata:
        return self.task.metadata_with(self.mode)

    def _without_events(self) -> Refreshed:
        self.task.table.commit_metadata_only(self.task.fork, self._metadata)
        return no_data_refresh(self.task, ReasonCode.NO_EVENTS_OF_KEYS)

    def _replace_rows(self, staged: Staged, invalid: InvalidValues | None) -> Refreshed:
        """All rows out, staged rows in."""
        table, fork = self.task.table, self.task.fork
        rows = [staged] if staged.rows else []
        old_rows = table.row_count(fork.version) or 0
        committed = table.replace_rows(fork, rows, self._metadata)
        return self._refreshed(committed, staged, old_rows, invalid)

    def _commit_staged(
        self, staged: Staged, old_rows: RowPositions, invalid: InvalidValues | None
    ) -> Refreshed:
        self._note(_STORED, old_rows.left_to_spark)
        table, fork = self.task.table, self.task.fork
        committed = commit_change(table, fork, staged, old_rows.by_file, self._metadata)
        if committed is None:
            return no_data_refresh(self.task, ReasonCode.NO_EVENTS_OF_KEYS)
        count = sum(len(positions) for positions in old_rows.by_file.values())
        return self._refreshed(committed, staged, count, invalid)

    def _refreshed(
        self,
        committed: Committed,
        staged: Staged,
        rows_deleted: int,
        invalid: InvalidValues | None,
    ) -> Refreshed:
        code = ReasonCode.EVENTS_MERGED
        if self.is_first:
            is_full = self.task.is_full_requested
            code = ReasonCode.FULL_REFRESH_REQUESTED if is_full else ReasonCode.FIRST_BUILD
        reason = Reason.of(code)
        nulled = [] if invalid is None else [_nulled_reason(invalid)]
        refresh = Refresh(
            mode=self.mode,
            reason=joined_reasons([reason, *nulled, *(node.reason for node in self._left_to_spark)]),
            rows_inserted=staged.rows,
            rows_deleted=rows_deleted,
            nodes=(NodeRefresh(node="apply", mode=self.mode, reason=reason), *self._left_to_spark),
        )
        return Refreshed(committed.version, refresh)


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


def _files_gone_error(task: RefreshTask, reason: Reason, *, is_built: bool = True) -> RefreshError:
    """For a table that would take files of a light capture, which are no longer there."""
    run = "`taut run` without --full-refresh"
    if is_built:
        run = f"`taut run --full-refresh {task.name.without_catalog}`, then `taut run`,"
    return RefreshError(
        "LOG_SHORTENED",
        f"{task.name} cannot take the files that its log names: {reason}",
        sqlstate="55000",
        location=task.location,
        hint=f"{run} copies the rows again; if it does not, copy the database again: --full-refresh of the "
        "log table and of all captured tables",
    )


def _row_missing_error(task: RefreshTask, count: int) -> RefreshError:
    return RefreshError(
        "CAPTURED_ROW_MISSING",
        f"The log removes {counted(count, 'row')} that {task.name} does not have",
        sqlstate="58000",
        location=task.location,
        hint="somebody else changed the table, or its log: copy the database again, with --full-refresh of "
        "the log table and of the captured tables",
    )


def _invalid_value_error(task: RefreshTask, invalid: InvalidValues) -> RefreshError:
    return RefreshError(
        "CAPTURED_VALUE_INVALID",
        f"{counted(invalid.rows, 'row')} of {task.name} with a value that its column's type does not have, "
        f"such as {invalid.example}",
        sqlstate="22000",
        location=task.location,
        hint="correct it in the database, then run again; or take the column as text, with as_text of the "
        'capture and --full-refresh of the table; or take such values as NULL: invalid_values="null"',
    )


def _nulled_reason(invalid: InvalidValues) -> Reason:
    return Reason.of(ReasonCode.INVALID_VALUES_NULL, rows=invalid.rows, example=invalid.example)

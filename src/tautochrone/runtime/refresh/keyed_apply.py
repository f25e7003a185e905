"""Bringing a streaming table that takes updates and deletes to a checkpoint.

    1. the rows that its input got since the version that the table has merged   2. the flow's query over them
    3. the last event of each key   4. one commit: old rows of these keys out, new rows in

The commit names the version of the input, so what is merged follows from (table, old version, new version)
alone: a refresh that was interrupted is simply done again. A table over a change log whose first copy is not
complete has no version yet, which is no error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.window import Window

from tautochrone.errors import DefinitionError, RefreshError
from tautochrone.ingest.column_alignment import align
from tautochrone.model.keyed_apply import KeyedApply, keyed_apply_of
from tautochrone.model.lake import ChangeKind, CommitMetadata, Committed, Fork, LakeTable, Staged
from tautochrone.model.names import TableName, Version, quoted
from tautochrone.model.refresh import NodeRefresh, Refresh, RefreshMode
from tautochrone.model.source_position import LogPosition
from tautochrone.project.graph import ResolvedFlow
from tautochrone.runtime.refresh.choose_mode import is_committed
from tautochrone.runtime.refresh.task import RefreshContext, Refreshed, RefreshTask
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan
from tautochrone.spark.analysis.session_context import dataframe_of_plan
from tautochrone.spark.sources.stream_as_batch import stream_as_batch

__all__ = ["WaitingForCopy", "keyed_apply", "refresh_by_key"]

_RANK = "__taut_rank"


@dataclass(frozen=True, slots=True)
class WaitingForCopy:
    """The table has no version for the checkpoint, because the first copy of its relation is not complete."""

    reason: str


def keyed_apply(context: RefreshContext, task: RefreshTask) -> KeyedApply | None:
    """How a streaming table's events are merged; None: the table only takes appended rows.

    Raises:
        DefinitionError: `KEYED_APPLY_INCOMPLETE`.
    """
    return keyed_apply_of(context.definitions.datasets[task.name].properties, task.location)


def refresh_by_key(
    context: RefreshContext, task: RefreshTask, apply: KeyedApply, session: SparkSession
) -> Refreshed | WaitingForCopy:
    """Merge what the table's input got since the last time.

    Args:
        apply: how.
        session: shows the lake at the checkpoint.

    Raises:
        DefinitionError: the flow is not one query, row by row over one lake table.
        RefreshError: `STREAM_INPUT_CHANGED`, rows of the input were changed or removed.
        ConflictError: somebody else moved the table.
    """
    flow, source_name = _one_flow(task)
    newest, fork, lake_table = task.inputs[source_name], task.fork, task.table
    last_commit = fork.commit_metadata
    if last_commit is not None and is_committed(task):
        # Before a crash, and not yet recorded.
        mode = RefreshMode(last_commit.mode or RefreshMode.NO_DATA)
        return replace(_refreshed(fork.version, mode, "committed by the run before"), is_recovered=True)
    source = context.load_table(source_name)
    missing = _incomplete(source, newest, apply)
    if missing is not None:
        return WaitingForCopy(missing)
    merged = None if last_commit is None else last_commit.inputs.get(str(source_name))
    added = _added(task.name, source, session, None if merged is None else Version(merged), newest)
    metadata = task.metadata_with(RefreshMode.INCREMENTAL if merged is not None else RefreshMode.FULL)
    if added is None:
        lake_table.commit_metadata_only(fork, metadata)
        return _refreshed(fork.version, RefreshMode.NO_DATA, "its input got no rows")
    plan = analyzed_plan(flow.flow.evaluate(session))
    events = stream_as_batch(session, plan, added)
    schema = context.schemas[task.name]
    merge = _Merge(lake_table, fork, apply, session, schema.fieldNames())
    rows = align(merge.new_rows(events), schema, flow.flow.name)
    staged = lake_table.stage(fork, rows)
    old_rows = merge.old_rows(events) if merged is not None else {}
    done = _commit(lake_table, fork, staged, old_rows, metadata)
    removed = sum(len(positions) for positions in old_rows.values())
    if done is None:
        return _refreshed(fork.version, RefreshMode.NO_DATA, "its input got no event of a key")
    if merged is None:
        reason = "a full refresh was asked for" if task.is_full_requested else "first build"
        return _refreshed(done.version, RefreshMode.FULL, reason, staged.rows)
    why = "the events of its input were merged by key"
    return _refreshed(done.version, RefreshMode.INCREMENTAL, why, staged.rows, removed)


@dataclass(frozen=True, slots=True)
class _Merge:
    table: LakeTable
    fork: Fork
    apply: KeyedApply
    session: SparkSession
    columns: Sequence[str]

    def new_rows(self, events: DataFrame) -> DataFrame:
        """The last event of each key, unless it deletes."""
        keys = [sf.col(quoted(name)) for name in self.apply.keys]
        order = [sf.col(quoted(name)).desc_nulls_last() for name in self.apply.sequence]
        ranked = events.withColumn(_RANK, sf.row_number().over(Window.partitionBy(*keys).orderBy(*order)))
        last = ranked.where(f"{_RANK} = 1").drop(_RANK)
        # A condition that is NULL does not delete.
        deletes = sf.coalesce(sf.expr(self.apply.delete or "false"), sf.lit(False))
        return last.where(~deletes)

    def old_rows(self, events: DataFrame) -> dict[str, list[int]]:
        """Where the rows are whose keys have events: data file → positions."""
        stored = self.table.read(self.session, self.fork.version)
        names = [quoted(name) for name in self.apply.keys]
        stored = stored.select(*names, "_file", "_pos")
        stored = dataframe_of_plan(self.session, analyzed_plan(stored)).alias("stored")
        touched = events.select(*names).distinct().alias("touched")
        equal: Column = sf.lit(True)
        for name in names:
            equal = equal & sf.col(f"stored.{name}").eqNullSafe(sf.col(f"touched.{name}"))
        found: dict[str, list[int]] = {}
        for row in stored.join(touched, equal, "left_semi").select("_file", "_pos").collect():
            found.setdefault(row["_file"], []).append(row["_pos"])
        return {file: sorted(positions) for file, positions in found.items()}


def _commit(
    table: LakeTable,
    fork: Fork,
    staged: Staged,
    old_rows: Mapping[str, Sequence[int]],
    metadata: CommitMetadata,
) -> Committed | None:
    rows = staged.rows
    if old_rows:
        return table.apply(fork, [staged] if rows else [], old_rows, metadata)
    if rows:
        return table.commit_staged(fork, [staged], metadata)
    table.commit_metadata_only(fork, metadata)
    return None


def _one_flow(task: RefreshTask) -> tuple[ResolvedFlow, TableName]:
    flows = task.flows
    reads = flows[0].inputs
    if len(flows) == 1 and len(reads.stream) == 1 and not reads.batch and not flows[0].stateful:
        return flows[0], next(iter(reads.stream))
    raise DefinitionError(
        "KEYED_APPLY_NOT_SUPPORTED",
        f"{task.name} takes updates and deletes: it needs one flow, row by row over one streaming table",
        location=task.location,
        hint="select and filter the events in the flow; join and aggregate in a materialized view over it",
    )


def _incomplete(source: LakeTable, version: Version, apply: KeyedApply) -> str | None:
    """Why the log at a version is no state that the database had, for the relation; None: it is one."""
    if apply.relation is None:
        return None
    metadata = source.commit_metadata_at(version)
    positions = [] if metadata is None else list(metadata.positions.values())
    logs = [position for position in positions if isinstance(position, LogPosition)]
    if logs and all(apply.relation not in position.bulk.waiting for position in logs):
        return None
    return f"the first copy of {apply.relation} is not complete, or its log has not passed it yet"


def _added(
    table: TableName, source: LakeTable, session: SparkSession, old: Version | None, new: Version
) -> DataFrame | None:
    """The rows that came to the input; None: none did."""
    if old is None:
        return source.read(session, new)  # type: ignore[no-any-return]
    change = source.change_between(old, new)
    if change.kind is ChangeKind.NONE:
        return None
    if change.kind is not ChangeKind.APPEND and not change.appended:
        raise RefreshError(
            "STREAM_INPUT_CHANGED",
            f"The streaming table {table} reads {source.name} as a stream, and {change.reason}",
            hint=f"a stream only takes appended rows; rebuild it with --full-refresh {table.table}",
            sqlstate="55000",
        )
    return source.changed_rows(session, old, new).added


def _refreshed(
    version: Version, mode: RefreshMode, reason: str, inserted: int = 0, deleted: int = 0
) -> Refreshed:
    node = NodeRefresh(node="apply", mode=mode, reason=reason)
    return Refreshed(
        version,
        Refresh(mode=mode, reason=reason, rows_inserted=inserted, rows_deleted=deleted, nodes=(node,)),
    )

"""Bringing one materialized view to a checkpoint. Deterministic in (query, old cut, new cut), so a
refresh that was interrupted is simply done again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tautochrone.errors import RefreshError, TautochroneError
from tautochrone.ingest.column_alignment import align
from tautochrone.model.lake import CommitMetadata, Committed, Fork, LakeTable
from tautochrone.model.names import CheckpointNumber, TableName, Version, quoted
from tautochrone.model.refresh import FELL_BACK, NodeRefresh, Refresh, RefreshMode, RefreshPolicy
from tautochrone.project.graph import ResolvedFlow
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.refresh.changes import Changes
from tautochrone.runtime.refresh.choose_mode import Choice
from tautochrone.runtime.refresh.incremental import IncrementalRefresh
from tautochrone.runtime.refresh.state_layout import Planned
from tautochrone.spark.analysis.analyzed_plan import substitute_leaves
from tautochrone.spark.analysis.current_time import with_fixed_time
from tautochrone.spark.execute.multiset_diff import multiset_diff, surviving_rows, ungroupable_column
from tautochrone.spark.jvm.errors import problem_of
from tautochrone.spark.session.jvm_liveness import require_live_jvm
from tautochrone.traces import is_defect, trace_of

__all__ = ["Refreshed", "refresh_view"]


@dataclass(frozen=True, slots=True)
class Refreshed:
    """The version that a view has for the checkpoint, and what it took."""

    version: Version
    refresh: Refresh


def refresh_view(
    job: Job,
    table: TableName,
    number: CheckpointNumber,
    choice: Choice,
    fork: Fork,
    inputs: Mapping[TableName, Version],
    session: SparkSession,
    planned: Planned | None = None,
    changes: Changes | None = None,
) -> Refreshed:
    """Compute and commit. `session` shows the lake at the target; `fork` is the view's table.

    `planned` is the view's plan when its changes can be followed; `changes` is where a followed change is
    told to the views downstream.

    Raises:
        RefreshError: the query failed; the view's old version stays.
        ConflictError: somebody else moved the table.
    """
    flow = job.flows(table)[0]
    commit_metadata = job.commit_metadata(
        checkpoint=number,
        mode=str(choice.mode),
        definition=job.fingerprint(table),
        inputs={str(name): version for name, version in inputs.items()},
    )
    follower = None
    if planned is not None and changes is not None:
        follower = IncrementalRefresh(
            job, job.tables[table], fork, planned, commit_metadata, inputs, changes, session
        )
    try:
        if choice.mode is RefreshMode.INCREMENTAL:
            assert follower is not None
            try:
                return Refreshed(*follower.refresh(choice))
            except (PySparkException, Py4JJavaError) as error:
                if choice.policy is RefreshPolicy.INCREMENTAL_STRICT:
                    raise
                # Rows that never met at one cut may meet on the way, and a function refuse them.
                reason = f"{FELL_BACK}: {problem_of(error).message}"
                choice = replace(choice, mode=RefreshMode.DIFF, reason=reason)
                commit_metadata = replace(commit_metadata, mode=str(choice.mode))
        rows = None
        if follower is not None and choice.mode is not RefreshMode.APPEND:
            rows, companions = follower.build()
            commit_metadata = replace(commit_metadata, companions=companions)
        worker = _Worker(job, job.tables[table], flow, fork, commit_metadata, session, rows)
        if choice.mode is RefreshMode.APPEND:
            return worker.append(choice)
        if choice.mode is RefreshMode.FULL:
            return worker.full(choice)
        return worker.diff(choice)
    except (PySparkException, Py4JJavaError) as error:
        # PySpark leaves Java exceptions that it does not know as they are, with their whole stack.
        problem = problem_of(error)
        raise RefreshError(
            problem.error_class,
            f"{table} could not be refreshed: {problem.message}",
            sqlstate=problem.sqlstate,
            location=str(job.definitions.datasets[table].location),
            hint="its old version stays readable; the next checkpoint tries again",
        ) from error


@dataclass(frozen=True, slots=True)
class _Worker:
    job: Job
    table: LakeTable
    flow: ResolvedFlow
    fork: Fork
    commit_metadata: CommitMetadata
    session: SparkSession
    rows: DataFrame | None = None
    """All rows of the view when something computed them already."""

    def append(self, choice: Choice) -> Refreshed:
        def delta(name: TableName, _occurrence: int) -> Mapping[str, str] | None:
            if name not in choice.ranges:
                return None
            source = self.job.lake_table(name)
            return source.read_options(*choice.ranges[name])

        rows = substitute_leaves(self.session, self._query(), delta, self.table.name.catalog)
        staged = self.table.stage(self.fork, rows)
        if staged.rows == 0:
            return self._unchanged(choice)
        done = self.table.commit_staged(self.fork, [staged], self.commit_metadata)
        return self._done(choice, done, inserted=staged.rows)

    def full(self, choice: Choice) -> Refreshed:
        before = self._stored_rows()
        definition = self.job.definition(self.table.name)
        if (
            self.fork.commit_metadata is not None
            and self.fork.commit_metadata.mode is not None
            and self._stored_columns() != definition.schema.simpleString()
        ):
            done = self.table.redefine(self.fork, definition, self._query(), self.commit_metadata)
            return self._done(choice, done, inserted=done.rows_inserted, deleted=before)
        staged = self.table.stage(self.fork, self._query())
        if before:
            done = self.table.replace_rows(self.fork, [staged], self.commit_metadata)
        else:
            done = self.table.commit_staged(self.fork, [staged], self.commit_metadata)
        return self._done(choice, done, inserted=staged.rows, deleted=before)

    def diff(self, choice: Choice) -> Refreshed:
        new = self._query()
        column = ungroupable_column(new.schema)
        if column is not None:
            reason = f"{choice.reason}; column {column} cannot be compared"
            return self.full(Choice(RefreshMode.FULL, reason))
        old = self.table.read(self.job.base, self.fork.version).select(
            *map(quoted, new.columns), "_file", "_pos"
        )
        found = multiset_diff(old, new)
        if found.inserted == 0 and found.deleted == 0:
            return self._unchanged(choice)
        if found.deleted == 0:
            staged = self.table.stage(self.fork, found.inserts)
            done = self.table.commit_staged(self.fork, [staged], self.commit_metadata)
        else:
            rows = surviving_rows(old, found).unionByName(found.inserts)
            staged = self.table.stage(self.fork, rows)
            done = self.table.replace_files(self.fork, found.files, [staged], self.commit_metadata)
        return self._done(choice, done, inserted=found.inserted, deleted=found.deleted)

    def _query(self) -> DataFrame:
        """The view's definition at the target, with the columns of its table."""
        if self.rows is not None:
            return self.rows
        self.job.definitions.prepare(self.session, self.flow.views)
        versions = {
            TableName.parse(name): Version(version) for name, version in self.commit_metadata.inputs.items()
        }
        asked = with_fixed_time(self.flow.flow.evaluate(self.session), versions)
        return align(asked, self.job.graph.schemas[self.table.name], self.flow.flow.name)

    def _stored_rows(self) -> int:
        if self.fork.commit_metadata is None or self.fork.commit_metadata.mode is None:
            return 0
        known = self.table.row_count(self.fork.version)
        return int(self.table.read(self.job.base, self.fork.version).count()) if known is None else known

    def _stored_columns(self) -> str:
        return str(self.job.lake.schema(self.table.name).simpleString())

    def _unchanged(self, choice: Choice) -> Refreshed:
        # The inputs moved, the rows did not: said in the table too, so that a lost store can be rebuilt.
        self.table.commit_metadata_only(self.fork, self.commit_metadata)
        return self._result(choice, self.fork.version, 0, 0)

    def _done(self, choice: Choice, done: Committed, inserted: int = 0, deleted: int = 0) -> Refreshed:
        return self._result(choice, done.version, inserted, deleted)

    def _result(self, choice: Choice, version: Version, inserted: int, deleted: int) -> Refreshed:
        node = NodeRefresh(node="query", mode=choice.mode, reason=choice.reason)
        return Refreshed(
            version,
            Refresh(
                mode=choice.mode,
                reason=choice.reason,
                rows_inserted=inserted,
                rows_deleted=deleted,
                nodes=(node,),
                estimate_ms=choice.estimate_ms,
                delta_rows=choice.delta_rows,
            ),
        )


def as_text(error: Exception, where: str) -> str:
    """An error of `where` as history keeps it: never with a stack, which a defect leaves in a file.

    Raises:
        SparkDiedError: Spark is gone; then the error says nothing of its own.
    """
    require_live_jvm()
    text = str(error)
    if not isinstance(error, TautochroneError):
        problem = problem_of(error)
        text = f"[{problem.error_class}] {problem.message}"
    return f"{text} ({trace_of(error, where)})" if is_defect(error) else text

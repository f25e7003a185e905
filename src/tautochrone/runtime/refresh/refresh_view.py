"""Computing one materialized view at a checkpoint and committing it.

The result depends only on the query, the old cut and the new cut, so a refresh that was interrupted is simply
repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tautochrone.errors import RefreshError, TautochroneError
from tautochrone.ingest.column_alignment import align
from tautochrone.ingest.expectations import counts, require_met, stage_expected
from tautochrone.model.lake import FILE_COLUMN, POSITION_COLUMN, CommitMetadata, LakeTable
from tautochrone.model.names import TableName, Version, quoted
from tautochrone.model.reason import Reason, ReasonCode, several
from tautochrone.model.refresh import NodeRefresh, Refresh, RefreshMode, RefreshPolicy
from tautochrone.runtime.refresh.changes import Changes
from tautochrone.runtime.refresh.incremental import IncrementalRefresh
from tautochrone.runtime.refresh.state_layout import Planned
from tautochrone.runtime.refresh.task import Choice, RefreshContext, Refreshed, RefreshTask
from tautochrone.spark.analysis.analyzed_plan import substitute_leaves
from tautochrone.spark.analysis.current_time import with_fixed_time
from tautochrone.spark.execute.expectations import violations, without_flags
from tautochrone.spark.execute.multiset_diff import multiset_diff, surviving_rows, ungroupable_column
from tautochrone.spark.jvm.errors import problem_of
from tautochrone.spark.session.jvm_liveness import require_live_jvm
from tautochrone.traces import is_defect, trace_of

__all__ = ["failure_of", "refresh_view"]


def refresh_view(
    context: RefreshContext,
    task: RefreshTask,
    choice: Choice,
    session: SparkSession,
    plan: Planned | None,
    changes: Changes,
) -> Refreshed:
    """Compute and commit.

    Args:
        choice: how.
        session: shows the lake at the checkpoint.
        plan: the view's, if it keeps what it needs to follow changes.
        changes: of tables; the view's own is added for the views that read it.

    Raises:
        RefreshError: the query failed; the view's old version stays.
        ConflictError: somebody else moved the table.
    """
    metadata = task.metadata_with(choice.mode)
    incremental = None
    if plan is not None:
        incremental = IncrementalRefresh(context, task, plan, metadata, changes, session)
    try:
        if choice.mode is RefreshMode.INCREMENTAL:
            assert incremental is not None
            try:
                return incremental.refresh(choice)
            except (PySparkException, Py4JJavaError) as error:
                if task.policy is RefreshPolicy.INCREMENTAL_STRICT:
                    raise
                # Following a change joins rows of two checkpoints, which a function of the query may refuse.
                problem = problem_of(error)
                reason = Reason.of(
                    ReasonCode.INCREMENTAL_FAILED, error_class=problem.error_class, message=problem.message
                )
                choice = replace(choice, mode=RefreshMode.DIFF, reason=reason)
                metadata = task.metadata_with(choice.mode)
        rows = None
        if incremental is not None and choice.mode is not RefreshMode.APPEND:
            rows, companions = incremental.build()
            metadata = replace(metadata, companions=companions)
        full = _FullComputation(context, task, metadata, session, rows)
        if choice.mode is RefreshMode.APPEND:
            return full.append(choice)
        if choice.mode is RefreshMode.FULL:
            return full.recompute(choice)
        return full.compare(choice)
    except (PySparkException, Py4JJavaError) as error:
        # PySpark passes on Java exceptions that it does not know, with their whole stack.
        problem = problem_of(error)
        raise RefreshError(
            problem.error_class,
            f"{task.name} could not be refreshed: {problem.message}",
            sqlstate=problem.sqlstate,
            location=task.location,
            hint="its old version stays readable; the next checkpoint tries again",
        ) from error


@dataclass(frozen=True, slots=True)
class _FullComputation:
    """A refresh that evaluates the view's query, over all rows or over added ones."""

    context: RefreshContext
    task: RefreshTask
    metadata: CommitMetadata
    session: SparkSession
    rows: DataFrame | None = None
    """All rows of the view, with the flags of its expectations, when something computed them already."""

    @property
    def _table(self) -> LakeTable:
        return self.task.table

    def append(self, choice: Choice) -> Refreshed:
        """Add what the query gives for rows that were added to its inputs."""

        def delta(name: TableName, _occurrence: int) -> Mapping[str, str] | None:
            if name not in choice.ranges:
                return None
            return self.context.load_table(name).read_options(*choice.ranges[name])

        rows = substitute_leaves(self.session, self._flagged(), delta, self.task.name.catalog)
        staged, added = stage_expected(self._table, self.task.fork, rows, self.task.expectations)
        before = self.task.violations_before
        violations = {name: before.get(name, 0) + count for name, count in added.items()}
        if staged.rows == 0:
            return self._unchanged(choice, violations)
        metadata = self._metadata(violations)
        committed = self._table.commit_staged(self.task.fork, [staged], metadata)
        return self._result(choice, committed.version, violations, inserted=staged.rows)

    def recompute(self, choice: Choice) -> Refreshed:
        """Replace all rows of the view."""
        task, rows_before = self.task, self._stored_rows()
        definition = self.context.table_definition(task.name)
        if (
            task.fork.commit_metadata is not None
            and task.fork.commit_metadata.mode is not None
            and self._stored_columns() != definition.schema.simpleString()
        ):
            rows, violations = self._counted()
            metadata = self._metadata(violations)
            committed = self._table.redefine(task.fork, definition, rows, metadata)
            inserted = committed.rows_inserted
            return self._result(choice, committed.version, violations, inserted=inserted, deleted=rows_before)
        staged, violations = stage_expected(self._table, task.fork, self._flagged(), task.expectations)
        metadata = self._metadata(violations)
        if rows_before:
            committed = self._table.replace_rows(task.fork, [staged], metadata)
        else:
            committed = self._table.commit_staged(task.fork, [staged], metadata)
        return self._result(choice, committed.version, violations, inserted=staged.rows, deleted=rows_before)

    def compare(self, choice: Choice) -> Refreshed:
        """Rewrite the files whose rows differ from those that the query gives now."""
        fork = self.task.fork
        new, violations = self._counted()
        column = ungroupable_column(new.schema)
        if column is not None:
            why_full = Reason.of(ReasonCode.COLUMN_NOT_COMPARABLE, column=column)
            return self.recompute(Choice(RefreshMode.FULL, several([choice.reason, why_full])))
        old = self._table.read(self.context.base, fork.version).select(
            *map(quoted, new.columns), FILE_COLUMN, POSITION_COLUMN
        )
        diff = multiset_diff(old, new)
        if diff.inserted == 0 and diff.deleted == 0:
            return self._unchanged(choice, violations)
        metadata = self._metadata(violations)
        if diff.deleted == 0:
            staged = self._table.stage(fork, diff.inserts)
            committed = self._table.commit_staged(fork, [staged], metadata)
        else:
            rows = surviving_rows(old, diff).unionByName(diff.inserts)
            staged = self._table.stage(fork, rows)
            committed = self._table.replace_files(fork, diff.files, [staged], metadata)
        return self._result(
            choice, committed.version, violations, inserted=diff.inserted, deleted=diff.deleted
        )

    def _counted(self) -> tuple[DataFrame, Mapping[str, int]]:
        """The view's rows as they are written, and the violations of its expectations, counted apart."""
        flagged, expectations = self._flagged(), self.task.expectations
        counted = violations(flagged, expectations)
        require_met(self.task.name, flagged, expectations, counted)
        return without_flags(flagged, expectations), counted

    def _metadata(self, counted: Mapping[str, int]) -> CommitMetadata:
        return replace(self.metadata, violations=counted)

    def _flagged(self) -> DataFrame:
        """The rows of the view's query at the checkpoint, with the columns of its table and a flag for each
        expectation."""
        if self.rows is not None:
            return self.rows
        flow = self.task.flow
        self.context.views.prepare(self.session, flow.views, self.task.inputs)
        rows = flow.evaluate(self.session, self.task.inputs, with_dropped=True)
        aligned = align(rows, self.context.schemas[self.task.name], flow.flow.name)
        return with_fixed_time(flow.flow.with_flags(aligned), self.task.inputs)

    def _stored_rows(self) -> int:
        fork = self.task.fork
        if fork.commit_metadata is None or fork.commit_metadata.mode is None:
            return 0
        rows = self._table.row_count(fork.version)
        return int(self._table.read(self.context.base, fork.version).count()) if rows is None else rows

    def _stored_columns(self) -> str:
        return str(self.context.lake.schema(self.task.name).simpleString())

    def _unchanged(self, choice: Choice, violations: Mapping[str, int]) -> Refreshed:
        # A lost store is rebuilt from commit metadata, so it must name the new inputs of unchanged rows.
        self._table.commit_metadata_only(self.task.fork, self._metadata(violations))
        return self._result(choice, self.task.fork.version, violations)

    def _result(
        self,
        choice: Choice,
        version: Version,
        violations: Mapping[str, int],
        inserted: int = 0,
        deleted: int = 0,
    ) -> Refreshed:
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
                expectations=counts(self.task.expectations, self.task.violations_before, violations),
            ),
        )


def failure_of(error: Exception, where: str) -> Reason:
    """An error in `where` as the history keeps it.

    Its text has no stack: that of a defect is written to a file, which the text names.

    Raises:
        SparkDiedError: Spark is gone, which is the cause of the error.
    """
    require_live_jvm()
    if isinstance(error, TautochroneError):
        error_class, text = error.error_class, str(error)
    else:
        problem = problem_of(error)
        error_class, text = problem.error_class, f"[{problem.error_class}] {problem.message}"
    if is_defect(error):
        text = f"{text} ({trace_of(error, where)})"
    return Reason.of(ReasonCode.REFRESH_FAILED, error_class=error_class, text=text)

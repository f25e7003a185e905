"""Refreshing materialized views: a mode is chosen from metadata, then each view is computed and committed.

The result depends only on the query, the old cut and the new cut, so a refresh that was interrupted is simply
repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tautochrone.errors import RefreshError
from tautochrone.ingest.staging import align, expectation_counts, require_expectations_met, stage_expected
from tautochrone.model.catalog import LakeCatalog
from tautochrone.model.checkpoint import NodeRefresh, Refresh, RefreshMode, RefreshPolicy
from tautochrone.model.definitions import Expectation
from tautochrone.model.lake import (
    FILE_COLUMN,
    POSITION_COLUMN,
    CommitMetadata,
    Fork,
    LakeTable,
    TableDefinition,
)
from tautochrone.model.names import TableName, Version, describe_files, quoted
from tautochrone.model.reason import Reason, ReasonCode, joined_reasons
from tautochrone.project.graph import ResolvedFlow
from tautochrone.runtime.refresh.sessions import Sessions
from tautochrone.runtime.refresh.states import States
from tautochrone.runtime.refresh.task import (
    Choice,
    RefreshContext,
    Refreshed,
    RefreshTask,
    recovered_refresh,
    refreshed_without_rows,
    version_with_same_rows,
)
from tautochrone.runtime.views.built_rows import BuiltRows, with_applied
from tautochrone.runtime.views.changes import Changes
from tautochrone.runtime.views.choose_mode import (
    choose,
    input_rows,
    keeps_state,
    sizes_of,
    unversioned_source,
)
from tautochrone.runtime.views.incremental import IncrementalRefresh
from tautochrone.runtime.views.plans import Planned, Plans
from tautochrone.spark.analysis.analyzed_plan import substitute_leaves
from tautochrone.spark.analysis.current_time import with_fixed_time
from tautochrone.spark.execute.engine import TableDelta
from tautochrone.spark.execute.expectations import violations, without_flags
from tautochrone.spark.execute.materialize import fits_on_driver
from tautochrone.spark.execute.multiset_diff import (
    DriverDiff,
    has_floats,
    multiset_diff,
    surviving_rows,
    ungroupable_column,
)
from tautochrone.spark.jvm.errors import problem_of

__all__ = ["ViewRefresher", "checked_rows", "flagged_rows", "is_redefined", "refresh_view"]


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
            followed = _follow_change(incremental, choice, task.policy)
            if isinstance(followed, Refreshed):
                return followed
            choice = replace(choice, mode=RefreshMode.DIFF, reason=followed)
            metadata = task.metadata_with(choice.mode)
        rows = None
        if incremental is not None and choice.mode is not RefreshMode.APPEND:
            rows, companions = incremental.build()
            metadata = replace(metadata, companions=companions)
        full = _FullComputation(context, task, metadata, session, changes, rows)
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


def flagged_rows(
    context: RefreshContext,
    session: SparkSession,
    flow: ResolvedFlow,
    view: TableName,
    inputs: Mapping[TableName, Version],
) -> DataFrame:
    """The rows of a view's query over these versions, with the columns of its table and a flag for each
    expectation.

    Args:
        session: shows the versions.
    """
    context.views.prepare(session, flow.views, inputs)
    rows = flow.evaluate(session, inputs, with_dropped=True)
    aligned = align(rows, context.schemas[view], flow.flow.name)
    return with_fixed_time(flow.flow.with_flags(aligned), inputs)


def checked_rows(
    view: TableName, flagged: DataFrame, expectations: Sequence[Expectation]
) -> tuple[DataFrame, Mapping[str, int]]:
    """The rows of a view as they are written, and the violations of its expectations, counted apart.

    Raises:
        RefreshError: an expectation that nothing may violate is violated.
    """
    counted = violations(flagged, expectations)
    require_expectations_met(view, flagged, expectations, counted)
    return without_flags(flagged, expectations), counted


def _follow_change(
    incremental: IncrementalRefresh, choice: Choice, policy: RefreshPolicy
) -> Refreshed | Reason:
    """The refresh that follows the change; or why contents must be compared."""
    try:
        return incremental.refresh(choice)
    except (PySparkException, Py4JJavaError) as error:
        if policy is RefreshPolicy.INCREMENTAL_STRICT:
            raise
        # Following a change joins rows of two checkpoints, which a function of the query may refuse.
        problem = problem_of(error)
        return Reason.of(
            ReasonCode.INCREMENTAL_FAILED, error_class=problem.error_class, message=problem.message
        )
    except RefreshError as error:
        if error.error_class != "REFRESH_INCONSISTENT" or policy is RefreshPolicy.INCREMENTAL_STRICT:
            raise
        # Nothing was written yet. Rows that are computed twice may differ, such as texts of floats.
        rows, stored = error.parameters["rows"], error.parameters["stored"]
        return Reason.of(ReasonCode.REMOVED_ROWS_NOT_STORED, rows=rows, stored=stored)


def _comparable(choice: Choice, schema: StructType) -> Choice:
    """The choice to compare rows, or to replace all of them where they cannot be compared."""
    column = ungroupable_column(schema)
    if column is None:
        return choice
    reason = Reason.of(ReasonCode.COLUMN_NOT_COMPARABLE, column=column)
    return Choice(RefreshMode.FULL, joined_reasons([choice.reason, reason]), policy=choice.policy)


def is_redefined(task: RefreshTask, lake: LakeCatalog, definition: TableDefinition) -> bool:
    """Whether a view that is computed anew gets other columns: then its history ends as well.

    A table without rows may have the columns of a definition that never could be built.
    """
    if task.fork.commit_metadata is None:
        return False
    return bool(lake.schema(task.name).simpleString() != definition.schema.simpleString())


@dataclass(frozen=True, slots=True)
class _FullComputation:
    """A refresh that evaluates the view's query, over all rows or over added ones."""

    context: RefreshContext
    task: RefreshTask
    metadata: CommitMetadata
    session: SparkSession
    changes: Changes
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

        rows = substitute_leaves(self.session, self._flagged_rows(), delta, self.task.name.catalog)
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
        if is_redefined(task, self.context.lake, definition):
            rows, violations = self._rows_and_violations()
            metadata = self._metadata(violations)
            committed = self._table.redefine(task.fork, definition, rows, metadata)
            inserted = committed.rows_inserted
            return self._result(choice, committed.version, violations, inserted=inserted, deleted=rows_before)
        staged, violations = stage_expected(self._table, task.fork, self._flagged_rows(), task.expectations)
        metadata = self._metadata(violations)
        if rows_before:
            committed = self._table.replace_rows(task.fork, [staged], metadata)
        else:
            committed = self._table.commit_staged(task.fork, [staged], metadata)
        return self._result(choice, committed.version, violations, inserted=staged.rows, deleted=rows_before)

    def compare(self, choice: Choice) -> Refreshed:
        """Replace the rows that differ from those that the query gives now: few of them one by one, many by
        writing their files anew."""
        fork = self.task.fork
        new, violations = self._rows_and_violations()
        if _comparable(choice, new.schema).mode is RefreshMode.FULL:
            # The change could not be followed after all.
            return self.recompute(_comparable(choice, new.schema))
        old = self._table.read(self.context.base, fork.version).select(
            *map(quoted, new.columns), FILE_COLUMN, POSITION_COLUMN
        )
        diff = multiset_diff(old, new, few=self._reads_few_rows())
        if diff.inserted == 0 and diff.deleted == 0:
            return self._unchanged(choice, violations)
        metadata = self._metadata(violations)
        if isinstance(diff, DriverDiff):
            added = [self._table.stage(fork, diff.inserts, local=True)] if diff.inserted else []
            committed = self._table.apply(fork, added, diff.deletes, metadata)
        elif diff.deleted == 0:
            staged = self._table.stage(fork, diff.inserts)
            committed = self._table.commit_staged(fork, [staged], metadata)
        else:
            rows = surviving_rows(old, diff).unionByName(diff.inserts)
            staged = self._table.stage(fork, rows)
            committed = self._table.replace_files(fork, diff.files, [staged], metadata)
        if not has_floats(new.schema):
            # Views above need not read what the files that were written anew carry over.
            inserts, removed = diff.inserts if diff.inserted else None, diff.removed if diff.deleted else None
            delta = TableDelta(inserts, removed, diff.inserted + diff.deleted, materialized=True)
            known = version_with_same_rows(self.task)
            self.changes.add_view_delta(self.task.name, known, committed.version, delta)
        return self._result(
            choice, committed.version, violations, inserted=diff.inserted, deleted=diff.deleted
        )

    def _reads_few_rows(self) -> bool:
        rows = input_rows(self.task, self.context.load_input)
        return rows is not None and fits_on_driver(rows)

    def _rows_and_violations(self) -> tuple[DataFrame, Mapping[str, int]]:
        """The view's rows as they are written, and the violations of its expectations, counted apart."""
        return checked_rows(self.task.name, self._flagged_rows(), self.task.expectations)

    def _metadata(self, counted: Mapping[str, int]) -> CommitMetadata:
        return replace(self.metadata, violations=counted)

    def _flagged_rows(self) -> DataFrame:
        """The rows of the view's query at the checkpoint, with the columns of its table and a flag for each
        expectation."""
        if self.rows is not None:
            return self.rows
        return flagged_rows(self.context, self.session, self.task.flow, self.task.name, self.task.inputs)

    def _stored_rows(self) -> int:
        fork = self.task.fork
        if fork.commit_metadata is None or fork.commit_metadata.mode is None:
            return 0
        rows = self._table.row_count(fork.version)
        return int(self._table.read(self.context.base, fork.version).count()) if rows is None else rows

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
                expectations=expectation_counts(
                    self.task.expectations, self.task.violations_before, violations
                ),
            ),
        )


class ViewRefresher:
    """Refreshes the views of one job; serves all checkpoints of a run, from several threads.

    Args:
        plans: of the job's views.
        changes: what is known of changes of tables, for all views that read them.
        unfollowed: tables of files that do not agree with the files, with the reason.
        readers: how many views of the job read a table.
        built: rows that plans built.
    """

    def __init__(
        self,
        context: RefreshContext,
        sessions: Sessions,
        plans: Plans,
        changes: Changes,
        unfollowed: Mapping[TableName, Reason],
        readers: Callable[[TableName], int],
        built: BuiltRows,
    ) -> None:
        self._built = built
        self._unfollowed = unfollowed
        self._readers = readers
        self._context = context
        self._sessions = sessions
        self._plans = plans
        self._changes = changes
        self._compared: set[TableName] = set()
        self._unfollowed_at_refresh: dict[TableName, frozenset[tuple[TableName, ReasonCode]]] = {}

    def unversioned_reason(self, view: TableName, flow: ResolvedFlow) -> Reason | None:
        """Why a view must be compared although no lake table moved: once per run."""
        is_compared = view in self._compared or not flow.inputs.unversioned
        return None if is_compared else unversioned_source(flow)

    def reads_other_files(self, view: TableName, flow: ResolvedFlow) -> bool:
        """Whether other tables of files agree with the files than when the view was last refreshed.

        Then it reads files themselves that it read from a table, or the other way round.
        """
        return self._unfollowed_tables(flow) != self._unfollowed_at_refresh.get(view, frozenset())

    def _unfollowed_tables(self, flow: ResolvedFlow) -> frozenset[tuple[TableName, ReasonCode]]:
        """The tables of the flow's files that differ from the files, each with why.

        The text of a reason may differ each time that a file cannot be read.
        """
        unfollowed = self._unfollowed
        return frozenset((name, unfollowed[name].code) for name in flow.file_tables if name in unfollowed)

    def _forced_reason(self, task: RefreshTask) -> Reason | None:
        """Why a view must be compared whatever changed, or None."""
        if task.flow.follows_files(task.inputs):
            return self.unversioned_reason(task.name, task.flow)
        missing = next(name for name in sorted(task.flow.file_tables) if name not in task.inputs)
        return self._unfollowed.get(missing) or Reason.of(
            ReasonCode.FILES_NOT_TAKEN_IN,
            input=describe_files(missing),
            error_class="",
            text="the cut names no version of them",
        )

    def refresh(self, task: RefreshTask) -> Refreshed:
        """Bring the view's table to the task's checkpoint.

        Raises:
            RefreshError: the query failed, or the policy forbids the only way; the old version stays.
            ConflictError: somebody else moved the table.
        """
        # If it fails, it would fail again with the same files.
        self._unfollowed_at_refresh[task.name] = self._unfollowed_tables(task.flow)
        committed = recovered_refresh(task)
        if committed is not None:
            before = task.violations_before
            refresh = replace(
                committed.refresh, expectations=expectation_counts(task.expectations, before, before)
            )
            return replace(committed, refresh=refresh)
        task = self._built.apply(task) or task
        choice = self.choose(task)
        if choice.mode is RefreshMode.NO_DATA:
            if task.applied is not None:
                return Refreshed(task.fork.version, task.applied)
            return refreshed_without_rows(version_with_same_rows(task), choice.mode, choice.reason.code)
        plan = None
        stateless = choice.stateless or choice.mode is RefreshMode.APPEND
        follows = task.flow.follows_files(task.inputs)
        if follows and not stateless and keeps_state(task, self._context.load_input):
            plan = self._plans.of(task.name, self._session(task))
        result = refresh_view(self._context, task, choice, self._session(task), plan, self._changes)
        self._compared.add(task.name)
        if task.applied is None:
            return result
        return replace(result, refresh=with_applied(task.applied, result.refresh))

    def choose(self, task: RefreshTask) -> Choice:
        """How the view gets to the task's checkpoint. Nothing is computed: a run does what this answers, and
        a plan of a run shows it.

        Raises:
            RefreshError: `REFRESH_NOT_INCREMENTAL`, the policy forbids the only mode that is left.
        """
        if task.is_full_requested:
            reason = Reason.of(ReasonCode.FULL_REFRESH_REQUESTED)
            return Choice(RefreshMode.FULL, reason, policy=task.policy)
        choice = self._choose(task)
        if choice.mode is not RefreshMode.DIFF:
            return choice
        return _comparable(choice, self._context.schemas[task.name])

    def _choose(self, task: RefreshTask) -> Choice:
        load_input = self._context.load_input

        def obstacles() -> Sequence[Reason]:
            # A plan is only made where it will be used.
            if not keeps_state(task, load_input):
                return ()
            return self._plans.obstacles(task.name, self._session(task))

        choice = choose(
            self._context,
            task,
            forced=self._forced_reason(task),
            obstacles=obstacles,
            steps=lambda: self._plans.steps(task.name, self._session(task)),
            readers=self._followers(task.name),
            sizes=sizes_of(load_input, self._changes.size),
            bounds=sizes_of(load_input, self._changes.bound),
        )
        weighed = choice.policy is RefreshPolicy.AUTO and choice.estimate_ms is not None
        if weighed and choice.mode is not RefreshMode.DIFF and not keeps_state(task, load_input):
            # So few rows: measured durations are noise and must not decide. It is computed anew and compared.
            reason = Reason.of(ReasonCode.FEW_INPUT_ROWS)
            return replace(choice, mode=RefreshMode.DIFF, reason=reason)
        uncounted = [e.name for e in task.expectations if e.name not in task.violations_before]
        if uncounted and choice.mode in (RefreshMode.APPEND, RefreshMode.INCREMENTAL):
            # Only all rows tell how many violate them; a change alone does not.
            reason = Reason.of(ReasonCode.VIOLATIONS_NOT_COUNTED, expectations=", ".join(uncounted))
            return replace(choice, mode=RefreshMode.DIFF, reason=reason)
        if choice.mode is not RefreshMode.INCREMENTAL:
            return choice
        missing = self._missing_state(task.name, task.fork)
        # Without its state a view can only be built anew.
        return choice if missing is None else replace(choice, mode=RefreshMode.FULL, reason=missing)

    def _followers(self, view: TableName) -> int:
        """How many views could follow a change of a view that is computed anew. Sums of floats differ each
        time in their last bits, so such rows would be no fewer."""
        return 0 if has_floats(self._context.schemas[view]) else self._readers(view)

    def _missing_state(self, view: TableName, fork: Fork) -> Reason | None:
        """Why the states of a view that has a plan do not belong to its rows, or None."""
        plan = self._plans.known(view)
        if plan is None:
            return None
        return States(self._context.base, self._context.lake, view, plan.layouts, fork).missing_reason()

    def _session(self, task: RefreshTask) -> SparkSession:
        return self._sessions.session(str(task.name), task.flow.flow.conf)

"""Refreshing materialized views: choose a mode from metadata, then compute and commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyspark.sql import SparkSession

from tautochrone.ingest.expectations import counts
from tautochrone.model.inputs import describe_files
from tautochrone.model.lake import Fork
from tautochrone.model.names import TableName
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.refresh import RefreshMode, RefreshPolicy
from tautochrone.project.graph import ResolvedFlow
from tautochrone.runtime.refresh.changes import Changes
from tautochrone.runtime.refresh.choose_mode import (
    choose,
    is_committed,
    keeps_state,
    sizes_of,
    unversioned_source,
)
from tautochrone.runtime.refresh.plans import Plans
from tautochrone.runtime.refresh.refresh_view import refresh_view
from tautochrone.runtime.refresh.session_pool import SessionPool
from tautochrone.runtime.refresh.states import States
from tautochrone.runtime.refresh.task import (
    Choice,
    RefreshContext,
    Refreshed,
    RefreshTask,
    refreshed_without_rows,
    version_with_same_rows,
)

__all__ = ["ViewRefresher"]


class ViewRefresher:
    """Refreshes the views of one job; serves all checkpoints of a run, from several threads.

    Args:
        plans: of the job's views.
        changes: what is known of changes of tables, for all views that read them.
        unfollowed: tables of files that do not agree with the files, with the reason.
    """

    def __init__(
        self,
        context: RefreshContext,
        sessions: SessionPool,
        plans: Plans,
        changes: Changes,
        unfollowed: Mapping[TableName, Reason],
    ) -> None:
        self._unfollowed = unfollowed
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
        metadata = task.fork.commit_metadata
        if metadata is not None and is_committed(task):
            mode = RefreshMode(metadata.mode or RefreshMode.NO_DATA)
            result = refreshed_without_rows(task.fork.version, mode, ReasonCode.COMMITTED_BEFORE_CRASH)
            refresh = replace(
                result.refresh,
                expectations=counts(task.expectations, metadata.violations, metadata.violations),
            )
            return replace(result, refresh=refresh, is_recovered=True)
        if task.is_full_requested:
            choice = Choice(
                RefreshMode.FULL, Reason.of(ReasonCode.FULL_REFRESH_REQUESTED), policy=task.policy
            )
        else:
            choice = self._choose(task)
        if choice.mode is RefreshMode.NO_DATA:
            return refreshed_without_rows(version_with_same_rows(task), choice.mode, choice.reason.code)
        plan = None
        stateless = choice.stateless or choice.mode is RefreshMode.APPEND
        follows = task.flow.follows_files(task.inputs)
        if follows and not stateless and keeps_state(task, self._context.load_input):
            plan = self._plans.of(task.name, self._session(task))
        result = refresh_view(self._context, task, choice, self._session(task), plan, self._changes)
        self._compared.add(task.name)
        return result

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
            sizes=sizes_of(load_input, self._changes.size),
            bounds=sizes_of(load_input, self._changes.bound),
        )
        weighed = choice.policy is RefreshPolicy.AUTO and choice.estimate_ms is not None
        if weighed and choice.mode is not RefreshMode.DIFF and not keeps_state(task, load_input):
            # The duration of a refresh of so few rows is noise and must not decide.
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

    def _missing_state(self, view: TableName, fork: Fork) -> Reason | None:
        """Why the states of a view that has a plan do not belong to its rows, or None."""
        plan = self._plans.known(view)
        if plan is None:
            return None
        return States(self._context.base, self._context.lake, view, plan.layouts, fork).missing()

    def _session(self, task: RefreshTask) -> SparkSession:
        return self._sessions.session(str(task.name), task.flow.flow.conf)

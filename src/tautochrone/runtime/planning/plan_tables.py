"""What the next run does with each dataset of a job, in the order in which it would.

    refused by the takeover?  → new, widened, cleared  → derived: as its refresher decides

A refresh is decided over versions as they are, and over `FORETOLD` ones of inputs that the run will change
before. That sources have no news is assumed: what news changes a plan does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from tautochrone.errors import DefinitionError, TautochroneError
from tautochrone.model.auto_cdc import keyed_apply_of
from tautochrone.model.checkpoint import RefreshMode, computed_all
from tautochrone.model.definitions import DatasetDetails
from tautochrone.model.lake import NO_VERSION, ChangeKind, Fork, LakeTable, ReadableTable
from tautochrone.model.names import NOW, CheckpointNumber, TableName, Version, is_clock
from tautochrone.model.project_plan import (
    ColumnChange,
    ColumnChangeKind,
    DatasetPlan,
    DefinitionChange,
    FlowPlan,
    FlowStart,
    Refusal,
    Treatment,
)
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.project.identity import changed_parts
from tautochrone.redaction import without_literals
from tautochrone.runtime.job.job import ClockTable, Job
from tautochrone.runtime.loop.refresh_checkpoint import last_complete_versions, refresh_context, refresh_task
from tautochrone.runtime.loop.takeover import require_own_table, set_aside_reason
from tautochrone.runtime.merges.auto_cdc import require_never_merged
from tautochrone.runtime.merges.event_merges import auto_cdc_of, input_of
from tautochrone.runtime.merges.keyed_apply import require_appended
from tautochrone.runtime.planning.differences import column_changes, text_difference
from tautochrone.runtime.planning.foretold import (
    FORETOLD,
    Foretold,
    ForetoldTable,
    change_of_refresh,
    columns_added,
    history_replaced,
    rows_appended,
)
from tautochrone.runtime.refresh.history import RefreshHistory
from tautochrone.runtime.refresh.sessions import CheckpointViews
from tautochrone.runtime.refresh.states import STATE_NAMESPACE
from tautochrone.runtime.refresh.task import Choice, RefreshTask
from tautochrone.runtime.streams.stream_refresher import require_acceptable_changes
from tautochrone.runtime.views.built_rows import BuiltRows
from tautochrone.runtime.views.changes import Changes
from tautochrone.runtime.views.choose_mode import why_other_definition
from tautochrone.runtime.views.plans import Plans
from tautochrone.runtime.views.refresh_view import ViewRefresher, is_redefined

__all__ = ["TablePlanner"]

_TREATMENTS = {
    RefreshMode.FULL: Treatment.BUILD,
    RefreshMode.DIFF: Treatment.COMPARE,
    RefreshMode.INCREMENTAL: Treatment.FOLLOW,
    RefreshMode.APPEND: Treatment.FOLLOW,
    RefreshMode.NO_DATA: Treatment.LEAVE,
}
_OF_DEFINITIONS = frozenset(
    {
        ReasonCode.FIRST_BUILD,
        ReasonCode.DEFINITION_CHANGED,
        ReasonCode.INPUT_TYPES_CHANGED,
        ReasonCode.PROJECT_MOVED,
        ReasonCode.FULL_REFRESH_REQUESTED,
    }
)
"""Reasons of refreshes that need no change of an input."""
_HISTORY_ROWS = 50


class _AnalysisSession:
    """Queries are planned over the empty tables of the analysis."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def session(self, name: str, conf: Mapping[str, str]) -> SparkSession:  # noqa: ARG002
        return self._session


class TablePlanner:
    """Plans the tables of one job. Used once.

    Args:
        job: it need not be taken over; its `tables` are those that exist.
        full: datasets that a full refresh will rebuild.
        exists: whether the lake has a table.

    Attributes:
        foretold: the tables that the next run changes, with how.
    """

    def __init__(self, job: Job, full: Collection[TableName], exists: Callable[[TableName], bool]) -> None:
        self._job = job
        self._exists = exists
        self._topology = job.topology
        self._full = frozenset(full)
        self.foretold: dict[TableName, Foretold] = {}
        self._failed: dict[TableName, DatasetPlan] = {}
        self._registered = {entry.name: entry for entry in job.store.datasets.registered(job.name)}
        self._details: Mapping[TableName, DatasetDetails] = job.store.datasets.details_of_job(job.name)
        done = job.store.checkpoints.last_done(job.name)
        self._last = last_complete_versions(job, {} if done is None else done.versions)
        self._versions = self._current_versions()
        views = CheckpointViews(job.definitions, job.graph)
        history = RefreshHistory(job.store.history.refreshes)
        self._context = replace(refresh_context(job, views, history), load_input=self._input)
        assert job.graph.analysis_session is not None
        plans = Plans(views, job.graph)
        changes = Changes(job.base, self._input, lambda table: self._readers(table) > 1, plans.columns)
        sessions = _AnalysisSession(job.graph.analysis_session)
        self._views = ViewRefresher(
            self._context, sessions, plans, changes, {}, self._readers, BuiltRows(self._context, tuple, {})
        )

    def plan(self) -> list[DatasetPlan]:
        """The job's datasets, each after those that it reads."""
        datasets = []
        for table in self._job.graph.order:
            planned = self._planned(table)
            if planned.refusal is not None and planned.refusal.is_certain:
                self._failed[table] = planned
            datasets.append(planned)
        return datasets

    def flows(self) -> list[FlowPlan]:
        """Flows into existing tables that begin, and positions on from which nothing reads."""
        flows = []
        for table in self._job.graph.order:
            if table in self._job.tables and table not in self._full and not self._topology.is_view(table):
                flows += self._flows_of(table)
        return flows

    # -- versions ---------------------------------------------------------------------------------

    def _current_versions(self) -> dict[TableName, Version]:
        """What the next cut and its refreshes would show, were there no news and no changes."""
        job, store = self._job, self._job.store
        versions = dict(store.reads.newest_versions())
        latest = store.checkpoints.latest_done(job.name)
        if latest is not None:
            versions |= store.checkpoints.versions_at(latest.number)
        reported = store.roots.reported(job.name)
        versions |= {name: reported[name] for name in self._topology.root_tables if name in reported}
        for name in filter(self._exists, job.external_tables()):
            versions[name] = job.lake.load(name).current_version()
        for name in self._topology.clocks:
            versions[name] = ClockTable(name, job.base).version_at(job.clock_us())
        return versions

    def _input(self, name: TableName) -> ReadableTable:
        foretold = self.foretold.get(name)
        if foretold is None or is_clock(name):
            return self._job.input_table(name)
        table = self._job.tables.get(name)
        current = NO_VERSION if table is None else self._versions.get(name) or table.current_version()
        return ForetoldTable(name, table, current, foretold)

    def _readers(self, table: TableName) -> int:
        return sum(
            self._topology.is_view(name)
            for name in self._topology.derived_tables
            if table in self._topology.inputs(name)
        )

    # -- one dataset ------------------------------------------------------------------------------

    def _planned(self, table: TableName) -> DatasetPlan:
        job, dataset = self._job, self._job.definitions.datasets[table]
        stored = job.tables.get(table)
        if stored is None:
            return self._created(table)
        fork = stored.fork()
        change, parts, difference = self._definition_change(table, fork)
        planned = DatasetPlan(
            dataset=table,
            kind=dataset.kind,
            change=change,
            treatment=Treatment.LEAVE,
            reason=Reason.of(ReasonCode.DEFINITION_UNCHANGED),
            parts=parts,
            columns=self._columns(table),
            difference=difference,
            rows=stored.row_count(fork.version),
            duration_ms=self._full_duration_ms(table),
            location=str(dataset.location),
        )
        try:
            require_own_table(job.spec.name, fork, str(dataset.location))
        except TautochroneError as error:
            return _refused(planned, Refusal.of(error, ends_run=True))
        if self._topology.is_view(table):
            return self._view(planned, fork)
        return self._streaming_table(planned, stored, fork)

    def _created(self, table: TableName) -> DatasetPlan:
        dataset, is_view = self._job.definitions.datasets[table], self._topology.is_view(table)
        is_root = table in self._topology.root_tables
        mode = RefreshMode.FULL if is_view else RefreshMode.APPEND
        planned = DatasetPlan(
            dataset=table,
            kind=dataset.kind,
            change=DefinitionChange.NEW if table not in self._registered else DefinitionChange.UNCHANGED,
            treatment=Treatment.BUILD if is_view else Treatment.CREATE,
            reason=Reason.of(ReasonCode.FIRST_BUILD if is_view else ReasonCode.TABLE_TO_CREATE),
            mode=None if is_root else mode,
            columns=column_changes(StructType(), self._job.graph.schemas[table], are_kept=False),
            location=str(dataset.location),
        )
        failed = None if is_root else self._failed_input(table)
        if failed is not None:
            treatment = Treatment.LEAVE if is_view else Treatment.CREATE
            return self._waiting(replace(planned, treatment=treatment, mode=None), failed)
        self.foretold[table] = Foretold(change=history_replaced(table, NO_VERSION))
        return planned

    def _definition_change(
        self, table: TableName, fork: Fork
    ) -> tuple[DefinitionChange, tuple[str, ...], tuple[str, ...] | None]:
        """Whether another definition made the rows, which of its parts differ, and in which lines of text."""
        entry = self._registered.get(table)
        if entry is None:
            return DefinitionChange.NEW, (), ()
        current, stored = self._topology.fingerprint(table), entry.definition
        if self._topology.is_view(table):
            last_commit = fork.commit_metadata
            stored = stored if last_commit is None else last_commit.definition or stored
        if stored == current:
            return DefinitionChange.UNCHANGED, (), ()
        if "+" not in stored + current:
            reason = why_other_definition(stored, current)
            if reason.code is not ReasonCode.DEFINITION_CHANGED:
                return DefinitionChange.UNCHANGED, (), ()
        parts = tuple(changed_parts(stored, current))
        return DefinitionChange.CHANGED, parts, self._difference(table, stored)

    def _columns(self, table: TableName) -> tuple[ColumnChange, ...]:
        before, after = self._job.lake.schema(table), self._job.graph.schemas[table]
        is_view = self._topology.is_view(table)
        if not is_view and self._has_columns_of_flows(table):
            # The schema of a streaming table has the columns that its table keeps.
            written = {name.lower() for flow in self._topology.flows(table) for name in flow.schema.names}
            after = StructType([field for field in after.fields if field.name.lower() in written])
        return column_changes(before, after, are_kept=not is_view)

    def _has_columns_of_flows(self, table: TableName) -> bool:
        dataset = self._job.definitions.datasets[table]
        is_made = dataset.bad_records_of is not None or dataset.events_of is not None
        return not is_made and dataset.schema_ddl is None and not self._merges(table)

    def _difference(self, table: TableName, stored: str) -> tuple[str, ...] | None:
        """In which lines the text differs from that of the definition with the fingerprint `stored`."""
        details = self._details.get(table)
        if details is None or details.definition != stored:
            # A run has recorded a newer text, and could not compute its rows.
            return None
        flows = self._topology.flows(table)
        return text_difference(
            details.text, "\n\n".join(without_literals(flow.flow.query.written) for flow in flows)
        )

    def _full_duration_ms(self, table: TableName) -> int | None:
        records = self._job.store.history.refreshes(table, _HISTORY_ROWS)
        past = (record.refresh for record in records if record.refresh and not record.error)
        return next((refresh.duration_ms for refresh in past if computed_all(refresh)), None)

    # -- streaming tables -------------------------------------------------------------------------

    def _streaming_table(self, planned: DatasetPlan, table: LakeTable, fork: Fork) -> DatasetPlan:
        name = planned.dataset
        if name in self._full:
            self.foretold[name] = Foretold(change=history_replaced(name, fork.version))
            reason = Reason.of(ReasonCode.ROWS_AND_POSITIONS_DROPPED)
            is_root = name in self._topology.root_tables
            mode = None if is_root else RefreshMode.FULL
            return replace(planned, treatment=Treatment.CLEAR, reason=reason, mode=mode)
        try:
            is_widened = table.require_widenable(fork, self._job.graph.schemas[name])
        except DefinitionError as error:
            return self._not_widened(planned, error)
        if planned.change is DefinitionChange.CHANGED:
            planned = replace(planned, reason=Reason.of(ReasonCode.FLOWS_GO_ON))
        if not is_widened:
            # The table keeps a type that is wider than the definition's.
            kept = tuple(part for part in planned.columns if part.kind is ColumnChangeKind.KEPT)
            planned = replace(planned, columns=kept)
        else:
            self.foretold[name] = Foretold(change=columns_added(name), rows=planned.rows)
            reason = Reason.of(ReasonCode.COLUMNS_IN_DEFINITION)
            planned = replace(planned, treatment=Treatment.ALTER, reason=reason)
        return planned if name in self._topology.root_tables else self._derived_stream(planned)

    def _not_widened(self, planned: DatasetPlan, error: DefinitionError) -> DatasetPlan:
        try:
            _, reason = set_aside_reason(self._topology, planned.dataset, error)
        except DefinitionError as refused:
            located = Refusal.of(refused, ends_run=True)
            return _refused(planned, replace(located, location=located.location or planned.location))
        return replace(planned, reason=reason)

    def _derived_stream(self, planned: DatasetPlan) -> DatasetPlan:
        name = planned.dataset
        failed = self._failed_input(name)
        if failed is not None:
            return self._waiting(planned, failed)
        causes = self._causes(name)
        try:
            self._require_stream(self._task(name, lambda cause: not self.foretold[cause].is_conditional))
        except TautochroneError as error:
            return _refused(replace(planned, causes=causes), Refusal.of(error))
        try:
            self._require_stream(self._task(name))
        except TautochroneError as error:
            return replace(planned, causes=causes, refusal=Refusal.of(error, is_certain=False))
        planned = replace(planned, causes=causes)
        if self._merges(name):
            return planned
        if planned.treatment is Treatment.ALTER:
            return replace(planned, mode=RefreshMode.APPEND)
        return self._with_new_flows(planned)

    def _with_new_flows(self, planned: DatasetPlan) -> DatasetPlan:
        """A flow without a position reads its inputs from the beginning, if they have rows."""
        name = planned.dataset
        task = self._task(name)
        metadata = task.fork.commit_metadata
        positions = {} if metadata is None else metadata.positions
        begin = [flow for flow in task.flows if flow.flow.name not in positions]
        inputs = {table for flow in begin for table in flow.inputs.stream} & task.inputs.keys()
        if not any(self._input(table).row_count(task.inputs[table]) for table in inputs):
            return planned
        self.foretold[name] = Foretold(change=rows_appended(name), rows=planned.rows)
        reason = Reason.of(ReasonCode.FLOW_BEGINS, table=str(name))
        return replace(planned, treatment=Treatment.FOLLOW, mode=RefreshMode.APPEND, reason=reason)

    def _merges(self, table: TableName) -> bool:
        """Whether a streaming table's events are merged by key."""
        dataset = self._job.definitions.datasets[table]
        keyed = keyed_apply_of(dataset.properties, str(dataset.location))
        return keyed is not None or auto_cdc_of(self._topology.derived_flows(table)) is not None

    def _require_stream(self, task: RefreshTask) -> None:
        """What the refresher of a streaming table requires before it reads a row.

        Raises:
            RefreshError: `STREAM_INPUT_CHANGED`, `AUTO_CDC_CHANGED`.
        """
        flows = self._topology.derived_flows(task.name)
        auto_cdc = auto_cdc_of(flows)
        merged = {} if task.fork.commit_metadata is None else task.fork.commit_metadata.inputs
        if auto_cdc is None:
            require_never_merged(task)
        if not self._merges(task.name):
            require_acceptable_changes(self._context, task)
            return
        if auto_cdc is not None and auto_cdc.snapshots_of is not None:
            return
        for flow in flows:
            source = input_of(flow)
            if str(source) in merged and source in task.inputs:
                old, new = Version(merged[str(source)]), task.inputs[source]
                require_appended(task.name, self._input(source), self._context, old, new)

    def _flows_of(self, table: TableName) -> list[FlowPlan]:
        flows = self._topology.flows(table)
        commit_metadata = self._job.tables[table].fork().commit_metadata
        positions = {} if commit_metadata is None else commit_metadata.positions
        entry, names = self._registered.get(table), {flow.flow.name for flow in flows}
        is_same = entry is not None and entry.definition == self._topology.fingerprint(table)
        if auto_cdc_of(flows) is not None or not positions:
            return []
        begins = [flow for flow in flows if flow.flow.name not in positions]
        unread = sorted(positions.keys() - names) if begins or not is_same else []
        if is_same and not unread:
            # A flow that has read nothing yet goes on to wait.
            return []
        params = {"table": str(table)}
        planned = [
            FlowPlan(
                flow=flow.flow.name,
                dataset=table,
                start=FlowStart.BEGINS,
                reason=Reason.of(ReasonCode.FLOW_BEGINS, **params),
                location=str(flow.flow.location),
            )
            for flow in begins
        ]
        return planned + [
            FlowPlan(
                flow=name,
                dataset=table,
                start=FlowStart.LOST,
                reason=Reason.of(ReasonCode.FLOW_POSITION_LOST, **params),
            )
            for name in unread
        ]

    # -- views ------------------------------------------------------------------------------------

    def _view(self, planned: DatasetPlan, fork: Fork) -> DatasetPlan:
        name, causes = planned.dataset, self._causes(planned.dataset)
        failed = self._failed_input(name)
        if failed is not None:
            return self._waiting(planned, failed)
        try:
            task = self._task(name, lambda cause: not self.foretold[cause].is_conditional)
            choice = self._views.choose(task)
            is_conditional = choice.mode is RefreshMode.NO_DATA and bool(causes)
            if causes:
                task = self._task(name)
                choice = self._views.choose(task)
        except TautochroneError as error:
            return _refused(replace(planned, causes=causes), Refusal.of(error))
        is_news = not causes and choice.reason.code not in _OF_DEFINITIONS
        # A later time alone makes no checkpoint.
        is_conditional = is_conditional or (is_news and NOW in self._topology.inputs(name))
        is_conditional = is_conditional and choice.mode is not RefreshMode.NO_DATA
        self._foretell(task, choice, is_conditional=is_conditional, is_empty=not planned.rows)
        companions = {} if fork.commit_metadata is None else fork.commit_metadata.companions
        states = tuple(sorted(map(TableName.parse, companions))) if choice.mode is RefreshMode.FULL else ()
        return replace(
            planned,
            mode=choice.mode,
            treatment=_TREATMENTS[choice.mode],
            reason=choice.reason,
            is_conditional=is_conditional,
            is_news=is_news,
            causes=causes,
            states=tuple(state for state in states if state.namespace == STATE_NAMESPACE),
        )

    def _foretell(self, task: RefreshTask, choice: Choice, *, is_conditional: bool, is_empty: bool) -> None:
        name = task.name
        redefined = is_redefined(task, self._job.lake, self._topology.table_definition(name))
        current = self._versions.get(name) or task.fork.version
        change = change_of_refresh(name, current, choice.mode, is_redefined=redefined, is_empty=is_empty)
        if change.kind is ChangeKind.NONE:
            return
        # A view that is computed anew is written whole; otherwise there may be no difference.
        may_be_same = choice.mode is not RefreshMode.FULL or is_empty
        self.foretold[name] = Foretold(
            change=change,
            is_conditional=is_conditional or may_be_same,
            rows=task.table.row_count(task.fork.version),
        )

    def _task(self, table: TableName, counts: Callable[[TableName], bool] = lambda _: True) -> RefreshTask:
        """The task of the next run's refresh.

        Args:
            counts: which of the inputs that change have changed.
        """
        changed = {name for name in self._causes(table) if counts(name)}
        versions = self._versions | dict.fromkeys(changed, FORETOLD)
        last = self._last.get(table, {})
        is_full = table in self._full
        return refresh_task(self._job, table, versions, last, CheckpointNumber(0), 0, is_full=is_full)

    def _causes(self, table: TableName) -> tuple[TableName, ...]:
        return tuple(sorted(self._topology.inputs(table) & self.foretold.keys()))

    def _failed_input(self, table: TableName) -> TableName | None:
        failed = self._topology.inputs(table) & self._failed.keys()
        return min(failed, default=None)

    def _waiting(self, planned: DatasetPlan, failed: TableName) -> DatasetPlan:
        """A dataset of which an input gets no version keeps its old one."""
        refusal = self._failed[failed].refusal
        assert refusal is not None
        cause = f"[{refusal.error_class}] {refusal.text}"
        reason = Reason.of(ReasonCode.WAITS_FOR_INPUT, input=str(failed), cause=cause)
        if not refusal.ends_run:
            self._failed[planned.dataset] = self._failed[failed]
        return replace(planned, reason=reason)


def _refused(planned: DatasetPlan, refusal: Refusal) -> DatasetPlan:
    reason = Reason.of(ReasonCode.RUN_WILL_REFUSE, error_class=refusal.error_class)
    return replace(planned, treatment=Treatment.REFUSE, reason=reason, refusal=refusal)

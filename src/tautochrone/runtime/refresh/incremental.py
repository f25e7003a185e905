"""A refresh that follows the change: delta of the inputs, through the query's plan, into the view.

    1. differentiate the plan     2. hold the nodes against the policy     3. find the rows to remove
    4. commit the states          5. commit the view, whose commit metadata names the states' versions

A crash before 5 leaves the view as it was; the next refresh rolls the states back to what it names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from tautochrone.algebra.delta import Change, Differentiator
from tautochrone.algebra.nodes import Aggregate, CutSide, Materialized, Scan, walk
from tautochrone.algebra.rules import RULES
from tautochrone.algebra.rules.aggregate import aggregate_state
from tautochrone.algebra.rules.top_k import top_k_state
from tautochrone.ingest.expectations import counts, require_met
from tautochrone.model.lake import FILE_COLUMN, POSITION_COLUMN, CommitMetadata, Staged
from tautochrone.model.names import TableName, Version, quoted
from tautochrone.model.refresh import NodeRefresh, Refresh, RefreshMode, worst_mode
from tautochrone.runtime.refresh.apply import find_rows
from tautochrone.runtime.refresh.changes import Changes
from tautochrone.runtime.refresh.choose_mode import node_needs_mode, require_incremental
from tautochrone.runtime.refresh.state_layout import Planned
from tautochrone.runtime.refresh.states import States
from tautochrone.runtime.refresh.task import Choice, RefreshContext, Refreshed, RefreshTask
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan
from tautochrone.spark.analysis.session_context import dataframe_of_plan, set_active_session
from tautochrone.spark.execute.engine import Inputs, SparkEngine, TableDelta
from tautochrone.spark.execute.expectations import flag_names, violations, without_flags
from tautochrone.spark.execute.key_lookups import LookupRequest
from tautochrone.spark.execute.materialize import fits_on_driver
from tautochrone.spark.execute.tuning import tuned
from tautochrone.spark.jvm.catalyst import Catalyst
from tautochrone.spark.translate.to_catalyst import RowFilter

__all__ = ["IncrementalRefresh"]


_SIGN = "__taut_sign"


@dataclass(slots=True)
class IncrementalRefresh:
    """Takes one view from the input versions that its newest commit names to those of its task.

    `metadata` is what the commit will say; `session` is the view's own.
    """

    context: RefreshContext
    task: RefreshTask
    planned: Planned
    metadata: CommitMetadata
    changes: Changes
    session: SparkSession
    _counts: dict[TableName, int | None] = field(default_factory=dict)

    def refresh(self, choice: Choice) -> Refreshed:
        """Follow the change.

        Raises:
            RefreshError: the policy forbids a node's mode; the view lacks a row that it should lose.
        """
        set_active_session(self.session)
        states = self._states()
        engine = self._engine(states.rows, states.row_count)
        with tuned(self.session, delta_rows=choice.delta_rows):
            engine.read_changes()
        counts = [self._row_count(table) for table in self.planned.view.tables]
        rows = None if None in counts else sum(count or 0 for count in counts)
        with tuned(self.session, delta_rows=engine.delta_rows, input_rows=rows):
            return self._refresh(choice, engine, states)

    def _refresh(self, choice: Choice, engine: SparkEngine, states: States) -> Refreshed:
        differentiator = Differentiator(engine, RULES, states=states.numbers())
        change = differentiator.materialized_change(self.planned.view.plan, consolidated=True)
        nodes = tuple(dict.fromkeys(differentiator.nodes))
        require_incremental(self.task, nodes)
        updates = {number: engine.frame(update) for number, update in differentiator.state_updates.items()}
        local_updates = {
            number for number, update in differentiator.state_updates.items() if engine.is_on_driver(update)
        }
        delta, violations = self._delta(engine, change)
        local = change.plan is not None and engine.is_on_driver(change.plan)
        removed_positions: Mapping[str, Sequence[int]] = {}
        if delta.removed is not None:
            stored = self._stored_rows(delta.removed.columns)
            whole = self.task.table.row_count(self.task.fork.version)
            few = local and fits_on_driver(delta.rows)
            removed_positions = find_rows(stored, self.task.name, delta.removed, stored_rows=whole, few=few)
        staged = (
            [self.task.table.stage(self.task.fork, delta.added, local=local)]
            if delta.added is not None
            else []
        )
        companions = states.write(updates, self.metadata, local_updates)
        metadata = replace(self.metadata, companions=companions, violations=violations)
        version = self._commit(staged, removed_positions, metadata)
        rows_in = sum(part.rows for part in staged)
        rows_out = sum(len(positions) for positions in removed_positions.values())
        if rows_in or rows_out:
            # A side without rows is left out: views above save much where nothing was removed.
            view_delta = TableDelta(
                delta.added if rows_in else None,
                delta.removed if rows_out else None,
                rows_in + rows_out,
                materialized=True,
            )
            self.changes.add_view_delta(self.task.name, self.task.fork.version, version, view_delta)
        refresh = self._record(choice, nodes, engine.delta_rows, rows_in, rows_out)
        counted = counts(self.task.expectations, self.task.violations_before, violations)
        return Refreshed(version, replace(refresh, expectations=counted))

    def build(self) -> tuple[DataFrame, Mapping[str, str]]:
        """All rows of the view's query at the target, flags of expectations included, and its states, for a
        build as a whole.

        Each state is computed from those below it and the rows from all of them. Sums of floats depend on
        their order: rows and states must come from the same sums, to the bit, or a refresh would later look
        for old rows that are not quite there.
        """
        set_active_session(self.session)
        states = self._states()
        built: dict[int, Version] = {}
        engine = self._engine(
            lambda number, only: states.rows_at(number, built[number], only),
            lambda _number: None,
            lambda _table, _columns: None,
        )
        for layout in self.planned.layouts.values():
            node = layout.node
            differentiator = Differentiator(engine, RULES, states=frozenset(built))
            rows = differentiator.rows_after(node.child)
            plan = (
                aggregate_state(node, rows, differentiator)
                if isinstance(node, Aggregate)
                else top_k_state(node, rows)
            )
            built[node.number] = states.build(node.number, engine.lowering.frame(plan), self.metadata)
        differentiator = Differentiator(engine, RULES, states=frozenset(built))
        frame = engine.lowering.frame(differentiator.rows_after(self.planned.view.plan)).toDF(*self._names())
        return frame, states.companions(built)

    def _states(self) -> States:
        context = self.context
        return States(context.base, context.lake, self.task.name, self.planned.layouts, self.task.fork)

    def _stored_rows(self, names: Sequence[str]) -> DataFrame:
        rows = self.task.table.read(self.context.base, self.task.fork.version)
        chosen = rows.select(*map(quoted, names), FILE_COLUMN, POSITION_COLUMN)
        # In the view's own session, whose settings suit the size of the change.
        return dataframe_of_plan(self.session, analyzed_plan(chosen))

    def _names(self) -> list[str]:
        columns = [field.name for field in self.context.schemas[self.task.name].fields]
        return [*columns, *flag_names(self.task.expectations)]

    def _engine(
        self,
        stored: Callable[[int, RowFilter | None], DataFrame],
        stored_rows: Callable[[int], int | None],
        delta: Callable[[TableName, Sequence[str]], TableDelta | None] | None = None,
    ) -> SparkEngine:
        old = {} if self.task.fork.commit_metadata is None else self.task.fork.commit_metadata.inputs
        frames: dict[tuple[TableName, CutSide], DataFrame] = {}

        def version(table: TableName, side: CutSide) -> Version:
            return Version(old[str(table)]) if side is CutSide.BEFORE else self.task.inputs[table]

        def read(table: TableName, side: CutSide) -> DataFrame:
            input_version = version(table, side)
            if (table, side) not in frames:
                frames[table, side] = self.context.load_input(table).read(self.context.base, input_version)
            return frames[table, side]

        def change(table: TableName, columns: Sequence[str]) -> TableDelta | None:
            old, new = version(table, CutSide.BEFORE), version(table, CutSide.AFTER)
            return self.changes.delta(table, old, new, columns)

        def looked_up(
            table: TableName, side: CutSide, request: LookupRequest, wider: Callable[[], LookupRequest | None]
        ) -> DataFrame | None:
            input_version = version(table, side)
            return self.changes.lookups.candidate_rows(
                table, input_version, request, wider, lambda: read(table, side)
            )

        inputs = Inputs(
            read=read,
            lookup=looked_up,
            delta=delta or change,
            rows=self._row_count,
            stored_rows=stored_rows,
            stored=stored,
        )
        # A node that occurs twice in the plan is scanned once.
        nodes = dict.fromkeys(walk(self.planned.view.plan))
        scans = tuple(node for node in nodes if isinstance(node, Scan))
        return SparkEngine(Catalyst(self.session), self.planned.view.attributes, inputs, scans)

    def _row_count(self, table: TableName) -> int | None:
        """How many rows an input has at the target; None when it does not tell. Asked of a table once."""
        if table not in self._counts:
            self._counts[table] = self.context.load_input(table).row_count(self.task.inputs[table])
        return self._counts[table]

    def _delta(self, engine: SparkEngine, change: Change) -> tuple[TableDelta, Mapping[str, int]]:
        """Rows to add and rows to remove, with the view's column names, and the violations of expectations.

        Raises:
            ExpectationError: an added row violates an expectation that fails.
        """
        expectations, before = self.task.expectations, self.task.violations_before
        if change.plan is None:
            return TableDelta(None, None, 0), before
        assert isinstance(change.plan, Materialized)
        frame = engine.frame(change.plan).toDF(*self._names(), _SIGN)
        moved = violations(frame, expectations, sf.col(_SIGN))
        after = {name: before.get(name, 0) + count for name, count in moved.items()}
        require_met(self.task.name, frame.where(f"{_SIGN} = 1").drop(_SIGN), expectations, after)
        rows = without_flags(frame, expectations)
        added, removed = (rows.where(f"{_SIGN} = {sign}").drop(_SIGN) for sign in (1, -1))
        return TableDelta(added, None if change.insert_only else removed, change.plan.rows), after

    def _commit(
        self,
        staged: Sequence[Staged],
        removed_positions: Mapping[str, Sequence[int]],
        metadata: CommitMetadata,
    ) -> Version:
        if removed_positions:
            return self.task.table.apply(self.task.fork, staged, removed_positions, metadata).version
        if any(part.rows for part in staged):
            return self.task.table.commit_staged(self.task.fork, staged, metadata).version
        # A lost store is rebuilt from commit metadata, so it must name the new inputs of unchanged rows.
        self.task.table.commit_metadata_only(self.task.fork, metadata)
        return self.task.fork.version

    def _record(
        self, choice: Choice, nodes: tuple[NodeRefresh, ...], delta_rows: int, rows_in: int, rows_out: int
    ) -> Refresh:
        mode = worst_mode(
            [RefreshMode.APPEND if rows_out == 0 else RefreshMode.INCREMENTAL, *(n.mode for n in nodes)]
        )
        # Following the change was expected to be cheapest, but a node may have been computed in full.
        deciding = mode in (RefreshMode.DIFF, RefreshMode.FULL)
        reason = next(
            (node_needs_mode(node) for node in nodes if deciding and node.mode is mode), choice.reason
        )
        return Refresh(
            mode=mode,
            reason=reason,
            rows_inserted=rows_in,
            rows_deleted=rows_out,
            nodes=nodes,
            estimate_ms=choice.estimate_ms,
            delta_rows=choice.delta_rows or delta_rows,
        )

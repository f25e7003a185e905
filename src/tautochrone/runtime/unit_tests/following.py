"""A view that follows a change of its inputs, over local rows: with the plan, states and rules of a refresh.

The states are built over the rows before the change. Then the rules turn the change into that of the view, in
the same engine. Nothing is stored in a table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from tautochrone.algebra.delta import Differentiator
from tautochrone.algebra.nodes import CutSide, Scan, walk
from tautochrone.algebra.rules import RULES
from tautochrone.model.checkpoint import NodeRefresh
from tautochrone.model.names import TableName
from tautochrone.project.graph import ResolvedFlow
from tautochrone.runtime.refresh.states import newest_of_runs, with_run_number
from tautochrone.runtime.unit_tests.evaluation import Evaluation
from tautochrone.runtime.views.plans import Planned, with_state_layouts
from tautochrone.spark.analysis.session_context import dataframe_of_plan, set_active_session
from tautochrone.spark.execute.engine import Inputs, SparkEngine, TableDelta
from tautochrone.spark.execute.expectations import flag_names, without_flags
from tautochrone.spark.execute.key_lookups import LookupRequest
from tautochrone.spark.execute.materialize import local_relation
from tautochrone.spark.execute.multiset_diff import consolidated
from tautochrone.spark.jvm.catalyst import Catalyst
from tautochrone.spark.translate.from_catalyst import plan_of
from tautochrone.spark.translate.lowering_context import RowFilter

__all__ = ["FollowedChange", "FollowedView"]

_SIGN = "__taut_sign"


@dataclass(frozen=True, slots=True)
class FollowedChange:
    """What the rules make of a change.

    Attributes:
        before: the view's rows that its plan gives before the change, local.
        added, removed: rows of its change, local.
        nodes: how each operator was refreshed.
    """

    before: DataFrame
    added: DataFrame
    removed: DataFrame
    nodes: tuple[NodeRefresh, ...]


@dataclass(slots=True)
class FollowedView:
    """One view over two sets of rows of its inputs.

    Args:
        before, after: the inputs' rows, with the same inputs given.
    """

    name: TableName
    flow: ResolvedFlow
    before: Evaluation
    after: Evaluation
    planned: Planned = field(init=False)
    _states: dict[int, DataFrame] = field(default_factory=dict)
    _frames: dict[tuple[TableName, CutSide], DataFrame] = field(default_factory=dict)

    def __post_init__(self) -> None:
        query = self.after.flagged_query(self.name, self.flow)
        self.planned = with_state_layouts(plan_of(query, self.name.catalog))

    @property
    def obstacles(self) -> Sequence[str]:
        """Why changes of the view cannot be followed; empty when they can."""
        return self.planned.view.obstacles

    def follow(self) -> FollowedChange:
        """Build the states before the change, and follow it."""
        session = self.before.session
        set_active_session(session)
        names = [f.name for f in self.after.graph.schemas[self.name].fields]
        names += flag_names(self.flow.flow.expectations)
        before = self._build().toDF(*names)
        engine = self._engine(CutSide.AFTER)
        engine.read_changes()
        differentiator = Differentiator(engine, RULES, states=frozenset(self._states))
        change = differentiator.materialized_change(self.planned.view.plan, consolidated=True)
        before = self._local(without_flags(before, self.flow.flow.expectations))
        nodes = tuple(dict.fromkeys(differentiator.nodes))
        if change.plan is None:
            nothing = before.limit(0)
            return FollowedChange(before, self._local(nothing), self._local(nothing), nodes)
        signed = self._local(engine.frame(change.plan).toDF(*names, _SIGN))
        rows = without_flags(signed, self.flow.flow.expectations)
        added, removed = (self._local(rows.where(f"{_SIGN} = {sign}").drop(_SIGN)) for sign in (1, -1))
        return FollowedChange(before, added, removed, nodes)

    def _build(self) -> DataFrame:
        """The view's rows before the change; the states are computed with them."""
        engine = self._engine(CutSide.BEFORE)
        for layout in self.planned.layouts.values():
            node = layout.node
            differentiator = Differentiator(engine, RULES, states=frozenset(self._states))
            state = engine.lowering.frame(differentiator.first_state(node))
            self._states[node.number] = self._local(with_run_number(layout, state, 1))
        differentiator = Differentiator(engine, RULES, states=frozenset(self._states))
        return engine.lowering.frame(differentiator.rows_after(self.planned.view.plan))

    def _local(self, frame: DataFrame) -> DataFrame:
        return dataframe_of_plan(frame.sparkSession, local_relation(frame)[0])

    # -- inputs ------------------------------------------------------------------------------------------

    def _engine(self, newer: CutSide) -> SparkEngine:
        """An engine whose newer cut is one of the two. With the rows before the change as the newer ones it
        builds, as a first refresh does."""
        nodes = dict.fromkeys(walk(self.planned.view.plan))
        inputs = Inputs(
            read=lambda table, side: self._read(table, side if newer is CutSide.AFTER else newer),
            lookup=_no_lookup,
            delta=self._delta if newer is CutSide.AFTER else lambda _table, _columns: None,
            rows=lambda table: int(self._read(table, newer).count()),
            stored_rows=lambda number: int(self._states[number].count()),
            stored=self._stored,
            log=lambda number: self._states[number],
            newest=lambda number, rows: newest_of_runs(self.planned.layouts[number], rows),
        )
        return SparkEngine(
            Catalyst(self.before.session),
            self.planned.view.attributes,
            inputs,
            tuple(node for node in nodes if isinstance(node, Scan)),
            query=self.planned.view.plan,
        )

    def _stored(self, number: int, only: RowFilter | None) -> DataFrame:
        rows = self._states[number]
        return newest_of_runs(self.planned.layouts[number], rows if only is None else only(rows))

    def _read(self, table: TableName, side: CutSide) -> DataFrame:
        if (table, side) not in self._frames:
            evaluation = self.before if side is CutSide.BEFORE else self.after
            self._frames[table, side] = evaluation.rows_of_scan(table)
        return self._frames[table, side]

    def _delta(self, table: TableName, columns: Sequence[str]) -> TableDelta | None:
        old, new = (self._read(table, side) for side in (CutSide.BEFORE, CutSide.AFTER))
        added, removed = consolidated(new.select(*columns), old.select(*columns))
        sides = [None if rows is None else self._local(rows) for rows in (added, removed)]
        counts = [0 if rows is None else int(rows.count()) for rows in sides]
        return TableDelta(sides[0], sides[1], sum(counts), materialized=True) if any(counts) else None


def _no_lookup(
    _table: TableName, _side: CutSide, _request: LookupRequest, _wider: Callable[[], LookupRequest | None]
) -> None:
    """All rows are local, so none is looked up."""

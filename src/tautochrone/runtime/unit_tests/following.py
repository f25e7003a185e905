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
from tautochrone.model.names import TableName, quoted
from tautochrone.project.graph import ResolvedFlow
from tautochrone.runtime.refresh.states import newest_of_runs, with_run_number
from tautochrone.runtime.unit_tests.differences import RowValues, surplus
from tautochrone.runtime.unit_tests.evaluation import Evaluation
from tautochrone.runtime.views.plans import Planned, with_state_layouts
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan
from tautochrone.spark.analysis.session_context import dataframe_of_plan, set_active_session
from tautochrone.spark.execute.engine import Inputs, SparkEngine, TableDelta
from tautochrone.spark.execute.expectations import flag_names, without_flags
from tautochrone.spark.execute.key_lookups import LookupRequest
from tautochrone.spark.execute.materialize import local_relation, local_rows_at
from tautochrone.spark.jvm.catalyst import Catalyst, known_row_count
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
    """

    before: DataFrame
    added: DataFrame
    removed: DataFrame


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

    @property
    def breaks_ties(self) -> bool:
        """Whether Spark may take tied rows otherwise than a refresh, which orders by all columns."""
        return bool(self.planned.view.breaks_ties) and not self.obstacles

    def rows(self, side: CutSide) -> DataFrame:
        """All rows of the view before or after the change, as its plan gives them."""
        engine = self._engine(side)
        differentiator = Differentiator(engine, RULES, states=frozenset())
        frame = engine.lowering.frame(differentiator.rows_after(self.planned.view.plan))
        return self._local(without_flags(frame.toDF(*self._names()), self.flow.flow.expectations))

    def _names(self) -> list[str]:
        columns = [field.name for field in self.after.graph.schemas[self.name].fields]
        return [*columns, *flag_names(self.flow.flow.expectations)]

    def follow(self) -> FollowedChange:
        """Build the states before the change, and follow it."""
        session = self.before.session
        set_active_session(session)
        names = self._names()
        before = self._build().toDF(*names)
        engine = self._engine()
        engine.read_changes()
        differentiator = Differentiator(engine, RULES, states=frozenset(self._states))
        change = differentiator.materialized_change(self.planned.view.plan, consolidated=True)
        before = self._local(without_flags(before, self.flow.flow.expectations))
        if change.plan is None:
            nothing = before.limit(0)
            return FollowedChange(before, self._local(nothing), self._local(nothing))
        signed = self._local(engine.frame(change.plan).toDF(*names, _SIGN))
        rows = without_flags(signed, self.flow.flow.expectations)
        added, removed = (self._local(rows.where(f"{_SIGN} = {sign}").drop(_SIGN)) for sign in (1, -1))
        return FollowedChange(before, added, removed)

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

    def _engine(self, only: CutSide | None = None) -> SparkEngine:
        """An engine over both sets of rows, or over one set, without a change: it builds, as a first refresh
        does."""
        nodes = dict.fromkeys(walk(self.planned.view.plan))
        inputs = Inputs(
            read=lambda table, side: self._read(table, only or side),
            lookup=_no_lookup,
            delta=self._delta if only is None else lambda _table, _columns: None,
            rows=lambda table: _count(self._read(table, only or CutSide.AFTER)),
            stored_rows=lambda number: _count(self._states[number]),
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
        old, new = (
            self._local(self._read(table, side).select(*map(quoted, columns)))
            for side in (CutSide.BEFORE, CutSide.AFTER)
        )
        values_before, values_after = (RowValues.of(rows.toArrow()) for rows in (old, new))
        added, removed = surplus(values_after, values_before), surplus(values_before, values_after)
        if not added and not removed:
            return None
        return TableDelta(
            local_rows_at(new, added) if added else None,
            local_rows_at(old, removed) if removed else None,
            len(added) + len(removed),
            materialized=True,
        )


def _count(rows: DataFrame) -> int | None:
    """The number of rows of a local relation."""
    return known_row_count(analyzed_plan(rows))


def _no_lookup(
    _table: TableName, _side: CutSide, _request: LookupRequest, _wider: Callable[[], LookupRequest | None]
) -> None:
    """All rows are local, so none is looked up."""

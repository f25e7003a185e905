"""From a query and the changes of its inputs to the change of its result.

`Differentiator` walks a plan once. Each kind of node has a rule (`tautochrone.algebra.rules`). A rule asks
for the changes of the node's children, and for their rows before and after, and returns a plan that computes
the node's own change. When a rule needs to know rows before it continues (which keys changed; none means that
nothing above changes), it has the engine materialize a plan.

A change is a Z-set: rows with a weight of +1 (inserted) or -1 (deleted), as in DBSP. The rules' sources:
Griffin & Libkin 1995 (bags), Gupta, Mumick & Subrahmanian 1993 (counting), Larson & Zhou 2007 (outer joins),
Palpanas et al. 2002 (aggregates that cannot be merged).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

from tautochrone.algebra.nodes import (
    WEIGHT,
    ColumnId,
    Consolidate,
    Constant,
    CutSide,
    Materialized,
    Node,
    Scan,
    ScanAtCut,
    Stateful,
    Unary,
    walk,
)
from tautochrone.algebra.pushdown import Sizes
from tautochrone.algebra.strategy import Strategy
from tautochrone.model.checkpoint import NodeRefresh, RefreshMode
from tautochrone.model.reason import Reason, ReasonCode

__all__ = [
    "NO_CHANGE",
    "Bag",
    "Change",
    "Differentiator",
    "Engine",
    "Row",
    "Rule",
    "StatefulRule",
    "zset_columns",
]

Row = Mapping[ColumnId, Any]
Bag = Sequence[Row]
"""A relation with duplicates, as plain Python rows."""


@dataclass(frozen=True, slots=True)
class Change:
    """The change of a node between the two cuts.

    Attributes:
        plan: computes a Z-set; None when nothing changed.
        insert_only: no row has the weight -1.
        consolidated: no row is there with both weights.
    """

    plan: Node | None
    insert_only: bool = True
    consolidated: bool = False

    def __bool__(self) -> bool:
        return self.plan is not None


NO_CHANGE = Change(None)


class Engine(Sizes, Protocol):
    """What computes plans. Spark in production, plain Python in tests."""

    def materialize(self, plan: Node, *, may_be_large: bool = False) -> Materialized:
        """Compute a plan once and store its rows for the rest of the refresh.

        Args:
            plan: of any nodes.
            may_be_large: the result may be as large as the inputs, however small their changes are.
        """

    def change_of(self, scan: Scan) -> Change:
        """The change of an input between the two cuts, with the scan's columns and `WEIGHT`."""

    def fresh(self) -> ColumnId:
        """A column id that no plan uses yet."""


class Rule(Protocol):
    """How one kind of node is computed, and how its change is."""

    @property
    def node_type(self) -> type[Node]:
        """The class of the nodes that it is for."""

    @property
    def evaluate(self) -> Callable[..., list[dict[ColumnId, Any]]]:
        """`evaluate(node, *bags)`: the node's rows from its children's, in plain Python. It defines what the
        node means; tests compare `change` with it."""

    def change(self, node: Any, context: Differentiator) -> Change:
        """The node's change from its children's. At least one of them changed."""

    def mode(self, node: Any) -> tuple[RefreshMode, str]:
        """How the rule will refresh the node, and why, in a few words. Known before any data is read."""


class StatefulRule(Rule, Protocol):
    """The rule of a `Stateful` node."""

    def state_of(self, node: Any, rows: Node, context: Differentiator) -> Node:
        """The state of the node when its child has these rows, as a first build stores it."""

    def rows_from_state(self, node: Any, context: Differentiator, side: CutSide) -> Node:
        """The node's rows at a cut, from its state instead of its inputs."""


def zset_columns(columns: Sequence[ColumnId]) -> tuple[ColumnId, ...]:
    """The columns of a Z-set of rows with these columns."""
    return (*columns, WEIGHT)


@dataclass(slots=True)
class Differentiator:
    """One refresh of one view: the changes of its nodes and their rows at both cuts, each computed once.

    Attributes:
        states: numbers of the nodes that have a committed state to read. Other stateful nodes are computed
            from their inputs.
        state_updates: per node number a plan of the rows to merge into its state (`state_columns`; groups
            that vanished have a count of 0). Complete once the change of the root was asked for.
        nodes: how each node was refreshed, for the refresh's record.
    """

    engine: Engine
    rules: Mapping[type[Node], Rule]
    states: frozenset[int] = frozenset()
    state_updates: dict[int, Node] = field(default_factory=dict)
    nodes: list[NodeRefresh] = field(default_factory=list)
    _changes: dict[int, Change] = field(default_factory=dict)
    _recorded: set[int] = field(default_factory=set)
    _rows: dict[tuple[int, CutSide], Node] = field(default_factory=dict)

    @property
    def strategy(self) -> Strategy:
        """How the plans of rules are computed."""
        return Strategy(self.engine)

    def change(self, node: Node) -> Change:
        """The change of a node between the cuts, as a plan that need not be computed yet."""
        if id(node) not in self._changes:
            self._changes[id(node)] = self._change(node)
        return self._changes[id(node)]

    def materialized_change(self, node: Node, *, consolidated: bool = False) -> Change:
        """The change of a node, computed: its plan is `Materialized`, or None.

        Args:
            node: of the query.
            consolidated: rows that cancel out must be removed. Without it they are removed unless the change
                only filters and projects another one: then looking for them costs more than they do.
        """
        change = self.change(node)
        is_consolidated = change.insert_only or change.consolidated
        if change.plan is None:
            return change
        if isinstance(change.plan, Materialized) and (is_consolidated or not consolidated):
            return change
        plan = change.plan
        if not is_consolidated and (consolidated or not _is_row_wise_over_one_change(plan)):
            plan, is_consolidated = Consolidate(columns=plan.columns, child=plan), True
        result = self.engine.materialize(plan)
        change = replace(change, plan=result, consolidated=is_consolidated) if result.rows else NO_CHANGE
        self._changes[id(node)] = change
        return change

    def state_update(self, number: int) -> Materialized:
        """The rows to merge into a node's state, computed."""
        update = self.state_updates[number]
        if not isinstance(update, Materialized):
            update = self.state_updates[number] = self.engine.materialize(update)
        return update

    def rows_before(self, node: Node) -> Node:
        """A plan of the node's rows at the cut before."""
        return self._rows_at(node, CutSide.BEFORE)

    def rows_after(self, node: Node) -> Node:
        """A plan of the node's rows at the cut after."""
        return self._rows_at(node, CutSide.AFTER)

    def first_state(self, node: Stateful) -> Node:
        """A plan of a node's state at the cut after, as a first build stores it."""
        return self._stateful_rule(node).state_of(node, self.rows_after(node.child), self)

    def inputs_changed(self, node: Node) -> bool:
        """Whether any input below a node changed."""
        return any(isinstance(leaf, Scan) and bool(self.change(leaf)) for leaf in walk(node))

    def record(self, node: Node, reason: str | None = None, mode: RefreshMode | None = None) -> None:
        """Record how a node was refreshed; by default with the mode and the reason of its rule."""
        rule_mode, rule_reason = self.rules[type(node)].mode(node)
        described = Reason.of(ReasonCode.NODE_RULE, rule=reason or rule_reason)
        self._recorded.add(id(node))
        self.nodes.append(NodeRefresh(node=node.label, mode=mode or rule_mode, reason=described))

    # -- inside ------------------------------------------------------------------------------------------

    def _change(self, node: Node) -> Change:
        if isinstance(node, Scan):
            return self.engine.change_of(node)
        if isinstance(node, Constant) or not any(self.change(below) for below in node.differentiated):
            return NO_CHANGE
        change = self.rules[type(node)].change(node, self)
        if change and id(node) not in self._recorded:
            self.record(node)
        return change

    def _rows_at(self, node: Node, side: CutSide) -> Node:
        key = id(node), side
        if key not in self._rows:
            self._rows[key] = self._plan_at(node, side)
        return self._rows[key]

    def _plan_at(self, node: Node, side: CutSide) -> Node:
        if isinstance(node, Scan):
            return ScanAtCut(columns=node.columns, scan=node, side=side)
        if isinstance(node, Stateful) and node.number in self.states:
            return self._stateful_rule(node).rows_from_state(node, self, side)
        return node.with_children([self._rows_at(child, side) for child in node.children])

    def _stateful_rule(self, node: Stateful) -> StatefulRule:
        return cast(StatefulRule, self.rules[type(node)])


def _is_row_wise_over_one_change(plan: Node) -> bool:
    """Whether a plan only filters and projects a change that was consolidated or materialized."""
    while isinstance(plan, Unary) and plan.is_row_wise:
        plan = plan.child
    return isinstance(plan, Consolidate | Materialized)

"""From a query and the changes of its inputs to the change of its result.

`Differentiator` walks a plan once. Each kind of node has a rule (`tautochrone.algebra.rules`); a rule asks
for the children's change, and for the children's rows at the old and at the new cut, and answers with a
plan that computes the node's own change. The engine runs such plans when a rule wants to know more before
it goes on: how many rows there are (none: everything above vanishes), which keys.

The rules and where they come from: Griffin & Libkin 1995 (bags), Gupta, Mumick & Subrahmanian 1993
(counting), Larson & Zhou 2007 (outer joins), Palpanas et al. 2002 (groups that cannot be merged).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

from tautochrone.algebra.nodes import (
    WEIGHT,
    Aggregate,
    ColumnId,
    Consolidate,
    Constant,
    CutSide,
    Filter,
    Join,
    Materialized,
    Node,
    NullExtend,
    Project,
    Rename,
    Scan,
    ScanAtCut,
    Select,
    TopK,
    inner_join_of,
    walk,
)
from tautochrone.model.refresh import NodeRefresh, RefreshMode

__all__ = ["NOTHING", "Bag", "Change", "Differentiator", "Engine", "Row", "Rule", "zset_columns"]

Row = Mapping[ColumnId, Any]
Bag = Sequence[Row]
"""A bag of plain Python rows: what the meaning of a node is written on."""


@dataclass(frozen=True, slots=True)
class Change:
    """A signed bag of changes; `plan` is None when there is none.

    `insert_only`: it holds no row with -1. `consolidated`: it holds no row with both signs.
    """

    plan: Node | None
    insert_only: bool = True
    consolidated: bool = False

    def __bool__(self) -> bool:
        return self.plan is not None


NOTHING = Change(None)


class Engine(Protocol):
    """What runs plans. Spark in production, plain Python in tests."""

    def materialize(self, plan: Node, *, may_be_large: bool = False) -> Materialized:
        """Compute a plan once and store its rows for the rest of the refresh.

        Args:
            plan: of any nodes.
            may_be_large: the result may be as large as the inputs, however small their changes are.
        """

    def change_of(self, scan: Scan) -> Change:
        """The change of an input between the two cuts: signed, with the scan's columns."""

    def fresh(self) -> ColumnId:
        """A column id that no plan uses yet."""

    def is_large(self, node: Node) -> bool:
        """Whether reading `node` without knowing keys would be dear."""

    def is_small(self, node: Node) -> bool:
        """Whether all that `node` reads is so little that knowing keys saves nothing."""


class Rule(Protocol):
    """How one kind of node follows a change, and what it means at all."""

    @property
    def evaluate(self) -> Callable[..., list[dict[ColumnId, Any]]]:
        """`evaluate(node, *bags)`: the node's rows from its children's, the slow and obvious way. Tests hold
        `change` against it."""

    def change(self, node: Any, at: Differentiator) -> Change:
        """The node's change from its children's."""

    def mode(self, node: Any) -> tuple[RefreshMode, str]:
        """How the rule will bring the node up to date, and the rule in a few words. Known beforehand."""


def zset_columns(columns: Sequence[ColumnId]) -> tuple[ColumnId, ...]:
    """The columns of a signed bag."""
    return (*columns, WEIGHT)


class StatefulRule(Rule, Protocol):
    """The rule of a node that can keep a state."""

    def rows_from_state(self, node: Any, at: Differentiator, side: CutSide) -> Node:
        """The node's rows at a cut, from its state instead of its inputs."""


@dataclass(slots=True)
class Differentiator:
    """One refresh of one view: answers for its nodes, each computed once.

    Attributes:
        states: nodes that have a committed state to read (by `number`); others that could have one are
            computed from their inputs.
        state_updates: per stateful node the rows that its state must take in, as a plan (`state_columns`;
            groups that vanished with a count of 0), complete once the change of the root was asked for.
        nodes: what was done, node by node, for the refresh's record.
    """

    engine: Engine
    rules: Mapping[type[Node], Rule]
    states: frozenset[int] = frozenset()
    state_updates: dict[int, Node] = field(default_factory=dict)
    nodes: list[NodeRefresh] = field(default_factory=list)
    _changes: dict[int, Change] = field(default_factory=dict)
    _at: dict[tuple[int, CutSide], Node] = field(default_factory=dict)

    def change(self, node: Node) -> Change:
        """The change of a node between the cuts."""
        if id(node) not in self._changes:
            if isinstance(node, Scan):
                found = self.engine.change_of(node)
            elif isinstance(node, Constant) or not any(self.change(child) for child in _below(node)):
                found = NOTHING
            else:
                found = self.rules[type(node)].change(node, self)
                if found:
                    self.record(node)
            self._changes[id(node)] = found
        return self._changes[id(node)]

    def materialized_change(self, node: Node, *, consolidated: bool = False) -> Change:
        """The change of a node, computed: its plan is `Materialized`, or there is none.

        Args:
            net: no row may be there with both signs. Else it may, where looking for such rows would cost more
                than they do: in what filters and projections leave of one change.
        """
        found = self.change(node)
        is_net = found.insert_only or found.consolidated
        if found.plan is None or (isinstance(found.plan, Materialized) and (is_net or not consolidated)):
            return found
        if not is_net and (consolidated or not _row_by_row(found.plan)):
            found, is_net = replace(found, plan=_consolidated(found.plan)), True
        assert found.plan is not None
        plan = self.engine.materialize(found.plan)
        found = Change(plan, found.insert_only, is_net) if plan.rows else NOTHING
        self._changes[id(node)] = found
        return found

    def state_update(self, number: int) -> Materialized:
        """What a state must take in, computed."""
        found = self.state_updates[number]
        if not isinstance(found, Materialized):
            found = self.state_updates[number] = self.engine.materialize(found)
        return found

    def rows_before(self, node: Node) -> Node:
        """The plan of a node's rows at the old cut."""
        return self._rows(node, CutSide.BEFORE)

    def rows_after(self, node: Node) -> Node:
        """The plan of a node's rows at the new cut."""
        return self._rows(node, CutSide.AFTER)

    def has_changed(self, node: Node) -> bool:
        """Whether any input below a node changed."""
        return any(isinstance(leaf, Scan) and bool(self.change(leaf)) for leaf in walk(node))

    def record(self, node: Node, reason: str | None = None, mode: RefreshMode | None = None) -> None:
        """Record how a node was brought up to date: as its rule says, unless told otherwise."""
        usual, words = self.rules[type(node)].mode(node)
        mode = mode or usual
        self.nodes.append(NodeRefresh(node=node.label, mode=mode, reason=reason or words))

    def _rows(self, node: Node, side: CutSide) -> Node:
        key = id(node), side
        if key not in self._at:
            self._at[key] = self._rows_at(node, side)
        return self._at[key]

    def _rows_at(self, node: Node, side: CutSide) -> Node:
        if isinstance(node, Scan):
            return ScanAtCut(columns=node.columns, scan=node, side=side)
        if isinstance(node, Aggregate | TopK) and node.number in self.states:
            rule = cast(StatefulRule, self.rules[type(node)])
            return rule.rows_from_state(node, self, side)
        return node.with_children([self._rows(child, side) for child in node.children])


def _below(node: Node) -> Sequence[Node]:
    """The nodes whose change a rule asks for. Inner joins right below an inner join are done with it: their
    own changes would be computed for nothing."""
    if not isinstance(node, Join) or inner_join_of(node) is None:
        return node.children
    below = [(inner_join_of(child), child) for child in node.children]
    return [part for inner, child in below for part in ([child] if inner is None else _below(inner))]


def _row_by_row(plan: Node) -> bool:
    """Whether a plan only filters and projects a change that is grouped, or held, already."""
    while isinstance(plan, Filter | NullExtend | Project | Rename | Select):
        plan = plan.child
    return isinstance(plan, Consolidate | Materialized)


def _consolidated(plan: Node) -> Node:
    return Consolidate(columns=plan.columns, child=plan)

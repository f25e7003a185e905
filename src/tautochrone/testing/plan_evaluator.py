"""Plans evaluated in plain Python over bags of dicts: the engine that delta rules are proved on.

What a query node means is written once, in its rule (`Rule.evaluate`); the nodes that only rules build get
their meaning here, as literally as their docstrings say it. Everything is strict where an engine would be:
a plan with an unknown column, with two sides that share one, or a bag with other weights than +1 and -1
is a `MalformedPlanError`, not a wrong answer. Rows come out in a random order: bags have none.

Conventions: `Scan.table` is a name in `tables`, whose rows are tuples; `Scan.handle` picks positions of
them (None: all). `Constant.handle` is a sequence of tuples. `Expression.handle` is called with a row, and
`AggregateCall.handle` (of `OTHER`) with all rows of a group. `TopK.order` is a sort key of a row, and total.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tautochrone.algebra.delta import NOTHING, Bag, Change, Rule
from tautochrone.algebra.nodes import (
    WEIGHT,
    ChangedGroups,
    ColumnId,
    Consolidate,
    Constant,
    CutSide,
    FinalAggregate,
    FlagFilter,
    KeySemiJoin,
    Materialized,
    MergeGroups,
    MergeTopK,
    MultiKeySemiJoin,
    Node,
    NullExtend,
    PartialAggregate,
    PredicateChange,
    Rename,
    Scan,
    ScanAtCut,
    Select,
    StateScan,
    WithWeight,
)
from tautochrone.algebra.row_bounds import max_rows
from tautochrone.algebra.row_wise import row_wise_parts
from tautochrone.testing.plan_evaluator_nodes import (
    accumulate,
    altered,
    consolidate,
    finish,
    flip,
    matching,
    merge_groups,
    merge_top,
    touched,
)
from tautochrone.testing.wellformed import MalformedPlanError, check_plan

__all__ = ["MalformedPlanError", "PlanEvaluator", "Table", "answer"]

Table = Sequence[tuple[Any, ...]]
Dict = dict[ColumnId, Any]


def answer(plan: Node, tables: Mapping[Any, Table], rules: Mapping[type[Node], Rule]) -> list[Dict]:
    """The rows of a query over tables, by the meaning of its nodes alone."""
    return PlanEvaluator(old=tables, new=tables, rules=rules).rows(plan)


@dataclass(slots=True)
class PlanEvaluator:
    """One refresh, in memory.

    Attributes:
        old, new: the tables at the two cuts.
        rules: what query nodes mean.
        changes: per table its change, where it is not simply the difference of the cuts: a change may
            hold a row with both signs, as an update of a column that nobody reads does.
        states: rows of the states by the number of their node.
        seed: of all that an engine is free in: order of rows, what it calls large.
    """

    old: Mapping[Any, Table]
    new: Mapping[Any, Table]
    rules: Mapping[type[Node], Rule]
    changes: Mapping[Any, Sequence[tuple[tuple[Any, ...], int]]] | None = None
    states: Mapping[int, Bag] = field(default_factory=dict)
    seed: int = 0
    _dice: random.Random = field(init=False)
    _done: dict[int, tuple[Node, list[Dict]]] = field(default_factory=dict)
    _ids: int = 0

    def __post_init__(self) -> None:
        self._dice = random.Random(self.seed)

    # -- the protocol ------------------------------------------------------------------------------------

    def materialize(self, plan: Node, *, may_be_large: bool = False) -> Materialized:  # noqa: ARG002
        """Evaluate and hold: as a whole, or in pieces where it has some."""
        parts = row_wise_parts(plan) if self._dice.random() < 0.5 else None
        rows = [row for part in parts or (plan,) for row in self.rows(part)]
        return Materialized(columns=plan.columns, handle=rows, rows=len(rows))

    def change_of(self, scan: Scan) -> Change:
        """The change of a table, restricted to the columns that the scan reads."""
        rows = [(self._picked(scan, row), weight) for row, weight in self._change(scan.table)]
        if not rows:
            return NOTHING
        kept = [{**row, WEIGHT: weight} for row, weight in rows]
        columns = (*scan.columns, WEIGHT)
        plan: Node = Materialized(columns=columns, handle=kept, rows=len(kept))
        insert_only, chance = all(weight > 0 for _, weight in rows), self._dice.random()
        # A change need not be computed already, and it may be known to be net.
        if chance < 0.3:
            plan = Select(columns=columns, child=plan)
        elif chance < 0.6:
            return Change(Consolidate(columns=columns, child=plan), insert_only, consolidated=True)
        return Change(plan, insert_only)

    def fresh(self) -> ColumnId:
        """A new column id."""
        self._ids += 1
        return ColumnId(f"fresh{self._ids}")

    def is_large(self, node: Node) -> bool:  # noqa: ARG002 - both answers must do for any node
        """Either: rules must not depend on it."""
        return self._dice.random() < 0.5

    def is_small(self, node: Node) -> bool:
        """Either, as above."""
        return self.is_large(node)

    # -- evaluation --------------------------------------------------------------------------------------

    def rows(self, plan: Node) -> list[Dict]:
        """The rows of a plan. A `Scan` stands for the new cut."""
        if id(plan) not in self._done:
            inputs = [self.rows(child) for child in plan.children]
            check_plan(plan)
            rows = self._evaluated(plan, inputs)
            self._dice.shuffle(rows)
            # The node is held too: ids of objects that are gone are given out again.
            self._done[id(plan)] = plan, _checked(plan, rows)
            most = max_rows(plan, lambda leaf: len(self.rows(leaf)))
            if most is not None and len(rows) > most:
                raise MalformedPlanError(f"{type(plan).__name__} gives {len(rows)} rows, not {most} at most")
        return self._done[id(plan)][1]

    def _picked(self, scan: Scan, row: tuple[Any, ...]) -> Dict:
        positions = range(len(row)) if scan.handle is None else scan.handle
        return dict(zip(scan.columns, (row[at] for at in positions), strict=True))

    def _change(self, table: Any) -> Sequence[tuple[tuple[Any, ...], int]]:
        if self.changes is not None:
            return self.changes.get(table, ())
        old, new = Counter(self.old.get(table, ())), Counter(self.new.get(table, ()))
        return [(row, 1) for row in (new - old).elements()] + [(row, -1) for row in (old - new).elements()]

    def _evaluated(self, plan: Node, inputs: Sequence[Bag]) -> list[Dict]:
        match plan:
            case Scan():
                return [self._picked(plan, row) for row in self.new[plan.table]]
            case ScanAtCut(scan=scan, side=side):
                tables = self.old if side is CutSide.BEFORE else self.new
                return [self._picked(scan, row) for row in tables[scan.table]]
            case StateScan(of=of):
                if of.number not in self.states:
                    raise MalformedPlanError(f"state {of.number} is read, but there is none")
                return [dict(row) for row in self.states[of.number]]
            case KeySemiJoin(exact=False) | MultiKeySemiJoin() if self._dice.random() < 0.5:
                return [dict(row) for row in inputs[0]]
            case _ if type(plan) in _EVALUATE:
                return _EVALUATE[type(plan)](plan, *inputs)
            case _ if type(plan) in self.rules:
                return self.rules[type(plan)].evaluate(plan, *inputs)
        raise MalformedPlanError(f"{type(plan).__name__} has neither a rule nor a meaning")


def _checked(plan: Node, rows: list[Dict]) -> list[Dict]:
    columns = set(plan.columns)
    for row in rows:
        if row.keys() != columns:
            raise MalformedPlanError(f"{type(plan).__name__} gives {sorted(row)}, not {sorted(columns)}")
        if WEIGHT in columns and row[WEIGHT] not in (1, -1):
            raise MalformedPlanError(f"{type(plan).__name__} gives the weight {row[WEIGHT]}")
    return rows


_EVALUATE: dict[type[Node], Callable[..., list[Dict]]] = {
    Constant: lambda plan: [dict(zip(plan.columns, row, strict=True)) for row in plan.handle],
    Materialized: lambda plan: [dict(row) for row in plan.handle or ()],
    WithWeight: lambda plan, rows: [{**row, WEIGHT: plan.sign} for row in rows],
    Consolidate: consolidate,
    Select: lambda plan, rows: [{column: row[column] for column in plan.columns} for row in rows],
    Rename: lambda plan, rows: [
        {column: row[source] for column, source in zip(plan.columns, plan.sources, strict=True)}
        for row in rows
    ],
    NullExtend: lambda plan, rows: [{**row, **dict.fromkeys(plan.nulls)} for row in rows],
    FlagFilter: lambda plan, rows: [dict(row) for row in rows if row[plan.flag] is plan.value],
    KeySemiJoin: matching,
    MultiKeySemiJoin: touched,
    PartialAggregate: accumulate,
    ChangedGroups: altered,
    MergeGroups: merge_groups,
    FinalAggregate: finish,
    PredicateChange: flip,
    MergeTopK: merge_top,
}

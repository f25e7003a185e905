"""An engine in plain Python, over bags of dicts. The delta rules are tested with it.

A query node is evaluated by its rule (`Rule.evaluate`); the nodes that only rules build are evaluated here
and in `plan_evaluator_nodes`, exactly as their docstrings say. Where an engine would fail or compute
something else (an unknown column, two sides of a join that share one, a weight other than +1 and -1) a
`MalformedPlanError` is raised. Rows come in a random order, because bags have none.

Conventions: `Scan.table` is a name in the tables, whose rows are tuples; `Scan.handle` selects positions of
them (None: all). `Constant.handle` is a sequence of tuples. `Expression.handle` is called with a row, and
`AggregateCall.handle` (of `OTHER`) with all rows of a group. `TopK.order` is a sort key of a row, and total.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.plan_evaluator_nodes import (
    changed_groups,
    consolidate,
    final_aggregate,
    key_semi_join,
    merge_groups,
    merge_top_k,
    multi_key_semi_join,
    ordered_from,
    partial_aggregate,
    predicate_change,
)
from tests.support.wellformed import MalformedPlanError, check_plan

from tautochrone.algebra.delta import NO_CHANGE, Bag, Change, Rule
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
    OrderedFrom,
    PartialAggregate,
    PredicateChange,
    Rename,
    Scan,
    ScanAtCut,
    Select,
    StateScan,
    Totals,
    WithWeight,
    row_wise_parts,
)

__all__ = ["MalformedPlanError", "PlanEvaluator", "Table", "evaluate_query"]

Table = Sequence[tuple[Any, ...]]
OutputRow = dict[ColumnId, Any]


def evaluate_query(
    plan: Node, tables: Mapping[Any, Table], rules: Mapping[type[Node], Rule]
) -> list[OutputRow]:
    """The rows of a query over tables."""
    return PlanEvaluator(before=tables, after=tables, rules=rules).rows(plan)


@dataclass(slots=True)
class PlanEvaluator:
    """The engine of one refresh.

    Attributes:
        before, after: the tables at the two cuts.
        rules: evaluate query nodes.
        changes: rows and weights per table, where a change is not simply the difference of the cuts: it may
            have a row with both weights, as after an update of a column that the query does not read.
        states: rows of the states by the number of their node.
        seed: of all random choices: the order of rows, what counts as large, in which form a change comes.
    """

    before: Mapping[Any, Table]
    after: Mapping[Any, Table]
    rules: Mapping[type[Node], Rule]
    changes: Mapping[Any, Sequence[tuple[tuple[Any, ...], int]]] | None = None
    states: Mapping[int, Bag] = field(default_factory=dict)
    seed: int = 0
    _random: random.Random = field(init=False)
    _evaluated: dict[int, tuple[Node, list[OutputRow]]] = field(default_factory=dict)
    _last_id: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    # -- the protocol ------------------------------------------------------------------------------------

    def materialize(self, plan: Node, *, may_be_large: bool = False) -> Materialized:
        """Evaluate a plan: as a whole, or in row-wise parts where it has some."""
        parts = row_wise_parts(plan) if self._random.random() < 0.5 else None
        rows = [row for part in parts or (plan,) for row in self.rows(part)]
        return Materialized(columns=plan.columns, handle=rows, rows=len(rows))

    def change_of(self, scan: Scan) -> Change:
        """The change of a table, with the columns that the scan reads."""
        rows = [(self._selected(scan, row), weight) for row, weight in self._change(scan.table)]
        if not rows:
            return NO_CHANGE
        zset = [{**row, WEIGHT: weight} for row, weight in rows]
        columns = (*scan.columns, WEIGHT)
        plan: Node = Materialized(columns=columns, handle=zset, rows=len(zset))
        insert_only, number = all(weight > 0 for _, weight in rows), self._random.random()
        # A change need not be materialized, and it may be consolidated.
        if number < 0.3:
            plan = Select(columns=columns, child=plan)
        elif number < 0.6:
            return Change(Consolidate(columns=columns, child=plan), insert_only, consolidated=True)
        return Change(plan, insert_only)

    def fresh(self) -> ColumnId:
        """A new column id."""
        self._last_id += 1
        return ColumnId(f"fresh{self._last_id}")

    def reads_many_rows(self, node: Node) -> bool:
        """A random answer."""
        return self._random.random() < 0.5

    def reads_few_rows(self, node: Node) -> bool:
        """A random answer."""
        return self.reads_many_rows(node)

    # -- evaluation --------------------------------------------------------------------------------------

    def rows(self, plan: Node) -> list[OutputRow]:
        """The rows of a plan. A `Scan` reads the cut after.

        Raises:
            MalformedPlanError: no engine should be given this plan.
        """
        if id(plan) not in self._evaluated:
            inputs = [self.rows(child) for child in plan.children]
            check_plan(plan)
            rows = self._evaluate(plan, inputs)
            self._random.shuffle(rows)
            # The node is stored too: once it is garbage, another one may get its id.
            self._evaluated[id(plan)] = plan, _checked(plan, rows)
            bound = plan.max_rows(lambda leaf: len(self.rows(leaf)))
            if bound is not None and len(rows) > bound:
                raise MalformedPlanError(f"{type(plan).__name__} has {len(rows)} rows, its bound is {bound}")
        return self._evaluated[id(plan)][1]

    def _selected(self, scan: Scan, row: tuple[Any, ...]) -> OutputRow:
        positions = range(len(row)) if scan.handle is None else scan.handle
        return dict(zip(scan.columns, (row[position] for position in positions), strict=True))

    def _change(self, table: Any) -> Sequence[tuple[tuple[Any, ...], int]]:
        if self.changes is not None:
            return self.changes.get(table, ())
        before, after = Counter(self.before.get(table, ())), Counter(self.after.get(table, ()))
        inserted, deleted = after - before, before - after
        return [*((row, 1) for row in inserted.elements()), *((row, -1) for row in deleted.elements())]

    def _evaluate(self, plan: Node, inputs: Sequence[Bag]) -> list[OutputRow]:
        match plan:
            case Scan():
                return [self._selected(plan, row) for row in self.after[plan.table]]
            case ScanAtCut(scan=scan, side=side):
                tables = self.before if side is CutSide.BEFORE else self.after
                return [self._selected(scan, row) for row in tables[scan.table]]
            case StateScan(operator=operator):
                if operator.number not in self.states:
                    raise MalformedPlanError(f"state {operator.number} is read, but it does not exist")
                return [dict(row) for row in self.states[operator.number]]
            case KeySemiJoin(exact=False) | MultiKeySemiJoin() if self._random.random() < 0.5:
                # These may have superfluous rows.
                return [dict(row) for row in inputs[0]]
            case _ if type(plan) in _FUNCTIONS:
                return _FUNCTIONS[type(plan)](plan, *inputs)
            case _ if type(plan) in self.rules:
                return self.rules[type(plan)].evaluate(plan, *inputs)
        raise MalformedPlanError(f"nothing evaluates {type(plan).__name__}")


def _checked(plan: Node, rows: list[OutputRow]) -> list[OutputRow]:
    columns = set(plan.columns)
    for row in rows:
        if row.keys() != columns:
            raise MalformedPlanError(f"{type(plan).__name__} gives {sorted(row)}, not {sorted(columns)}")
        if WEIGHT in columns and row[WEIGHT] not in (1, -1):
            raise MalformedPlanError(f"{type(plan).__name__} gives the weight {row[WEIGHT]}")
    return rows


_FUNCTIONS: dict[type[Node], Callable[..., list[OutputRow]]] = {
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
    KeySemiJoin: key_semi_join,
    MultiKeySemiJoin: multi_key_semi_join,
    PartialAggregate: partial_aggregate,
    ChangedGroups: changed_groups,
    MergeGroups: merge_groups,
    FinalAggregate: final_aggregate,
    PredicateChange: predicate_change,
    OrderedFrom: ordered_from,
    Totals: lambda plan, rows: [plan.handle(rows)],
    MergeTopK: merge_top_k,
}

"""What the golden tests are written with: tables and Z-sets as text, and an engine without random choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import dedent
from typing import Any

from tests.support.plan_evaluator import PlanEvaluator
from tests.support.plan_evaluator_nodes import net_weights

from tautochrone.algebra.delta import NO_CHANGE, Change, Differentiator
from tautochrone.algebra.nodes import (
    WEIGHT,
    Aggregate,
    AggregateCall,
    AggregateFunction,
    ColumnId,
    Expand,
    Expression,
    FlatMap,
    Materialized,
    Node,
    Project,
    Rename,
    Scan,
    Select,
    TopK,
)
from tautochrone.algebra.rules import RULES

from .incremental_view import initial_states, with_changes
from .query_builders import columns_of

Rows = list[tuple[Any, ...]]


def check_delta_plan(
    query: Node, tables: Mapping[str, str], changes: Mapping[str, str], plan: str, result: str
) -> None:
    """Differentiate a query. Its delta plan must have this text, and computed it must give this Z-set.

    Args:
        query: over some of the tables.
        tables: before the change; a line is a row.
        changes: per table; a line is a row and its weight.
        plan: steps in the order in which the engine computes them; the last one is the change.
        result: the change of the query.
    """
    before = {table: _rows(text) for table, text in tables.items()}
    step = {table: [(row[:-1], row[-1]) for row in _rows(text)] for table, text in changes.items()}
    engine = StepRecorder(
        before=before,
        after=with_changes(before, step),
        changes=step,
        rules=RULES,
        states=initial_states(query, before),
    )
    context = Differentiator(engine, RULES, frozenset(engine.states))
    change = context.change(query)
    assert change.plan is not None
    text = "\n".join([*engine.steps, plan_text(change.plan, engine.names)])
    assert text == dedent(plan).strip("\n"), f"\n{text}"
    weights = net_weights(engine.rows(change.plan), query.columns)
    assert weights == {row[:-1]: row[-1] for row in _rows(result)}


@dataclass(slots=True)
class StepRecorder(PlanEvaluator):
    """Names what it materializes, and reads every table by key.

    Attributes:
        steps: the plans that were materialized, as text.
        names: by id of a node.
    """

    steps: list[str] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    results: list[Node] = field(default_factory=list)

    def materialize(self, plan: Node, *, may_be_large: bool = False) -> Materialized:
        rows = self.rows(plan)
        result = Materialized(columns=plan.columns, handle=rows, rows=len(rows))
        self._name(result, f"step{len(self.steps) + 1}")
        self.steps.append(f"{self.names[id(result)]} =\n{plan_text(plan, self.names)}")
        return result

    def change_of(self, scan: Scan) -> Change:
        zset = [{**self._selected(scan, row), WEIGHT: weight} for row, weight in self._change(scan.table)]
        if not zset:
            return NO_CHANGE
        plan = Materialized(columns=(*scan.columns, WEIGHT), handle=zset, rows=len(zset))
        self._name(plan, f"Δ{scan.table}")
        insert_only = all(row[WEIGHT] > 0 for row in zset)
        return Change(plan, insert_only, consolidated=True)

    def reads_many_rows(self, node: Node) -> bool:
        return False

    def reads_few_rows(self, node: Node) -> bool:
        return False

    def _name(self, node: Node, name: str) -> None:
        self.names[id(node)] = name
        self.results.append(node)


def aggregate(child: Node, keys: str, *calls: AggregateCall) -> Aggregate:
    """GROUP BY `keys`, with the state column `n` for the number of rows."""
    columns = (*columns_of(keys), *(call.output for call in calls))
    return Aggregate(
        columns=columns, child=child, keys=columns_of(keys), calls=calls, count=ColumnId("n"), number=0
    )


def call(
    function: AggregateFunction, argument: str, accumulators: str = "", handle: Any = None
) -> AggregateCall:
    """A call whose output has the name of the function."""
    return AggregateCall(
        output=ColumnId(str(function)),
        function=function,
        handle=handle,
        argument=Expression(lambda row: row[argument], frozenset(columns_of(argument)), argument),
        accumulators=columns_of(accumulators),
        text=f"{function}({argument})",
    )


def top(child: Node, order: str, limit: int) -> TopK:
    columns: Sequence[ColumnId] = (*columns_of(order), *child.columns)
    return TopK(
        columns=child.columns,
        child=child,
        order=lambda row: [row[column] for column in columns],
        limit=limit,
        offset=0,
        number=0,
        complete=ColumnId("complete"),
    )


def _rows(text: str) -> Rows:
    """A line is a row; its values are numbers, NULL, lists such as [1,2], or words."""
    return [tuple(map(_value, line.split())) for line in text.splitlines() if line.strip()]


def _value(text: str) -> Any:
    if text == "NULL":
        return None
    if text.startswith("["):
        return tuple(int(item) for item in text[1:-1].split(",") if item)
    return int(text) if text.lstrip("+-").isdigit() else text


# -- plans as text ---------------------------------------------------------------------------------------


def plan_text(plan: Node, names: Mapping[int, str]) -> str:
    """Any plan, delta plans included, as an indented tree: class, description, children.

    Args:
        plan: of any nodes.
        names: shorthand by `id` of a node; what is below such a node is left out.
    """
    return "\n".join(_plan_lines(plan, names, ""))


def _plan_lines(plan: Node, names: Mapping[int, str], indent: str) -> list[str]:
    if id(plan) in names:
        return [indent + names[id(plan)]]
    description = plan.describe() or _columns_text(plan)
    lines = [indent + type(plan).__name__ + (f" {description}" if description else "")]
    for child in plan.children:
        lines += _plan_lines(child, names, indent + "  ")
    return lines


def _columns_text(plan: Node) -> str:
    """The output columns of a node that selects or computes columns."""
    if not isinstance(plan, Expand | FlatMap | Project | Rename | Select):
        return ""
    return ", ".join(column for column in plan.columns if column != WEIGHT)

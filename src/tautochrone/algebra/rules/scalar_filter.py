"""Filters that compare with a scalar subquery (RisingWave's dynamic filter).

When the value of the scalar q changes, only rows change for which the condition has another outcome:

    Δσ(A; q) = σ(ΔA; q_after) + (rows of A_before for which σ(q_after) ≠ σ(q_before))

`WHERE v > (SELECT avg(w) FROM b)`, whose value falls from 4 to 2; A was `a 1`, `b 3`, `c 5`:

    ΔA         Δσ(A)
    d 9 +1     d 9 +1
               b 3 +1
"""

from __future__ import annotations

from typing import Any

from tautochrone.algebra.delta import Bag, Change, Differentiator, zset_columns
from tautochrone.algebra.nodes import (
    ColumnId,
    Filter,
    Join,
    JoinKind,
    Materialized,
    Node,
    PredicateChange,
    ScalarFilter,
    Select,
)
from tautochrone.algebra.rules.union import sum_changes
from tautochrone.errors import RefreshError
from tautochrone.model.checkpoint import RefreshMode

__all__ = ["ScalarFilterRule"]


class ScalarFilterRule:
    """The rule of `ScalarFilter`; the module has the formula and an example."""

    def evaluate(self, node: ScalarFilter, rows: Bag, *scalars: Bag) -> list[dict[ColumnId, Any]]:
        values: dict[ColumnId, Any] = {}
        for scalar, bag in zip(node.scalars, scalars, strict=True):
            if len(bag) > 1:
                raise ValueError("a scalar subquery gave more than one row")
            values.update(bag[0] if bag else dict.fromkeys(scalar.columns))
        return [dict(row) for row in rows if node.condition.handle({**row, **values})]

    def change(self, node: ScalarFilter, context: Differentiator) -> Change:
        columns = zset_columns(node.columns)
        after = tuple(_scalar(context.rows_after(scalar), context) for scalar in node.scalars)
        changes = []
        child = context.change(node.child)
        if child.plan is not None:
            rows: Node = child.plan
            for scalar in after:
                both = (*rows.columns, *scalar.columns)
                rows = Join(columns=both, left=rows, right=scalar, kind=JoinKind.SCALAR)
            passing = Filter(columns=rows.columns, child=rows, condition=node.condition)
            changes.append(Change(Select(columns=columns, child=passing), child.insert_only))
        if any(_has_other_value(scalar, node, context) for scalar in node.scalars):
            before = tuple(_scalar(context.rows_before(scalar), context) for scalar in node.scalars)
            predicate_change = PredicateChange(
                columns=columns,
                child=context.rows_before(node.child),
                condition=node.condition,
                before=before,
                after=after,
            )
            changes.append(Change(predicate_change, insert_only=False))
        return sum_changes(node.columns, changes)

    def mode(self, node: ScalarFilter) -> tuple[RefreshMode, str]:
        return RefreshMode.INCREMENTAL, "rows for which the comparison with the scalar changes"


def _has_other_value(scalar: Node, node: ScalarFilter, context: Differentiator) -> bool:
    """Whether the rows of the filter's child must be read because of a scalar.

    A scalar whose inputs changed may have the same value as before. To know that takes one more step, which
    is worth it unless the child has few rows.
    """
    if context.engine.reads_few_rows(context.rows_before(node.child)):
        return bool(context.change(scalar))
    return bool(context.materialized_change(scalar, consolidated=True))


def _scalar(subquery: Node, context: Differentiator) -> Materialized:
    """The result of a scalar subquery, computed."""
    result = context.engine.materialize(subquery)
    if result.rows > 1:
        raise RefreshError(
            "SCALAR_SUBQUERY_TOO_MANY_ROWS",
            "More than one row returned by a subquery used as an expression",
            sqlstate="21000",
            hint="aggregate in the subquery, or make its condition unique",
        )
    return result

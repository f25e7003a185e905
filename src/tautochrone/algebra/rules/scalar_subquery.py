"""Filters that compare with a scalar subquery.

When the scalar moves, only rows change for which the outcome turns (RisingWave's dynamic filter):
Δ = σ(ΔX; q₁) + rows of X₀ whose outcome differs between q₀ and q₁.
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
from tautochrone.model.refresh import RefreshMode

__all__ = ["ScalarFilterRule"]


class ScalarFilterRule:
    """See the module."""

    def evaluate(self, node: ScalarFilter, rows: Bag, *scalars: Bag) -> list[dict[ColumnId, Any]]:
        values: dict[ColumnId, Any] = {}
        for scalar, bag in zip(node.scalars, scalars, strict=True):
            if len(bag) > 1:
                raise ValueError("a scalar subquery gave more than one row")
            values.update(bag[0] if bag else dict.fromkeys(scalar.columns))
        return [dict(row) for row in rows if node.condition.handle({**row, **values})]

    def change(self, node: ScalarFilter, at: Differentiator) -> Change:
        after = tuple(_only(at.engine.materialize(at.rows_after(scalar))) for scalar in node.scalars)
        parts = []
        child = at.change(node.child)
        if child.plan is not None:
            rows: Node = child.plan
            for scalar in after:
                columns = (*rows.columns, *scalar.columns)
                rows = Join(columns=columns, left=rows, right=scalar, kind=JoinKind.SCALAR)
            chosen = Filter(columns=rows.columns, child=rows, condition=node.condition)
            parts.append(Change(Select(columns=zset_columns(node.columns), child=chosen), child.insert_only))
        if any(at.change(scalar) for scalar in node.scalars):
            before = tuple(_only(at.engine.materialize(at.rows_before(scalar))) for scalar in node.scalars)
            flip = PredicateChange(
                columns=zset_columns(node.columns),
                child=at.rows_before(node.child),
                condition=node.condition,
                before=before,
                after=after,
            )
            parts.append(Change(flip, insert_only=False))
        return sum_changes(node.columns, parts)

    def mode(self, node: ScalarFilter) -> tuple[RefreshMode, str]:
        return RefreshMode.INCREMENTAL, "rows whose comparison with the scalar turns"


def _only(kept: Materialized) -> Materialized:
    if kept.rows > 1:
        raise RefreshError(
            "SCALAR_SUBQUERY_TOO_MANY_ROWS",
            "More than one row returned by a subquery used as an expression",
            sqlstate="21000",
            hint="aggregate in the subquery, or make its condition unique",
        )
    return kept

"""Expand: each row once per grouping set. A union of projections of one input is linear.

    Δ(π₁(A) ∪ π₂(A)) = π₁(ΔA) ∪ π₂(ΔA)

`GROUPING SETS ((k), ())`:

    ΔA         ΔE(A)
    a 1 -1     a 1 -1, NULL 1 -1
    b 2 +1     b 2 +1, NULL 2 +1
    b 3 +1     b 3 +1, NULL 3 +1
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tautochrone.algebra.delta import Bag, Change, Differentiator, zset_columns
from tautochrone.algebra.nodes import ColumnId, Expand
from tautochrone.model.checkpoint import RefreshMode

__all__ = ["ExpandRule"]


class ExpandRule:
    """The rule of `Expand`; the module has the formula and an example."""

    def evaluate(self, node: Expand, rows: Bag) -> list[dict[ColumnId, Any]]:
        return [
            {
                column: row[column] if expression is None else expression.handle(row)
                for column, expression in zip(node.columns, projection, strict=True)
            }
            for row in rows
            for projection in node.projections
        ]

    def change(self, node: Expand, context: Differentiator) -> Change:
        child = context.change(node.child)
        assert child.plan is not None
        projections = tuple((*projection, None) for projection in node.projections)
        plan = replace(node, columns=zset_columns(node.columns), child=child.plan, projections=projections)
        return Change(plan, child.insert_only)

    def mode(self, node: Expand) -> tuple[RefreshMode, str]:
        return RefreshMode.APPEND, "grouping sets of the change"

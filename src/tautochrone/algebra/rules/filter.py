"""Filter: a linear operator is its own derivative.

    Δσ(A) = σ(ΔA)

`WHERE v > 1`; A was `a 1`, `b 2`:

    ΔA         Δσ(A)
    a 1 -1
    b 2 -1     b 2 -1
    b 3 +1     b 3 +1
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tautochrone.algebra.delta import Bag, Change, Differentiator, zset_columns
from tautochrone.algebra.nodes import ColumnId, Filter
from tautochrone.model.checkpoint import RefreshMode

__all__ = ["FilterRule"]


class FilterRule:
    """The rule of `Filter`; the module has the formula and an example."""

    def evaluate(self, node: Filter, rows: Bag) -> list[dict[ColumnId, Any]]:
        return [dict(row) for row in rows if node.condition.handle(row)]

    def change(self, node: Filter, context: Differentiator) -> Change:
        child = context.change(node.child)
        assert child.plan is not None
        plan = replace(node, columns=zset_columns(node.columns), child=child.plan)
        return Change(plan, child.insert_only, child.consolidated)

    def mode(self, node: Filter) -> tuple[RefreshMode, str]:
        return RefreshMode.APPEND, "filter of the change"

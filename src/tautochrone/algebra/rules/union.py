"""Union: UNION ALL adds bags, so the change is the sum of the changes.

    Δ(A ∪ B) = ΔA ∪ ΔB

`A UNION ALL B`; A was `a`, B was empty. Row `a` has both weights: the result is not consolidated.

    ΔA       ΔB       Δ(A ∪ B)
    a -1     a +1     a -1, a +1
    b +1              b +1
"""

from __future__ import annotations

from typing import Any

from tautochrone.algebra.delta import NO_CHANGE, Bag, Change, Differentiator, zset_columns
from tautochrone.algebra.nodes import ColumnId, Select, Union
from tautochrone.model.checkpoint import RefreshMode

__all__ = ["UnionRule", "sum_changes"]


class UnionRule:
    """The rule of `Union`; the module has the formula and an example."""

    def evaluate(self, node: Union, *inputs: Bag) -> list[dict[ColumnId, Any]]:
        return [{column: row[column] for column in node.columns} for rows in inputs for row in rows]

    def change(self, node: Union, context: Differentiator) -> Change:
        return sum_changes(node.columns, [context.change(child) for child in node.inputs])

    def mode(self, node: Union) -> tuple[RefreshMode, str]:
        return RefreshMode.APPEND, "union of the changes"


def sum_changes(columns: tuple[ColumnId, ...], changes: list[Change]) -> Change:
    """The sum of changes that have these columns, in any order."""
    with_weight = zset_columns(columns)
    plans = [
        change.plan if change.plan.columns == with_weight else Select(columns=with_weight, child=change.plan)
        for change in changes
        if change.plan is not None
    ]
    if not plans:
        return NO_CHANGE
    whole = plans[0] if len(plans) == 1 else Union(columns=with_weight, inputs=tuple(plans))
    return Change(whole, insert_only=all(change.insert_only for change in changes))

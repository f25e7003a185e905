"""FlatMap: the engine's row-by-row operators, such as explode and Python functions.

    Δf(A) = f(ΔA), each generated row with the weight of its source row

`explode(list)`:

    ΔA               Δf(A)
    a [1, 2] -1      a 1 -1, a 2 -1
    a [2] +1         a 2 +1
    b [] +1
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tautochrone.algebra.delta import Bag, Change, Differentiator, zset_columns
from tautochrone.algebra.nodes import ColumnId, FlatMap
from tautochrone.model.checkpoint import RefreshMode

__all__ = ["FlatMapRule"]


class FlatMapRule:
    """The rule of `FlatMap`; the module has the formula and an example."""

    def evaluate(self, node: FlatMap, rows: Bag) -> list[dict[ColumnId, Any]]:
        return [
            {**{column: row[column] for column in node.passed}, **generated}
            for row in rows
            for generated in node.handle(row)
        ]

    def change(self, node: FlatMap, context: Differentiator) -> Change:
        child = context.change(node.child)
        assert child.plan is not None
        columns, passed = zset_columns(node.columns), zset_columns(node.passed)
        return Change(replace(node, columns=columns, child=child.plan, passed=passed), child.insert_only)

    def mode(self, node: FlatMap) -> tuple[RefreshMode, str]:
        return RefreshMode.APPEND, "row by row over the change"

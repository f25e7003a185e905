"""Window functions: partitions that changed are recomputed, before and after.

    Δw(A) = w(A_after ⋉ K) - w(A_before ⋉ K), K the partition keys in ΔA

`row_number() OVER (PARTITION BY k ORDER BY v)`; A was `a 5`, `b 6`:

    ΔA         K     Δw(A)
    a 1 +1     a     a 5 1 -1
                     a 1 1 +1
                     a 5 2 +1
"""

from __future__ import annotations

from typing import Any

from tautochrone.algebra.delta import Bag, Change, Differentiator
from tautochrone.algebra.nodes import ColumnId, Window, plural
from tautochrone.algebra.rules.changed_groups import few_rows_at_most, recompute_changed_groups
from tautochrone.model.refresh import RefreshMode

__all__ = ["WindowRule"]


class WindowRule:
    """The rule of `Window`; the module has the formula and an example.

    The order in a partition is total, because the engine breaks ties by all columns. So the same rows always
    give the same result.
    """

    def evaluate(self, node: Window, rows: Bag) -> list[dict[ColumnId, Any]]:
        partitions: dict[tuple[Any, ...], list[Any]] = {}
        for row in rows:
            partitions.setdefault(tuple(row[column] for column in node.partition), []).append(row)
        return [row for partition in partitions.values() for row in node.handle(partition)]

    def change(self, node: Window, context: Differentiator) -> Change:
        return recompute_changed_groups(node, node.partition, context)

    def mode(self, node: Window) -> tuple[RefreshMode, str]:
        if not node.partition and (rows := few_rows_at_most(node.child)) is not None:
            return RefreshMode.INCREMENTAL, f"window without PARTITION BY over at most {plural(rows, 'row')}"
        if not node.partition:
            return RefreshMode.DIFF, "window without PARTITION BY: every row may change"
        return RefreshMode.INCREMENTAL, "partitions that changed"

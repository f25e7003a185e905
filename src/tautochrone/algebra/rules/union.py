"""Union: bags added up."""

from __future__ import annotations

from typing import Any

from tautochrone.algebra.delta import Bag, Change, Differentiator, zset_columns
from tautochrone.algebra.nodes import ColumnId, Select, Union
from tautochrone.model.refresh import RefreshMode

__all__ = ["UnionRule", "sum_changes"]


class UnionRule:
    """Δ(A ∪ B) = ΔA ∪ ΔB."""

    def evaluate(self, node: Union, *inputs: Bag) -> list[dict[ColumnId, Any]]:
        return [{column: row[column] for column in node.columns} for rows in inputs for row in rows]

    def change(self, node: Union, at: Differentiator) -> Change:
        return sum_changes(node.columns, [at.change(child) for child in node.inputs])

    def mode(self, node: Union) -> tuple[RefreshMode, str]:
        return RefreshMode.APPEND, "union of the changes"


def sum_changes(columns: tuple[ColumnId, ...], changes: list[Change]) -> Change:
    """Changes of the same columns added up."""
    wanted = zset_columns(columns)
    parts = [
        change.plan if change.plan.columns == wanted else Select(columns=wanted, child=change.plan)
        for change in changes
        if change.plan is not None
    ]
    if not parts:
        return Change(None)
    insert_only = all(change.insert_only for change in changes)
    return Change(parts[0] if len(parts) == 1 else Union(columns=wanted, inputs=tuple(parts)), insert_only)

"""Project, Select and Rename: expressions of one row each."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from tautochrone.algebra.delta import Bag, Change, Differentiator, zset_columns
from tautochrone.algebra.nodes import ColumnId, Project, Rename, Select, Unary
from tautochrone.model.refresh import RefreshMode

__all__ = ["ProjectRule", "RenameRule", "SelectRule"]


class ProjectRule:
    """Δπ(X) = π(ΔX), the weight carried through."""

    def evaluate(self, node: Project, rows: Bag) -> list[dict[ColumnId, Any]]:
        pairs = list(zip(node.columns, node.expressions, strict=True))
        return [{c: row[c] if e is None else e.handle(row) for c, e in pairs} for row in rows]

    def change(self, node: Project, at: Differentiator) -> Change:
        child = at.change(node.child)
        assert child.plan is not None
        expressions = (*node.expressions, None)
        plan = replace(node, columns=zset_columns(node.columns), child=child.plan, expressions=expressions)
        pairs = zip(node.columns, node.expressions, strict=True)
        passed = [column if e is None else e.passes for column, e in pairs]
        return Change(plan, child.insert_only, child.consolidated and _whole(node, passed))

    def mode(self, node: Project) -> tuple[RefreshMode, str]:
        return RefreshMode.APPEND, "projection of the change"


class SelectRule:
    """A projection that only leaves columns out."""

    def evaluate(self, node: Select, rows: Bag) -> list[dict[ColumnId, Any]]:
        return [{column: row[column] for column in node.columns} for row in rows]

    def change(self, node: Select, at: Differentiator) -> Change:
        child = at.change(node.child)
        assert child.plan is not None
        plan = Select(columns=zset_columns(node.columns), child=child.plan)
        return Change(plan, child.insert_only, child.consolidated and _whole(node, node.columns))

    def mode(self, node: Select) -> tuple[RefreshMode, str]:
        return RefreshMode.APPEND, "columns of the change"


class RenameRule:
    """A projection that only gives columns other ids."""

    def evaluate(self, node: Rename, rows: Bag) -> list[dict[ColumnId, Any]]:
        pairs = list(zip(node.columns, node.sources, strict=True))
        return [{column: row[source] for column, source in pairs} for row in rows]

    def change(self, node: Rename, at: Differentiator) -> Change:
        child = at.change(node.child)
        assert child.plan is not None
        plan = Rename(
            columns=zset_columns(node.columns), child=child.plan, sources=zset_columns(node.sources)
        )
        return Change(plan, child.insert_only, child.consolidated and _whole(node, node.sources))

    def mode(self, node: Rename) -> tuple[RefreshMode, str]:
        return RefreshMode.APPEND, "columns of the change"


def _whole(node: Unary, passed: Collection[ColumnId | None]) -> bool:
    """Whether rows that differ still differ: every column of the child is passed on."""
    return set(node.child.columns) <= set(passed)

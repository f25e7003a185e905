"""Projections: linear, so each row of the change is projected and keeps its weight.

    Δπ(A) = π(ΔA)

`SELECT k`; the result is not consolidated, because rows that differed may be equal now:

    ΔA         Δπ(A)
    a 1 -1     a -1
    a 2 +1     a +1
    b 3 +1     b +1
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from tautochrone.algebra.delta import Bag, Change, Differentiator, zset_columns
from tautochrone.algebra.nodes import ColumnId, Project, Rename, Select, Unary
from tautochrone.model.checkpoint import RefreshMode

__all__ = ["ProjectRule", "RenameRule", "SelectRule"]


class ProjectRule:
    """Computes new columns: each row of ΔA is projected and keeps its weight."""

    def evaluate(self, node: Project, rows: Bag) -> list[dict[ColumnId, Any]]:
        pairs = list(zip(node.columns, node.expressions, strict=True))
        return [{c: row[c] if e is None else e.handle(row) for c, e in pairs} for row in rows]

    def change(self, node: Project, context: Differentiator) -> Change:
        child = context.change(node.child)
        assert child.plan is not None
        expressions = (*node.expressions, None)
        plan = replace(node, columns=zset_columns(node.columns), child=child.plan, expressions=expressions)
        return _projected(node, child, plan, passed=node.key_origin.values())

    def mode(self, node: Project) -> tuple[RefreshMode, str]:
        return RefreshMode.APPEND, "projection of the change"


class SelectRule:
    """Leaves columns out. Rows of ΔA may become equal, as `a 1 -1` and `a 2 +1` by `SELECT k`."""

    def evaluate(self, node: Select, rows: Bag) -> list[dict[ColumnId, Any]]:
        return [{column: row[column] for column in node.columns} for row in rows]

    def change(self, node: Select, context: Differentiator) -> Change:
        child = context.change(node.child)
        assert child.plan is not None
        plan = Select(columns=zset_columns(node.columns), child=child.plan)
        return _projected(node, child, plan, passed=node.columns)

    def mode(self, node: Select) -> tuple[RefreshMode, str]:
        return RefreshMode.APPEND, "columns of the change"


class RenameRule:
    """Gives columns other ids: Δρ(A) = ρ(ΔA)."""

    def evaluate(self, node: Rename, rows: Bag) -> list[dict[ColumnId, Any]]:
        pairs = list(zip(node.columns, node.sources, strict=True))
        return [{column: row[source] for column, source in pairs} for row in rows]

    def change(self, node: Rename, context: Differentiator) -> Change:
        child = context.change(node.child)
        assert child.plan is not None
        plan = Rename(
            columns=zset_columns(node.columns), child=child.plan, sources=zset_columns(node.sources)
        )
        return _projected(node, child, plan, passed=node.sources)

    def mode(self, node: Rename) -> tuple[RefreshMode, str]:
        return RefreshMode.APPEND, "columns of the change"


def _projected(node: Unary, child: Change, plan: Unary, *, passed: Collection[ColumnId]) -> Change:
    """The change of a projection that passes the child's columns `passed` on. If it passes on all columns,
    different rows stay different, so a consolidated change stays consolidated."""
    is_injective = set(node.child.columns) <= set(passed)
    return Change(plan, child.insert_only, child.consolidated and is_injective)

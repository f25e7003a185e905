"""The rules of operators that work row by row. They are linear: the change is the result over the change."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any, ClassVar

from tautochrone.algebra.delta import NO_CHANGE, Bag, Change, Differentiator, zset_columns
from tautochrone.algebra.nodes import ColumnId, Expand, Filter, FlatMap, Project, Rename, Select, Unary, Union
from tautochrone.model.checkpoint import RefreshMode

__all__ = [
    "ExpandRule",
    "FilterRule",
    "FlatMapRule",
    "ProjectRule",
    "RenameRule",
    "SelectRule",
    "UnionRule",
    "sum_changes",
]


class FilterRule:
    """Filter: a linear operator is its own derivative.

        Δσ(A) = σ(ΔA)

    `WHERE v > 1`; A was `a 1`, `b 2`:

        ΔA         Δσ(A)
        a 1 -1
        b 2 -1     b 2 -1
        b 3 +1     b 3 +1
    """

    node_type: ClassVar = Filter

    def evaluate(self, node: Filter, rows: Bag) -> list[dict[ColumnId, Any]]:
        return [dict(row) for row in rows if node.condition.handle(row)]

    def change(self, node: Filter, context: Differentiator) -> Change:
        child = context.change(node.child)
        assert child.plan is not None
        plan = replace(node, columns=zset_columns(node.columns), child=child.plan)
        return Change(plan, child.insert_only, child.consolidated)

    def mode(self, node: Filter) -> tuple[RefreshMode, str]:
        return RefreshMode.APPEND, "filter of the change"


class ProjectRule:
    """Project computes new columns: linear, so each row of the change is projected and keeps its weight.

        Δπ(A) = π(ΔA)

    `SELECT k`; the result is not consolidated, because rows that differed may be equal now:

        ΔA         Δπ(A)
        a 1 -1     a -1
        a 2 +1     a +1
        b 3 +1     b +1
    """

    node_type: ClassVar = Project

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
    """Select leaves columns out: Δπ(A) = π(ΔA). Rows of ΔA may become equal: `a 1 -1` and `a 2 +1`."""

    node_type: ClassVar = Select

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
    """Rename gives columns other ids: Δρ(A) = ρ(ΔA)."""

    node_type: ClassVar = Rename

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


class UnionRule:
    """Union: UNION ALL adds bags, so the change is the sum of the changes.

        Δ(A ∪ B) = ΔA ∪ ΔB

    `A UNION ALL B`; A was `a`, B was empty. Row `a` has both weights: the result is not consolidated.

        ΔA       ΔB       Δ(A ∪ B)
        a -1     a +1     a -1, a +1
        b +1              b +1
    """

    node_type: ClassVar = Union

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


class FlatMapRule:
    """FlatMap: the engine's row-by-row operators, such as explode and Python functions.

        Δf(A) = f(ΔA), each generated row with the weight of its source row

    `explode(list)`:

        ΔA               Δf(A)
        a [1, 2] -1      a 1 -1, a 2 -1
        a [2] +1         a 2 +1
        b [] +1
    """

    node_type: ClassVar = FlatMap

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


class ExpandRule:
    """Expand: each row once per grouping set. A union of projections of one input is linear.

        Δ(π₁(A) ∪ π₂(A)) = π₁(ΔA) ∪ π₂(ΔA)

    `GROUPING SETS ((k), ())`:

        ΔA         ΔE(A)
        a 1 -1     a 1 -1, NULL 1 -1
        b 2 +1     b 2 +1, NULL 2 +1
        b 3 +1     b 3 +1, NULL 3 +1
    """

    node_type: ClassVar = Expand

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

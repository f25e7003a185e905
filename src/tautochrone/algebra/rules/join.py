"""Joins of every kind. An outer join is an inner join and the null-extended rows without a partner.

    Δ(A ⟕ B) = Δ(A ⋈ B) + null-extended Δ(A ▷ B)
    Δ(A ⟗ B) = Δ(A ⋈ B) + null-extended Δ(A ▷ B) + null-extended Δ(B ▷ A)

`A LEFT JOIN B` on k; A was `a`, B was empty:

    ΔA       ΔB         Δ(A ⋈ B)     Δ(A ▷ B)     Δ(A ⟕ B)
    b +1     a x +1     a x +1       a -1         a x +1
                                     b +1         a NULL -1
                                                  b NULL +1
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tautochrone.algebra.delta import Bag, Change, Differentiator, Row, zset_columns
from tautochrone.algebra.nodes import ColumnId, Join, JoinKind, NullExtend
from tautochrone.algebra.rules.inner_join import inner_join_change
from tautochrone.algebra.rules.semi_join import semi_join_change
from tautochrone.algebra.rules.union import sum_changes
from tautochrone.model.checkpoint import RefreshMode

__all__ = ["JoinRule"]

_REASONS = {
    JoinKind.INNER: "one term per changed input",
    JoinKind.LEFT: "inner join, and left rows that gained or lost their partners",
    JoinKind.FULL: "inner join, and rows of both sides that gained or lost their partners",
    JoinKind.SEMI: "left rows that gained or lost partners",
    JoinKind.ANTI: "left rows that gained or lost partners",
    JoinKind.EXISTENCE: "left rows that gained or lost partners",
    JoinKind.SCALAR: "all left rows when the scalar changes",
}


class JoinRule:
    """All kinds of joins. The module has the outer ones; see also `inner_join` and `semi_join`."""

    def evaluate(self, node: Join, left: Bag, right: Bag) -> list[dict[ColumnId, Any]]:
        if node.kind is JoinKind.SCALAR and len(right) > 1:
            raise ValueError("a scalar subquery gave more than one row")
        rows: list[dict[ColumnId, Any]] = []
        matched: set[int] = set()
        for row in left:
            partners = [number for number, right_row in enumerate(right) if _matches(node, row, right_row)]
            matched.update(partners)
            match node.kind:
                case JoinKind.SEMI:
                    rows.extend([dict(row)] if partners else [])
                case JoinKind.ANTI:
                    rows.extend([] if partners else [dict(row)])
                case JoinKind.EXISTENCE:
                    assert node.exists is not None
                    rows.append({**row, node.exists: bool(partners)})
                case _:
                    rows.extend({**row, **right[number]} for number in partners)
                    if not partners and node.kind is not JoinKind.INNER:
                        rows.append({**row, **dict.fromkeys(node.right.columns)})
        if node.kind is JoinKind.FULL:
            nulls = dict.fromkeys(node.left.columns)
            rows.extend({**nulls, **row} for number, row in enumerate(right) if number not in matched)
        return rows

    def change(self, node: Join, context: Differentiator) -> Change:
        match node.kind:
            case JoinKind.INNER:
                return inner_join_change(node, context)
            case JoinKind.LEFT:
                changes = [_inner_change(node, context), _unmatched_change(node, context)]
                return sum_changes(node.columns, changes)
            case JoinKind.FULL:
                keys = tuple(key.swapped() for key in node.keys)
                swapped = replace(node, left=node.right, right=node.left, keys=keys)
                changes = [
                    _inner_change(node, context),
                    _unmatched_change(node, context),
                    _unmatched_change(swapped, context),
                ]
                return sum_changes(node.columns, changes)
            case _:
                return semi_join_change(node, context)

    def mode(self, node: Join) -> tuple[RefreshMode, str]:
        return RefreshMode.INCREMENTAL, f"{node.kind} join: {_REASONS[node.kind]}"


def _matches(node: Join, left: Row, right: Row) -> bool:
    for key in node.keys:
        a, b = left[key.left], right[key.right]
        if (a is None or b is None) and not (key.null_safe and a is b):
            return False
        if a != b:
            return False
    both = {**left, **right}
    return all(condition.handle(both) for condition in node.conditions)


def _inner_change(node: Join, context: Differentiator) -> Change:
    columns = (*node.left.columns, *node.right.columns)
    return inner_join_change(replace(node, columns=columns, kind=JoinKind.INNER), context)


def _unmatched_change(node: Join, context: Differentiator) -> Change:
    """The change of the left rows without a partner, with NULLs for the right side."""
    left, right = node.left, node.right
    change = semi_join_change(replace(node, columns=left.columns, kind=JoinKind.ANTI), context)
    if change.plan is None:
        return change
    columns = zset_columns((*left.columns, *right.columns))
    plan = NullExtend(columns=columns, child=change.plan, nulls=right.columns, like=right)
    return Change(plan, change.insert_only)

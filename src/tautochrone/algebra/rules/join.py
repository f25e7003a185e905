"""Joins of every kind. Outer ones are an inner join and the rows without a partner, padded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tautochrone.algebra.delta import Bag, Change, Differentiator, Row, zset_columns
from tautochrone.algebra.nodes import ColumnId, Join, JoinKey, JoinKind, Node, NullExtend
from tautochrone.algebra.rules.inner_join import inner_join_change
from tautochrone.algebra.rules.semi_join import semi_join_change
from tautochrone.algebra.rules.union import sum_changes
from tautochrone.model.refresh import RefreshMode

__all__ = ["JoinRule"]

_WORDS = {
    JoinKind.INNER: "terms of the changed inputs",
    JoinKind.LEFT: "inner terms, and padded rows whose partners came or went",
    JoinKind.FULL: "inner terms, and padded rows of both sides whose partners came or went",
    JoinKind.SEMI: "left rows whose partners came or went",
    JoinKind.ANTI: "left rows whose partners came or went",
    JoinKind.EXISTENCE: "left rows whose partners came or went",
    JoinKind.SCALAR: "all left rows when the scalar changes",
}


class JoinRule:
    """See `inner` and `half` for the two halves of it."""

    def evaluate(self, node: Join, left: Bag, right: Bag) -> list[dict[ColumnId, Any]]:
        if node.kind is JoinKind.SCALAR and len(right) > 1:
            raise ValueError("a scalar subquery gave more than one row")
        found: list[dict[ColumnId, Any]] = []
        met: set[int] = set()
        for row in left:
            partners = [place for place, other in enumerate(right) if _holds(node, row, other)]
            met.update(partners)
            match node.kind:
                case JoinKind.SEMI:
                    found.extend([dict(row)] if partners else [])
                case JoinKind.ANTI:
                    found.extend([] if partners else [dict(row)])
                case JoinKind.EXISTENCE:
                    assert node.exists is not None
                    found.append({**row, node.exists: bool(partners)})
                case _:
                    found.extend({**row, **right[place]} for place in partners)
                    if not partners and node.kind is not JoinKind.INNER:
                        found.append({**row, **dict.fromkeys(node.right.columns)})
        if node.kind is JoinKind.FULL:
            nothing = dict.fromkeys(node.left.columns)
            found.extend({**nothing, **row} for place, row in enumerate(right) if place not in met)
        return found

    def change(self, node: Join, at: Differentiator) -> Change:
        match node.kind:
            case JoinKind.INNER:
                return inner_join_change(node, at)
            case JoinKind.LEFT:
                return sum_changes(node.columns, [_inner(node, at), _left_alone(node, at)])
            case JoinKind.FULL:
                turned = replace(
                    node, left=node.right, right=node.left, keys=tuple(_turned(key) for key in node.keys)
                )
                parts = [_inner(node, at), _left_alone(node, at), _left_alone(turned, at)]
                return sum_changes(node.columns, parts)
            case _:
                return semi_join_change(node, at)

    def mode(self, node: Join) -> tuple[RefreshMode, str]:
        return RefreshMode.INCREMENTAL, f"{node.kind} join: {_WORDS[node.kind]}"


def _holds(node: Join, left: Row, right: Row) -> bool:
    for key in node.keys:
        a, b = left[key.left], right[key.right]
        if (a is None or b is None) and not (key.null_safe and a is b):
            return False
        if a != b:
            return False
    both = {**left, **right}
    return all(condition.handle(both) for condition in node.condition)


def _turned(key: JoinKey) -> JoinKey:
    return JoinKey(left=key.right, right=key.left, null_safe=key.null_safe)


def _inner(node: Join, at: Differentiator) -> Change:
    columns = (*node.left.columns, *node.right.columns)
    return inner_join_change(replace(node, columns=columns, kind=JoinKind.INNER), at)


def _left_alone(node: Join, at: Differentiator) -> Change:
    """The change of the left rows without a partner, padded to the join's columns."""
    alone = replace(node, columns=node.left.columns, kind=JoinKind.ANTI)
    found = semi_join_change(alone, at)
    if found.plan is None:
        return found
    return Change(_padded(found.plan, node.left, node.right), found.insert_only)


def _padded(change: Node, left: Node, right: Node) -> NullExtend:
    return NullExtend(
        columns=zset_columns((*left.columns, *right.columns)), child=change, nulls=right.columns, like=right
    )

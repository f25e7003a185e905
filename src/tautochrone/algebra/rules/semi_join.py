"""Joins whose output has each left row at most once: semi, anti (also null-aware), existence, scalar.

For a fixed right side they are linear in the left one. A change of the right side affects only left rows
that a changed right row could join; these are joined with both versions of the right side:

    Δ(A ⋉ B) = ΔA ⋉ B_after + (A' ⋉ B_after) - (A' ⋉ B_before), A' = A_before ⋉ ΔB

`A ▷ B` (anti) on k; A was `a`, `b` and B was `a`:

    ΔA       ΔB       A'      Δ(A ▷ B)
    c +1     a -1     a       c +1
             b +1     b       a +1
                              b -1

The condition may be anything, so NOT IN needs no case of its own: a NULL on the right affects every left row
that it leaves undecided.
"""

from __future__ import annotations

from dataclasses import replace

from tautochrone.algebra.delta import Change, Differentiator, zset_columns
from tautochrone.algebra.nodes import Join, JoinKind, KeySemiJoin, Node, WithWeight
from tautochrone.algebra.pushdown import push_down_keys
from tautochrone.algebra.rules.join_graph import restrict_to_keys
from tautochrone.algebra.rules.union import sum_changes

__all__ = ["semi_join_change"]


def semi_join_change(node: Join, context: Differentiator) -> Change:
    """The change of a join that has each left row at most once."""
    # Every changed right row costs a lookup of left rows and two joins, so rows that cancel out are removed.
    left = context.materialized_change(node.left)
    right = context.materialized_change(node.right, consolidated=True)
    columns = zset_columns(node.columns)
    changes = []
    if left.plan is not None:
        rows = context.rows_after(node.right)
        if node.keys:
            on = [(key.right, key.left) for key in node.keys]
            rows = restrict_to_keys(rows, left.plan, on, node.keys, context)
        changes.append(Change(replace(node, columns=columns, left=left.plan, right=rows), left.insert_only))
    if right.plan is not None:
        # Without keys one changed right row may affect every left row.
        affected = context.engine.materialize(
            _affected_rows(node, context.rows_before(node.left), right.plan, context),
            may_be_large=not node.keys and context.engine.reads_many_rows(node.left),
        )
        if affected.rows:
            for sign, rows in ((1, context.rows_after(node.right)), (-1, context.rows_before(node.right))):
                if node.keys:
                    on = [(key.right, key.right) for key in node.keys]
                    rows = restrict_to_keys(rows, right.plan, on, node.keys, context)
                joined = replace(node, left=affected, right=rows)
                plan = WithWeight(columns=columns, child=joined, sign=sign)
                changes.append(Change(plan, insert_only=False))
    return sum_changes(node.columns, changes)


def _affected_rows(node: Join, left: Node, right_change: Node, context: Differentiator) -> Node:
    """Left rows that some changed right row could join."""
    if node.keys:
        semi_join = KeySemiJoin(
            columns=left.columns,
            child=left,
            keys=right_change,
            on=tuple((key.left, key.right) for key in node.keys),
            null_safe=any(key.null_safe for key in node.keys),
        )
        return push_down_keys(semi_join, context.engine)
    if node.conditions:
        return Join(
            columns=left.columns,
            left=left,
            right=right_change,
            kind=JoinKind.SEMI,
            conditions=node.conditions,
        )
    return left

"""Joins that give left rows only: semi, anti (also null-aware), existence, scalar.

For a fixed right side they are linear in the left one. What a change of the right side does is asked
of the left rows that it can touch, once with the new right side and once with the old one:
Δ = J(ΔL; R₁) + J(L₀|ΔR; R₁) - J(L₀|ΔR; R₀). The condition may be anything, so NOT IN needs no case of its
own: a NULL on the right touches every left row that it leaves undecided.
"""

from __future__ import annotations

from dataclasses import replace

from tautochrone.algebra.delta import Change, Differentiator, zset_columns
from tautochrone.algebra.nodes import Join, JoinKind, KeySemiJoin, Node, WithWeight
from tautochrone.algebra.pushdown import push_down_keys
from tautochrone.algebra.rules.join_graph import restrict_to_keys
from tautochrone.algebra.rules.union import sum_changes

__all__ = ["semi_join_change"]


def semi_join_change(node: Join, at: Differentiator) -> Change:
    """The change of a join that gives left rows only."""
    # Left rows are looked for, and met twice, for each row of the right side's change.
    left, right = at.materialized_change(node.left), at.materialized_change(node.right, consolidated=True)
    parts = []
    if left.plan is not None:
        rows = at.rows_after(node.right)
        if node.keys:
            rows = restrict_to_keys(
                rows, left.plan, [(key.right, key.left) for key in node.keys], node.keys, at
            )
        plan = replace(node, columns=zset_columns(node.columns), left=left.plan, right=rows)
        parts.append(Change(plan, left.insert_only))
    if right.plan is not None:
        # Without keys one changed right row may affect every left row.
        touched = at.engine.materialize(
            _touched(node, at.rows_before(node.left), right.plan, at),
            may_be_large=not node.keys and at.engine.is_large(node.left),
        )
        if touched.rows:
            for sign, rows in ((1, at.rows_after(node.right)), (-1, at.rows_before(node.right))):
                if node.keys:
                    on = [(key.right, key.right) for key in node.keys]
                    rows = restrict_to_keys(rows, right.plan, on, node.keys, at)
                plan = replace(node, left=touched, right=rows)
                signed_plan = WithWeight(columns=zset_columns(node.columns), child=plan, sign=sign)
                parts.append(Change(signed_plan, insert_only=False))
    return sum_changes(node.columns, parts)


def _touched(node: Join, left: Node, change: Node, at: Differentiator) -> Node:
    """Left rows that some changed right row could join."""
    if node.keys:
        asked = KeySemiJoin(
            columns=left.columns,
            child=left,
            keys=change,
            on=tuple((key.left, key.right) for key in node.keys),
            null_safe=any(key.null_safe for key in node.keys),
        )
        return push_down_keys(asked, at.engine)
    if node.condition:
        return Join(
            columns=left.columns,
            left=left,
            right=change,
            kind=JoinKind.SEMI,
            condition=node.condition,
        )
    return left

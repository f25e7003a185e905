"""Joins that give left rows only: semi, anti (also null-aware), existence, scalar.

For a fixed right side they are linear in the left one. What a change of the right side does is asked
of the left rows that it can touch, once with the new right side and once with the old one:
Δ = J(ΔL; R₁) + J(L₀|ΔR; R₁) - J(L₀|ΔR; R₀). The condition may be anything, so NOT IN needs no case of its
own: a NULL on the right touches every left row that it leaves undecided.
"""

from __future__ import annotations

from dataclasses import replace

from tautochrone.algebra.delta import Change, Differentiator, signed
from tautochrone.algebra.plan import Join, JoinKind, Matching, Node, Weigh
from tautochrone.algebra.pushdown import pushed
from tautochrone.algebra.rules.join_graph import restricted
from tautochrone.algebra.rules.union import together

__all__ = ["half_change"]


def half_change(node: Join, at: Differentiator) -> Change:
    """The change of a join that gives left rows only."""
    # Left rows are looked for, and met twice, for each row of the right side's change.
    left, right = at.kept(node.left), at.kept(node.right, net=True)
    parts = []
    if left.plan is not None:
        rows = at.new(node.right)
        if node.keys:
            rows = restricted(rows, left.plan, [(key.right, key.left) for key in node.keys], node.keys, at)
        plan = replace(node, columns=signed(node.columns), left=left.plan, right=rows)
        parts.append(Change(plan, left.grows))
    if right.plan is not None:
        if not node.keys and at.engine.large(node.left):
            at.engine.spread()
        touched = at.engine.keep(_touched(node, at.old(node.left), right.plan, at))
        if touched.rows:
            for sign, rows in ((1, at.new(node.right)), (-1, at.old(node.right))):
                if node.keys:
                    on = [(key.right, key.right) for key in node.keys]
                    rows = restricted(rows, right.plan, on, node.keys, at)
                plan = replace(node, left=touched, right=rows)
                signed_plan = Weigh(columns=signed(node.columns), child=plan, sign=sign)
                parts.append(Change(signed_plan, grows=False))
    return together(node.columns, parts)


def _touched(node: Join, left: Node, change: Node, at: Differentiator) -> Node:
    """Left rows that some changed right row could join."""
    if node.keys:
        asked = Matching(
            columns=left.columns,
            child=left,
            keys=change,
            on=tuple((key.left, key.right) for key in node.keys),
            null_safe=any(key.null_safe for key in node.keys),
        )
        return pushed(asked, at.engine)
    if node.condition:
        return Join(
            columns=left.columns,
            left=left,
            right=change,
            kind=JoinKind.SEMI,
            condition=node.condition,
        )
    return left

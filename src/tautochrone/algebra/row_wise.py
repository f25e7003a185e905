"""Splitting a plan that works row by row, so that an engine can compute each part without moving rows."""

from __future__ import annotations

from collections.abc import Sequence

from tautochrone.algebra.nodes import Materialized, Node, Unary, Union

__all__ = ["row_wise_parts"]


def row_wise_parts(plan: Node) -> Sequence[Node] | None:
    """Plans without a `Union` whose rows together are the rows of `plan`; None when an operator above the
    materialized results does not work row by row.

    `σ(π(A ∪ B))` has the parts `σ(π(A))` and `σ(π(B))`, when A and B are materialized.
    """
    if isinstance(plan, Materialized):
        return (plan,)
    if isinstance(plan, Union):
        by_input = [row_wise_parts(child) for child in plan.inputs]
        return None if None in by_input else tuple(part for parts in by_input for part in parts or ())
    if isinstance(plan, Unary) and plan.is_row_wise:
        parts = row_wise_parts(plan.child)
        return None if parts is None else tuple(plan.over(part) for part in parts)
    return None

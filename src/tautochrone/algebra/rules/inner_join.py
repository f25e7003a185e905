"""Inner and theta joins of any number of inputs.

The terms telescope: Δ(A⋈B⋈C) = ΔA⋈B₀⋈C₀ + A₁⋈ΔB⋈C₀ + A₁⋈B₁⋈ΔC, one per input that changed, and none
joins two changes. Each term starts at its change and walks along the join's keys, so that a large
input is only read for keys that are known by then. Where many inputs changed, see `tree`.
"""

from __future__ import annotations

from tautochrone.algebra.delta import NOTHING, Change, Differentiator
from tautochrone.algebra.nodes import Join, Node
from tautochrone.algebra.rules.join_graph import JoinGraph, join_along_keys, join_graph_of
from tautochrone.algebra.rules.multiway_join import multiway_join_change
from tautochrone.algebra.rules.union import sum_changes

__all__ = ["inner_join_change"]


def inner_join_change(node: Join, at: Differentiator) -> Change:
    """The sum of the terms."""
    flat = join_graph_of(node)
    found = multiway_join_change(node, flat, at)
    if found is not None:
        return found
    return sum_changes(node.columns, [_term(node, flat, place, at) for place in range(len(flat.parts))])


def _term(node: Join, flat: JoinGraph, place: int, at: Differentiator) -> Change:
    start = at.materialized_change(flat.parts[place])
    if start.plan is None:
        return NOTHING

    def rows_of(other: int) -> Node:
        part = flat.parts[other]
        return at.rows_after(part) if other < place or not at.has_changed(part) else at.rows_before(part)

    found = join_along_keys(node, flat, place, start.plan, rows_of, at)
    return NOTHING if found is None else Change(found, start.insert_only)

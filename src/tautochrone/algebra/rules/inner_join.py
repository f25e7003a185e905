"""Inner and theta joins of any number of inputs.

The terms telescope: Δ(A⋈B⋈C) = ΔA⋈B₀⋈C₀ + A₁⋈ΔB⋈C₀ + A₁⋈B₁⋈ΔC, one per input that changed, and none
joins two changes. Each term starts at its change and walks along the join's keys, so that a large
input is only read for keys that are known by then. Where many inputs changed, see `tree`.
"""

from __future__ import annotations

from tautochrone.algebra.delta import NOTHING, Change, Differentiator
from tautochrone.algebra.plan import Join, Node
from tautochrone.algebra.rules.join_graph import Flat, flattened, walked
from tautochrone.algebra.rules.multiway_join import tree_change
from tautochrone.algebra.rules.union import together

__all__ = ["inner_change"]


def inner_change(node: Join, at: Differentiator) -> Change:
    """The sum of the terms."""
    flat = flattened(node)
    found = tree_change(node, flat, at)
    if found is not None:
        return found
    return together(node.columns, [_term(node, flat, place, at) for place in range(len(flat.parts))])


def _term(node: Join, flat: Flat, place: int, at: Differentiator) -> Change:
    start = at.kept(flat.parts[place])
    if start.plan is None:
        return NOTHING

    def rows_of(other: int) -> Node:
        part = flat.parts[other]
        return at.new(part) if other < place or not at.changed(part) else at.old(part)

    found = walked(node, flat, place, start.plan, rows_of, at)
    return NOTHING if found is None else Change(found, start.grows)

"""Inner joins many inputs of which changed.

A term for each of n inputs that changed would join it with n - 1 others. Instead one input is taken as the
root R of a tree along the join's keys. With S, the join of all others,

    Δ(R⋈S) = ΔR⋈S₀ + R₁⋈ΔS = (ΔR - T)⋈S₀ + T⋈S₁

where T are the rows of R₁ that may have a partner in ΔS: two joins of all inputs instead of n. T is found
from the leaves of the tree up: an input's rows that changed, or that meet a row found below, lead by their
keys to rows of the input above. What T holds too much is in both sums and cancels.
"""

from __future__ import annotations

from collections import defaultdict

from tautochrone.algebra.delta import Change, Differentiator, zset_columns
from tautochrone.algebra.nodes import (
    Consolidate,
    Join,
    JoinKey,
    Materialized,
    MultiKeySemiJoin,
    Node,
    Select,
    Union,
    WithWeight,
)
from tautochrone.algebra.rules.join_graph import JoinGraph, join_along_keys, keys_between

__all__ = ["multiway_join_change"]

_MANY = 3
"""Changed inputs from which on two joins of all inputs are fewer than one for each."""

_Tree = dict[int, tuple[int, list[JoinKey]]]
"""Input → the one above it and the keys between them, that one's side left; parents first."""

_Reached = list[tuple[Materialized, list[JoinKey]]]
"""Rows of inputs right below an input, and the keys by which they lead to it."""


def multiway_join_change(node: Join, flat: JoinGraph, at: Differentiator) -> Change | None:
    """The change of the join; None: better one term per input."""
    changes = [at.materialized_change(part) for part in flat.parts]
    moved = [place for place, change in enumerate(changes) if change.plan is not None]
    if len(moved) < _MANY:
        return None
    root = max(range(len(flat.parts)), key=lambda place: _weight(flat, place, at))
    tree = _tree(flat, root)
    if not {root, *tree}.issuperset(moved):
        return None
    reached: defaultdict[int, _Reached] = defaultdict(list)
    for place in reversed(tree):
        above, keys = tree[place]
        found = _leading(flat.parts[place], changes[place], reached[place], keys, at)
        if found is not None:
            reached[above].append((found, keys))
    part = flat.parts[root]
    touched = at.engine.materialize(_touched(at.rows_after(part), reached[root])) if reached[root] else None
    before, after = _starts(part, changes[root], touched)
    sums = [
        join_along_keys(node, flat, root, before, lambda other: at.rows_before(flat.parts[other]), at)
        if before
        else None,
        join_along_keys(node, flat, root, after, lambda other: at.rows_after(flat.parts[other]), at)
        if after
        else None,
    ]
    inputs = tuple(found for found in sums if found is not None)
    if not inputs:
        return Change(None)
    columns = zset_columns(node.columns)
    whole = inputs[0] if len(inputs) == 1 else Union(columns=columns, inputs=inputs)
    insert_only = all(changes[place].insert_only for place in moved)
    return Change(Consolidate(columns=columns, child=whole), insert_only, consolidated=True)


def _weight(flat: JoinGraph, place: int, at: Differentiator) -> tuple[bool, bool, int]:
    """The root is read once and for few keys: the largest input, in the middle of the others."""
    part = flat.parts[place]
    linked = sum(bool(keys_between(flat, part, other)) for other in flat.parts if other is not part)
    return at.engine.is_large(part), not at.engine.is_small(part), linked


def _tree(flat: JoinGraph, root: int) -> _Tree:
    """The inputs that keys lead to from the root, the nearest first."""
    tree: _Tree = {}
    front = [root]
    for above in front:
        for place, part in enumerate(flat.parts):
            keys = keys_between(flat, flat.parts[above], part)
            if place != root and place not in tree and keys:
                tree[place] = above, keys
                front.append(place)
    return tree


def _leading(
    part: Node, change: Change, below: _Reached, keys: list[JoinKey], at: Differentiator
) -> Materialized | None:
    """Rows of an input with the keys that lead to the input above; None: no row does."""
    columns = tuple(dict.fromkeys(key.right for key in keys))
    if not below:
        return change.plan if isinstance(change.plan, Materialized) else None
    plans: list[Node] = [_touched(at.rows_after(part), below)]
    if change.plan is not None:
        plans.append(change.plan)
    chosen = tuple(Select(columns=columns, child=plan) for plan in plans)
    found = at.engine.materialize(chosen[0] if len(chosen) == 1 else Union(columns=columns, inputs=chosen))
    return found if found.rows else None


def _touched(rows: Node, reached: _Reached) -> MultiKeySemiJoin:
    return MultiKeySemiJoin(
        columns=rows.columns,
        child=rows,
        keys=tuple(found for found, _ in reached),
        on=tuple(tuple((key.left, key.right) for key in keys) for _, keys in reached),
        null_safe=tuple(any(key.null_safe for key in keys) for _, keys in reached),
    )


def _starts(part: Node, change: Change, touched: Materialized | None) -> tuple[Node | None, Node | None]:
    """What is joined with the old rows of all others, and what with the new ones."""
    columns = zset_columns(part.columns)
    own = None if change.plan is None else Select(columns=columns, child=change.plan)
    if touched is None or not touched.rows:
        return own, None
    gone = WithWeight(columns=columns, child=touched, sign=-1)
    before: Node = gone if own is None else Union(columns=columns, inputs=(own, gone))
    return before, WithWeight(columns=columns, child=touched)

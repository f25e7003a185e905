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

from tautochrone.algebra.delta import Change, Differentiator, signed
from tautochrone.algebra.plan import Consolidate, Join, Kept, Key, Node, Select, Touched, Union, Weigh
from tautochrone.algebra.rules.join_graph import Flat, links, walked

__all__ = ["tree_change"]

_MANY = 3
"""Changed inputs from which on two joins of all inputs are fewer than one for each."""

_Tree = dict[int, tuple[int, list[Key]]]
"""Input → the one above it and the keys between them, that one's side left; parents first."""

_Reached = list[tuple[Kept, list[Key]]]
"""Rows of inputs right below an input, and the keys by which they lead to it."""


def tree_change(node: Join, flat: Flat, at: Differentiator) -> Change | None:
    """The change of the join; None: better one term per input."""
    changes = [at.kept(part) for part in flat.parts]
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
    touched = at.engine.keep(_touched(at.new(part), reached[root])) if reached[root] else None
    before, after = _starts(part, changes[root], touched)
    sums = [
        walked(node, flat, root, before, lambda other: at.old(flat.parts[other]), at) if before else None,
        walked(node, flat, root, after, lambda other: at.new(flat.parts[other]), at) if after else None,
    ]
    inputs = tuple(found for found in sums if found is not None)
    if not inputs:
        return Change(None)
    columns = signed(node.columns)
    whole = inputs[0] if len(inputs) == 1 else Union(columns=columns, inputs=inputs)
    grows = all(changes[place].grows for place in moved)
    return Change(Consolidate(columns=columns, child=whole), grows, net=True)


def _weight(flat: Flat, place: int, at: Differentiator) -> tuple[bool, bool, int]:
    """The root is read once and for few keys: the largest input, in the middle of the others."""
    part = flat.parts[place]
    linked = sum(bool(links(flat, part, other)) for other in flat.parts if other is not part)
    return at.engine.large(part), not at.engine.few(part), linked


def _tree(flat: Flat, root: int) -> _Tree:
    """The inputs that keys lead to from the root, the nearest first."""
    tree: _Tree = {}
    front = [root]
    for above in front:
        for place, part in enumerate(flat.parts):
            keys = links(flat, flat.parts[above], part)
            if place != root and place not in tree and keys:
                tree[place] = above, keys
                front.append(place)
    return tree


def _leading(part: Node, change: Change, below: _Reached, keys: list[Key], at: Differentiator) -> Kept | None:
    """Rows of an input with the keys that lead to the input above; None: no row does."""
    columns = tuple(dict.fromkeys(key.right for key in keys))
    if not below:
        return change.plan if isinstance(change.plan, Kept) else None
    plans: list[Node] = [_touched(at.new(part), below)]
    if change.plan is not None:
        plans.append(change.plan)
    chosen = tuple(Select(columns=columns, child=plan) for plan in plans)
    found = at.engine.keep(chosen[0] if len(chosen) == 1 else Union(columns=columns, inputs=chosen))
    return found if found.rows else None


def _touched(rows: Node, reached: _Reached) -> Touched:
    return Touched(
        columns=rows.columns,
        child=rows,
        keys=tuple(found for found, _ in reached),
        on=tuple(tuple((key.left, key.right) for key in keys) for _, keys in reached),
        null_safe=tuple(any(key.null_safe for key in keys) for _, keys in reached),
    )


def _starts(part: Node, change: Change, touched: Kept | None) -> tuple[Node | None, Node | None]:
    """What is joined with the old rows of all others, and what with the new ones."""
    columns = signed(part.columns)
    own = None if change.plan is None else Select(columns=columns, child=change.plan)
    if touched is None or not touched.rows:
        return own, None
    gone = Weigh(columns=columns, child=touched, sign=-1)
    before: Node = gone if own is None else Union(columns=columns, inputs=(own, gone))
    return before, Weigh(columns=columns, child=touched)

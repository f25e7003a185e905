"""Inner and theta joins of any number of inputs.

The terms telescope: Δ(A⋈B⋈C) = ΔA⋈B₀⋈C₀ + A₁⋈ΔB⋈C₀ + A₁⋈B₁⋈ΔC, one per input that changed, and none
joins two changes. Each term starts at its change and walks along the join's keys, so that a large
input is only read for keys that are known by then.
"""

from __future__ import annotations

from dataclasses import dataclass

from tautochrone.algebra.delta import NOTHING, Change, Differentiator, signed
from tautochrone.algebra.plan import (
    ColumnId,
    Expression,
    Join,
    JoinKind,
    Kept,
    Key,
    Matching,
    Node,
    Select,
)
from tautochrone.algebra.rules.union import together

__all__ = ["inner_change"]


@dataclass(frozen=True, slots=True)
class _Flat:
    """A tree of inner joins as a list of inputs and the conditions over all of them."""

    parts: list[Node]
    keys: list[Key]
    conditions: list[Expression]


def _flatten(node: Node, into: _Flat) -> None:
    if isinstance(node, Select) and isinstance(node.child, Join) and node.child.kind is JoinKind.INNER:
        node = node.child
    if isinstance(node, Join) and node.kind is JoinKind.INNER:
        _flatten(node.left, into)
        _flatten(node.right, into)
        into.keys.extend(node.keys)
        into.conditions.extend(node.condition)
    else:
        into.parts.append(node)


def inner_change(node: Join, at: Differentiator) -> Change:
    """The sum of the terms."""
    flat = _Flat([], [], [])
    _flatten(node, flat)
    terms = [_term(node, flat, place, at) for place in range(len(flat.parts))]
    return together(node.columns, terms)


def _term(node: Join, flat: _Flat, place: int, at: Differentiator) -> Change:
    start = at.kept(flat.parts[place])
    if start.plan is None:
        return NOTHING
    current: Node = start.plan
    left = [other for other in range(len(flat.parts)) if other != place]
    used: set[int] = set()
    while left:
        left.sort(key=lambda other: _rank(flat, other, current, at))
        other = left.pop(0)
        part = flat.parts[other]
        if not isinstance(current, Kept) and _links(flat, current, part) and not at.engine.few(part):
            # Its keys will be read as literals.
            current = at.engine.keep(current)
            if current.rows == 0:
                return NOTHING
        rows = at.new(part) if other < place or not at.changed(part) else at.old(part)
        current = _joined(current, rows, flat, used)
    return Change(Select(columns=signed(node.columns), child=current), start.grows)


def _rank(flat: _Flat, other: int, current: Node, at: Differentiator) -> tuple[bool, bool, int]:
    """Inputs that a key leads to come first, small ones before large ones."""
    part = flat.parts[other]
    return not _links(flat, current, part), at.engine.large(part), other


def _links(flat: _Flat, current: Node, part: Node) -> list[Key]:
    """The join's equalities between what there is and the next input, current side left."""
    have, new = set(current.columns), set(part.columns)
    links = []
    for key in flat.keys:
        if key.left in have and key.right in new:
            links.append(key)
        elif key.right in have and key.left in new:
            links.append(Key(left=key.right, right=key.left, null_safe=key.null_safe))
    return links


def _joined(current: Node, rows: Node, flat: _Flat, used: set[int]) -> Join:
    links = _links(flat, current, rows)
    if links and isinstance(current, Kept):
        rows = restricted(rows, current, [(key.right, key.left) for key in links], links)
    columns = (*current.columns, *rows.columns)
    conditions = []
    for place, condition in enumerate(flat.conditions):
        if place not in used and condition.references <= set(columns):
            used.add(place)
            conditions.append(condition)
    return Join(
        columns=columns,
        left=current,
        right=rows,
        kind=JoinKind.INNER,
        keys=tuple(links),
        condition=tuple(conditions),
    )


def restricted(
    rows: Node, keys: Node, on: list[tuple[ColumnId, ColumnId]], links: list[Key] | tuple[Key, ...]
) -> Matching:
    """`rows` read only where a join above can find a match."""
    return Matching(
        columns=rows.columns,
        child=rows,
        keys=keys,
        on=tuple(on),
        null_safe=any(key.null_safe for key in links),
        exact=False,
    )

"""A tree of inner joins as one join of many inputs, and how rows of one are joined with all others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tautochrone.algebra.delta import Differentiator, signed
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
    inner_join,
)
from tautochrone.algebra.pushdown import pushed

__all__ = ["Flat", "flattened", "links", "restricted", "walked"]


@dataclass(frozen=True, slots=True)
class Flat:
    """The inputs and the conditions over all of them."""

    parts: list[Node]
    keys: list[Key]
    conditions: list[Expression]


def flattened(node: Join) -> Flat:
    """The inputs of an inner join and of those right below it."""
    flat = Flat([], [], [])
    _flatten(node, flat)
    return flat


def _flatten(node: Node, into: Flat) -> None:
    join = inner_join(node)
    if join is None:
        into.parts.append(node)
        return
    _flatten(join.left, into)
    _flatten(join.right, into)
    into.keys.extend(join.keys)
    into.conditions.extend(join.condition)


def walked(
    node: Join, flat: Flat, place: int, start: Node, rows_of: Callable[[int], Node], at: Differentiator
) -> Node | None:
    """A signed bag of the rows of one input joined with all others, along the keys: a large input is only
    read for keys that are known by then. None: nothing is left.

    Args:
        node: the join, for its columns.
        flat: its inputs.
        place: which of them `start` has rows of.
        start: signed.
        rows_of: the rows of another input.
        at: the refresh.
    """
    current = start
    left = [other for other in range(len(flat.parts)) if other != place]
    used: set[int] = set()
    while left:
        other = min(left, key=lambda each: _rank(flat, each, current, left, at))
        left.remove(other)
        part = flat.parts[other]
        if not isinstance(current, Kept) and links(flat, current, part) and not at.engine.few(part):
            # Its keys will be read as literals.
            current = at.engine.keep(current)
            if current.rows == 0:
                return None
        current = _joined(current, rows_of(other), flat, used, at)
    return Select(columns=signed(node.columns), child=current)


def _rank(
    flat: Flat, other: int, current: Node, left: list[int], at: Differentiator
) -> tuple[bool, int, bool, int]:
    """Inputs that a key leads to come first. Of those the ones to which no input leads that is still to come:
    a key alone that goes with others may lead to many rows, as from a customer over the nation to all
    its suppliers. Then small ones before large ones."""
    part = flat.parts[other]
    to_come = sum(bool(links(flat, flat.parts[third], part)) for third in left if third != other)
    return not links(flat, current, part), to_come, at.engine.large(part), other


def links(flat: Flat, current: Node, part: Node) -> list[Key]:
    """The join's equalities between what there is and the next input, current side left."""
    have, new = set(current.columns), set(part.columns)
    found = []
    for key in flat.keys:
        if key.left in have and key.right in new:
            found.append(key)
        elif key.right in have and key.left in new:
            found.append(Key(left=key.right, right=key.left, null_safe=key.null_safe))
    return found


def _joined(current: Node, rows: Node, flat: Flat, used: set[int], at: Differentiator) -> Join:
    keys = links(flat, current, rows)
    if keys and isinstance(current, Kept):
        rows = restricted(rows, current, [(key.right, key.left) for key in keys], keys, at)
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
        keys=tuple(keys),
        condition=tuple(conditions),
    )


def restricted(
    rows: Node,
    keys: Node,
    on: list[tuple[ColumnId, ColumnId]],
    links: Sequence[Key],
    at: Differentiator,
) -> Node:
    """`rows` read only where a join above can find a match."""
    asked = Matching(
        columns=rows.columns,
        child=rows,
        keys=keys,
        on=tuple(on),
        null_safe=any(key.null_safe for key in links),
        exact=False,
    )
    return pushed(asked, at.engine)

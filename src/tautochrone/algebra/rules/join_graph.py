"""A tree of inner joins as one join of many inputs, and how rows of one are joined with all others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tautochrone.algebra.delta import Differentiator, zset_columns
from tautochrone.algebra.nodes import (
    ColumnId,
    Expression,
    Join,
    JoinKey,
    JoinKind,
    KeySemiJoin,
    Materialized,
    Node,
    Select,
    inner_join_of,
)
from tautochrone.algebra.pushdown import push_down_keys

__all__ = ["JoinGraph", "join_along_keys", "join_graph_of", "keys_between", "restrict_to_keys"]


@dataclass(frozen=True, slots=True)
class JoinGraph:
    """The inputs and the conditions over all of them."""

    parts: list[Node]
    keys: list[JoinKey]
    conditions: list[Expression]


def join_graph_of(node: Join) -> JoinGraph:
    """The inputs of an inner join and of those right below it."""
    flat = JoinGraph([], [], [])
    _flatten(node, flat)
    return flat


def _flatten(node: Node, into: JoinGraph) -> None:
    join = inner_join_of(node)
    if join is None:
        into.parts.append(node)
        return
    _flatten(join.left, into)
    _flatten(join.right, into)
    into.keys.extend(join.keys)
    into.conditions.extend(join.condition)


def join_along_keys(
    node: Join, flat: JoinGraph, place: int, start: Node, rows_of: Callable[[int], Node], at: Differentiator
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
        if (
            not isinstance(current, Materialized)
            and keys_between(flat, current, part)
            and not at.engine.is_small(part)
        ):
            # Its keys will be read as literals.
            current = at.engine.materialize(current)
            if current.rows == 0:
                return None
        current = _joined(current, rows_of(other), flat, used, at)
    return Select(columns=zset_columns(node.columns), child=current)


def _rank(
    flat: JoinGraph, other: int, current: Node, left: list[int], at: Differentiator
) -> tuple[bool, int, bool, int]:
    """Inputs that a key leads to come first. Of those the ones to which no input leads that is still to come:
    a key alone that goes with others may lead to many rows, as from a customer over the nation to all
    its suppliers. Then small ones before large ones."""
    part = flat.parts[other]
    to_come = sum(bool(keys_between(flat, flat.parts[third], part)) for third in left if third != other)
    return not keys_between(flat, current, part), to_come, at.engine.is_large(part), other


def keys_between(flat: JoinGraph, current: Node, part: Node) -> list[JoinKey]:
    """The join's equalities between what there is and the next input, current side left."""
    have, new = set(current.columns), set(part.columns)
    found = []
    for key in flat.keys:
        if key.left in have and key.right in new:
            found.append(key)
        elif key.right in have and key.left in new:
            found.append(JoinKey(left=key.right, right=key.left, null_safe=key.null_safe))
    return found


def _joined(current: Node, rows: Node, flat: JoinGraph, used: set[int], at: Differentiator) -> Join:
    keys = keys_between(flat, current, rows)
    if keys and isinstance(current, Materialized):
        rows = restrict_to_keys(rows, current, [(key.right, key.left) for key in keys], keys, at)
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


def restrict_to_keys(
    rows: Node,
    keys: Node,
    on: list[tuple[ColumnId, ColumnId]],
    joined_on: Sequence[JoinKey],
    at: Differentiator,
) -> Node:
    """`rows` read only where a join above can find a match."""
    asked = KeySemiJoin(
        columns=rows.columns,
        child=rows,
        keys=keys,
        on=tuple(on),
        null_safe=any(key.null_safe for key in joined_on),
        exact=False,
    )
    return push_down_keys(asked, at.engine)

"""A tree of inner joins as one join of many inputs, and how rows of one input are joined with all others."""

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
    """The inputs, the equalities between them, and the other conditions over all of them."""

    inputs: list[Node]
    keys: list[JoinKey]
    conditions: list[Expression]


def join_graph_of(node: Join) -> JoinGraph:
    """The graph of an inner join and of the inner joins right below it."""
    graph = JoinGraph([], [], [])
    _add(node, graph)
    return graph


def _add(node: Node, graph: JoinGraph) -> None:
    join = inner_join_of(node)
    if join is None:
        graph.inputs.append(node)
        return
    _add(join.left, graph)
    _add(join.right, graph)
    graph.keys.extend(join.keys)
    graph.conditions.extend(join.conditions)


def join_along_keys(
    node: Join,
    graph: JoinGraph,
    position: int,
    start: Node,
    rows_of: Callable[[int], Node],
    context: Differentiator,
) -> Node | None:
    """A Z-set of the rows of one input joined with all others, along the keys: a large input is only read for
    keys that are known by then. None: nothing is left.

    Args:
        node: the join, for its columns.
        graph: of the join.
        position: of the input that `start` has rows of.
        start: a Z-set.
        rows_of: the rows of another input, by its position.
        context: the refresh.
    """
    current = start
    remaining = [index for index in range(len(graph.inputs)) if index != position]
    used_conditions: set[int] = set()
    while remaining:
        following = min(remaining, key=lambda index: _rank(graph, index, current, remaining, context))
        remaining.remove(following)
        relation = graph.inputs[following]
        reads_by_key = keys_between(graph, current, relation) and not context.engine.reads_few_rows(relation)
        if reads_by_key and not isinstance(current, Materialized):
            # The keys must be known: they are read as literals.
            current = context.engine.materialize(current)
            if current.rows == 0:
                return None
        current = _joined(current, rows_of(following), graph, used_conditions, context)
    return Select(columns=zset_columns(node.columns), child=current)


def _rank(
    graph: JoinGraph, position: int, current: Node, remaining: list[int], context: Differentiator
) -> tuple[bool, int, bool, int]:
    """The order of joining: inputs that a key leads to first, small ones before large ones.

    Of the inputs that a key leads to, those come first that share no key with another remaining input. A key
    that only restricts together with others matches too many rows alone: joining customers with suppliers on
    the nation gives, for each order, all suppliers of that nation.
    """
    relation = graph.inputs[position]
    linked = sum(
        bool(keys_between(graph, graph.inputs[index], relation)) for index in remaining if index != position
    )
    has_key = bool(keys_between(graph, current, relation))
    return not has_key, linked, context.engine.reads_many_rows(relation), position


def keys_between(graph: JoinGraph, current: Node, relation: Node) -> list[JoinKey]:
    """The equalities between the rows joined so far and another input, `current` on the left."""
    joined, added = set(current.columns), set(relation.columns)
    keys = []
    for key in graph.keys:
        if key.left in joined and key.right in added:
            keys.append(key)
        elif key.right in joined and key.left in added:
            keys.append(key.swapped())
    return keys


def _joined(
    current: Node, rows: Node, graph: JoinGraph, used_conditions: set[int], context: Differentiator
) -> Join:
    keys = keys_between(graph, current, rows)
    if keys and isinstance(current, Materialized):
        rows = restrict_to_keys(rows, current, [(key.right, key.left) for key in keys], keys, context)
    columns = (*current.columns, *rows.columns)
    conditions = []
    for number, condition in enumerate(graph.conditions):
        if number not in used_conditions and condition.references <= set(columns):
            used_conditions.add(number)
            conditions.append(condition)
    return Join(
        columns=columns,
        left=current,
        right=rows,
        kind=JoinKind.INNER,
        keys=tuple(keys),
        conditions=tuple(conditions),
    )


def restrict_to_keys(
    rows: Node,
    keys: Node,
    on: list[tuple[ColumnId, ColumnId]],
    join_keys: Sequence[JoinKey],
    context: Differentiator,
) -> Node:
    """`rows` without most of those that cannot match in the join above, which has `join_keys`."""
    semi_join = KeySemiJoin(
        columns=rows.columns,
        child=rows,
        keys=keys,
        on=tuple(on),
        null_safe=any(key.null_safe for key in join_keys),
        exact=False,
    )
    return push_down_keys(semi_join, context.engine)

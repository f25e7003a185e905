"""A tree of inner joins as one join of many inputs: how rows of one input are joined with all others, and the
change of the join when many of its inputs changed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tautochrone.algebra.delta import NO_CHANGE, Change, Differentiator, zset_columns
from tautochrone.algebra.nodes import (
    ColumnId,
    Consolidate,
    Expression,
    Join,
    JoinKey,
    JoinKind,
    KeySemiJoin,
    Materialized,
    MultiKeySemiJoin,
    Node,
    Select,
    Union,
    WithWeight,
    inner_join_of,
)
from tautochrone.algebra.pushdown import push_down_keys

__all__ = ["JoinGraph", "join_along_keys", "join_graph_of", "multiway_join_change", "restrict_to_keys"]


@dataclass(frozen=True, slots=True)
class JoinGraph:
    """The inputs, the equalities between them, and the other conditions over all of them."""

    inputs: list[Node]
    keys: list[JoinKey]
    conditions: list[Expression]


def join_graph_of(node: Join) -> JoinGraph:
    """The graph of an inner join and of the inner joins right below it."""
    graph = JoinGraph(list(node.differentiated), [], [])
    _add_conditions(node, graph)
    return graph


def _add_conditions(join: Join, graph: JoinGraph) -> None:
    for below in map(inner_join_of, join.children):
        if below is not None:
            _add_conditions(below, graph)
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
        reads_by_key = _keys_between(graph, current, relation) and not context.engine.reads_few_rows(relation)
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
        bool(_keys_between(graph, graph.inputs[index], relation)) for index in remaining if index != position
    )
    has_key = bool(_keys_between(graph, current, relation))
    return not has_key, linked, context.engine.reads_many_rows(relation), position


def _keys_between(graph: JoinGraph, current: Node, relation: Node) -> list[JoinKey]:
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
    keys = _keys_between(graph, current, rows)
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


# -- many changed inputs ---------------------------------------------------------------------------------


_MIN_CHANGED_INPUTS = 3
"""From this number of changed inputs on, two joins of all inputs cost less than one per changed input."""

_Tree = dict[int, tuple[int, list[JoinKey]]]
"""Position of an input → the position of its parent and the keys between them, the parent's on the left.
Parents come before their children."""

_Affecting = list[tuple[Materialized, list[JoinKey]]]
"""Rows of the inputs right below an input, and the keys by which they lead to its rows."""


def multiway_join_change(node: Join, graph: JoinGraph, context: Differentiator) -> Change | None:
    """The change of an inner join of which three or more inputs changed; None when one term per changed input
    costs less.

    A term for each of n changed inputs would join it with n - 1 others. Instead one input is the root R of a
    tree along the join's keys. With S, the join of all others,

        Δ(R ⋈ S) = ΔR ⋈ S_before + R_after ⋈ ΔS = (ΔR - T) ⋈ S_before + T ⋈ S_after

    where T are the rows of R_after that may have a partner in ΔS: two joins of all inputs instead of n. T is
    found from the leaves of the tree upwards: rows of an input that changed, or that match a row found below,
    lead by their keys to rows of the input above. Rows that T has in excess are in both sums and cancel out.

    Facts F join dimensions P and Q on p and q; F was `1 a x`, `2 b x`, P was `a 7`, Q was `x 5`:

        ΔF           ΔP         ΔQ         T         (ΔF - T) ⋈ S_before     T ⋈ S_after
        2 b x -1     a 7 -1     y 6 +1     1 a x     1 a x 7 5 -1            1 a x 8 5 +1
                     a 8 +1
    """
    changes = [context.materialized_change(relation) for relation in graph.inputs]
    changed = [position for position, change in enumerate(changes) if change.plan is not None]
    if len(changed) < _MIN_CHANGED_INPUTS:
        return None
    root = max(range(len(graph.inputs)), key=lambda position: _root_rank(graph, position, context))
    tree = _tree(graph, root)
    if not {root, *tree}.issuperset(changed):
        return None
    affected = _affected_root_rows(graph, root, tree, changes, context)
    with_before, with_after = _starts(graph.inputs[root], changes[root], affected)
    sums = [
        join_along_keys(node, graph, root, start, _rows_of_inputs(graph, rows_at), context)
        for start, rows_at in ((with_before, context.rows_before), (with_after, context.rows_after))
        if start is not None
    ]
    inputs = tuple(plan for plan in sums if plan is not None)
    if not inputs:
        return NO_CHANGE
    columns = zset_columns(node.columns)
    whole = inputs[0] if len(inputs) == 1 else Union(columns=columns, inputs=inputs)
    insert_only = all(changes[position].insert_only for position in changed)
    return Change(Consolidate(columns=columns, child=whole), insert_only, consolidated=True)


def _root_rank(graph: JoinGraph, position: int, context: Differentiator) -> tuple[bool, bool, int]:
    """The root is read once and by key, so it is the largest input, linked to the most others."""
    relation = graph.inputs[position]
    linked = sum(
        bool(_keys_between(graph, relation, neighbor))
        for neighbor in graph.inputs
        if neighbor is not relation
    )
    return context.engine.reads_many_rows(relation), not context.engine.reads_few_rows(relation), linked


def _tree(graph: JoinGraph, root: int) -> _Tree:
    """The inputs that keys lead to from the root, the nearest first."""
    tree: _Tree = {}
    front = [root]
    for parent in front:
        for position, relation in enumerate(graph.inputs):
            keys = _keys_between(graph, graph.inputs[parent], relation)
            if position != root and position not in tree and keys:
                tree[position] = parent, keys
                front.append(position)
    return tree


def _rows_of_inputs(graph: JoinGraph, rows_at: Callable[[Node], Node]) -> Callable[[int], Node]:
    return lambda position: rows_at(graph.inputs[position])


def _affected_root_rows(
    graph: JoinGraph, root: int, tree: _Tree, changes: Sequence[Change], context: Differentiator
) -> Materialized | None:
    """The rows T of the root; None when no row of the other inputs affects it."""
    affecting: defaultdict[int, _Affecting] = defaultdict(list)
    for position in reversed(tree):
        parent, keys = tree[position]
        rows = _rows_that_affect_parent(
            graph.inputs[position], changes[position], affecting[position], keys, context
        )
        if rows is not None:
            affecting[parent].append((rows, keys))
    if not affecting[root]:
        return None
    return context.engine.materialize(_affected_rows(context.rows_after(graph.inputs[root]), affecting[root]))


def _rows_that_affect_parent(
    relation: Node, change: Change, below: _Affecting, keys: list[JoinKey], context: Differentiator
) -> Materialized | None:
    """Rows of an input that changed or that rows below affect, with the keys to its parent; None: no row."""
    if not below:
        return change.plan if isinstance(change.plan, Materialized) else None
    plans: list[Node] = [_affected_rows(context.rows_after(relation), below)]
    if change.plan is not None:
        plans.append(change.plan)
    columns = tuple(dict.fromkeys(key.right for key in keys))
    selected = tuple(Select(columns=columns, child=plan) for plan in plans)
    rows = context.engine.materialize(
        selected[0] if len(selected) == 1 else Union(columns=columns, inputs=selected)
    )
    return rows if rows.rows else None


def _affected_rows(rows: Node, affecting: _Affecting) -> MultiKeySemiJoin:
    return MultiKeySemiJoin(
        columns=rows.columns,
        child=rows,
        keys=tuple(keys for keys, _ in affecting),
        on=tuple(tuple((key.left, key.right) for key in keys) for _, keys in affecting),
        null_safe=tuple(any(key.null_safe for key in keys) for _, keys in affecting),
    )


def _starts(relation: Node, change: Change, affected: Materialized | None) -> tuple[Node | None, Node | None]:
    """ΔR - T, to be joined with the rows before of all others, and T, to be joined with those after."""
    columns = zset_columns(relation.columns)
    own = None if change.plan is None else Select(columns=columns, child=change.plan)
    if affected is None or not affected.rows:
        return own, None
    minus = WithWeight(columns=columns, child=affected, sign=-1)
    difference: Node = minus if own is None else Union(columns=columns, inputs=(own, minus))
    return difference, WithWeight(columns=columns, child=affected)

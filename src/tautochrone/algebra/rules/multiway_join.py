"""Inner joins of which three or more inputs changed.

A term for each of n changed inputs would join it with n - 1 others. Instead one input is the root R of a tree
along the join's keys. With S, the join of all others,

    Δ(R ⋈ S) = ΔR ⋈ S_before + R_after ⋈ ΔS = (ΔR - T) ⋈ S_before + T ⋈ S_after

where T are the rows of R_after that may have a partner in ΔS: two joins of all inputs instead of n. T is
found from the leaves of the tree upwards: rows of an input that changed, or that match a row found below,
lead by their keys to rows of the input above. Rows that T has in excess are in both sums and cancel out.

Facts F join dimensions P and Q on p and q; F was `1 a x`, `2 b x`, P was `a 7`, Q was `x 5`:

    ΔF           ΔP         ΔQ         T         (ΔF - T) ⋈ S_before     T ⋈ S_after
    2 b x -1     a 7 -1     y 6 +1     1 a x     1 a x 7 5 -1            1 a x 8 5 +1
                 a 8 +1
"""

from __future__ import annotations

from collections import defaultdict

from tautochrone.algebra.delta import NO_CHANGE, Change, Differentiator, zset_columns
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

_MIN_CHANGED_INPUTS = 3
"""From this number of changed inputs on, two joins of all inputs cost less than one per changed input."""

_Tree = dict[int, tuple[int, list[JoinKey]]]
"""Position of an input → the position of its parent and the keys between them, the parent's on the left.
Parents come before their children."""

_Affecting = list[tuple[Materialized, list[JoinKey]]]
"""Rows of the inputs right below an input, and the keys by which they lead to its rows."""


def multiway_join_change(node: Join, graph: JoinGraph, context: Differentiator) -> Change | None:
    """The change of the join; None when one term per changed input costs less."""
    changes = [context.materialized_change(relation) for relation in graph.inputs]
    changed = [position for position, change in enumerate(changes) if change.plan is not None]
    if len(changed) < _MIN_CHANGED_INPUTS:
        return None
    root = max(range(len(graph.inputs)), key=lambda position: _root_rank(graph, position, context))
    tree = _tree(graph, root)
    if not {root, *tree}.issuperset(changed):
        return None
    affecting: defaultdict[int, _Affecting] = defaultdict(list)
    for position in reversed(tree):
        parent, keys = tree[position]
        rows = _rows_that_affect_parent(
            graph.inputs[position], changes[position], affecting[position], keys, context
        )
        if rows is not None:
            affecting[parent].append((rows, keys))
    relation = graph.inputs[root]
    affected = (
        context.engine.materialize(_affected_rows(context.rows_after(relation), affecting[root]))
        if affecting[root]
        else None
    )
    with_before, with_after = _starts(relation, changes[root], affected)
    sums = []
    if with_before is not None:
        sums.append(
            join_along_keys(
                node, graph, root, with_before, lambda i: context.rows_before(graph.inputs[i]), context
            )
        )
    if with_after is not None:
        sums.append(
            join_along_keys(
                node, graph, root, with_after, lambda i: context.rows_after(graph.inputs[i]), context
            )
        )
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
        bool(keys_between(graph, relation, neighbor)) for neighbor in graph.inputs if neighbor is not relation
    )
    return context.engine.reads_many_rows(relation), not context.engine.reads_few_rows(relation), linked


def _tree(graph: JoinGraph, root: int) -> _Tree:
    """The inputs that keys lead to from the root, the nearest first."""
    tree: _Tree = {}
    front = [root]
    for parent in front:
        for position, relation in enumerate(graph.inputs):
            keys = keys_between(graph, graph.inputs[parent], relation)
            if position != root and position not in tree and keys:
                tree[position] = parent, keys
                front.append(position)
    return tree


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

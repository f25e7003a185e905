"""Inner joins of many inputs: how rows of one input are joined with all others, and the change of the join
when many of its inputs changed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from tautochrone.algebra.delta import NO_CHANGE, Change, Differentiator, zset_columns
from tautochrone.algebra.join_graph import JoinGraph
from tautochrone.algebra.nodes import (
    Consolidate,
    Join,
    JoinKey,
    JoinKind,
    Materialized,
    MultiKeySemiJoin,
    Node,
    Select,
    Union,
    WithWeight,
)

__all__ = ["join_along_keys", "multiway_join_change"]


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
        following = context.strategy.next_input(graph, current, remaining)
        remaining.remove(following)
        relation = graph.inputs[following]
        has_key = bool(graph.keys_between(current, relation))
        reads_by_key = has_key and not context.strategy.reads_few_rows(relation)
        if reads_by_key and not isinstance(current, Materialized):
            # The keys must be known: they are read as literals.
            current = context.engine.materialize(current)
            if current.rows == 0:
                return None
        current = _joined(current, rows_of(following), graph, used_conditions, context)
    return Select(columns=zset_columns(node.columns), child=current)


def _joined(
    current: Node, rows: Node, graph: JoinGraph, used_conditions: set[int], context: Differentiator
) -> Join:
    keys = graph.keys_between(current, rows)
    if keys and isinstance(current, Materialized):
        rows = context.strategy.partners(rows, current, [(key.right, key.left) for key in keys], keys)
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


# -- many changed inputs ---------------------------------------------------------------------------------


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
    if not context.strategy.joins_all_at_once(len(changed)):
        return None
    root = context.strategy.root(graph)
    if not {root, *graph.tree(root)}.issuperset(changed):
        return None
    affected = _affected_root_rows(graph, root, changes, context)
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


def _rows_of_inputs(graph: JoinGraph, rows_at: Callable[[Node], Node]) -> Callable[[int], Node]:
    return lambda position: rows_at(graph.inputs[position])


def _affected_root_rows(
    graph: JoinGraph, root: int, changes: Sequence[Change], context: Differentiator
) -> Materialized | None:
    """The rows T of the root; None when no row of the other inputs affects it."""
    affecting: defaultdict[int, _Affecting] = defaultdict(list)
    tree = graph.tree(root)
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

"""The rule for what depends on all rows of a group: medians, lists, ranks. Changed groups are recomputed.

    Δf(A) = f(A_after ⋉ K) - f(A_before ⋉ K), K the group keys in ΔA

Without keys everything is recomputed, which is cheap where the child has few rows whatever its inputs hold,
such as ORDER BY … LIMIT. `median(v) BY k`; A was `a 1`, `a 5`, `b 6`:

    ΔA         K     Δf(A)
    a 9 +1     a     a 3 -1
                     a 5 +1
"""

from __future__ import annotations

from collections.abc import Callable

from tautochrone.algebra.delta import Change, Differentiator, zset_columns
from tautochrone.algebra.nodes import Aggregate, ColumnId, KeySemiJoin, Node, Union, Window, WithWeight
from tautochrone.algebra.pushdown import push_down_keys

__all__ = ["few_rows_at_most", "recompute_changed_groups"]

_FEW_ROWS = 10_000
"""So many rows are recomputed in about the time that one change takes anyway."""


def few_rows_at_most(node: Node) -> int | None:
    """The largest number of rows of a node, if its plan alone shows that they are few."""
    rows = node.max_rows(lambda _leaf: None)
    return rows if rows is not None and rows <= _FEW_ROWS else None


def recompute_changed_groups(
    node: Aggregate | Window, keys: tuple[ColumnId, ...], context: Differentiator
) -> Change:
    """The change of a node by recomputing the groups with these key columns that changed."""
    # Without keys even a row that was deleted and inserted again would recompute everything.
    change = context.materialized_change(node.child, consolidated=not keys)
    if change.plan is None:
        return change
    columns = zset_columns(node.columns)
    sides: list[tuple[int, Callable[[Node], Node]]] = [
        (1, context.rows_after),
        (-1, context.rows_before),
    ]
    inputs: list[Node] = []
    for sign, rows_of in sides:
        rows = rows_of(node.child)
        if keys:
            on = tuple((key, key) for key in keys)
            semi_join = KeySemiJoin(columns=rows.columns, child=rows, keys=change.plan, on=on)
            rows = push_down_keys(semi_join, context.engine)
        inputs.append(WithWeight(columns=columns, child=node.over(rows), sign=sign))
    return Change(Union(columns=columns, inputs=tuple(inputs)), insert_only=False)

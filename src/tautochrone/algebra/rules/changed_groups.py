"""What has to be computed anew for each group or partition that changed, before and after."""

from __future__ import annotations

from collections.abc import Callable

from tautochrone.algebra.delta import Change, Differentiator, zset_columns
from tautochrone.algebra.nodes import (
    Aggregate,
    ColumnId,
    KeySemiJoin,
    Node,
    Union,
    Window,
    WithWeight,
)
from tautochrone.algebra.pushdown import push_down_keys

__all__ = ["recompute_changed_groups"]


def recompute_changed_groups(
    node: Aggregate | Window, keys: tuple[ColumnId, ...], at: Differentiator
) -> Change:
    """Δ = f(X₁|K) - f(X₀|K), K the keys that occur in ΔX. Without keys: everything.

    Also the rule for what is not a function of single rows or running sums: medians, lists, ranks.
    """
    # Without keys a row that left and came again would cost everything.
    change = at.materialized_change(node.child, consolidated=not keys)
    if change.plan is None:
        return change
    keys_of = change.plan
    parts: list[Node] = []
    sides: list[tuple[int, Callable[[Node], Node]]] = [(1, at.rows_after), (-1, at.rows_before)]
    for sign, rows_at in sides:
        rows = rows_at(node.child)
        if keys:
            on = tuple((key, key) for key in keys)
            asked = KeySemiJoin(columns=rows.columns, child=rows, keys=keys_of, on=on)
            rows = push_down_keys(asked, at.engine)
        whole = node.with_children([rows])
        parts.append(WithWeight(columns=zset_columns(node.columns), child=whole, sign=sign))
    return Change(Union(columns=zset_columns(node.columns), inputs=tuple(parts)), insert_only=False)

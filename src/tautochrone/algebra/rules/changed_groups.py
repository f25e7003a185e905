"""What has to be computed anew for each group or partition that changed, before and after."""

from __future__ import annotations

from collections.abc import Callable

from tautochrone.algebra.delta import Change, Differentiator, signed
from tautochrone.algebra.plan import Aggregate, ColumnId, Matching, Node, Union, Weigh, Window, with_children
from tautochrone.algebra.pushdown import pushed

__all__ = ["by_affected_groups"]


def by_affected_groups(node: Aggregate | Window, keys: tuple[ColumnId, ...], at: Differentiator) -> Change:
    """Δ = f(X₁|K) - f(X₀|K), K the keys that occur in ΔX. Without keys: everything.

    Also the rule for what is not a function of single rows or running sums: medians, lists, ranks.
    """
    # Without keys a row that left and came again would cost everything.
    change = at.kept(node.child, net=not keys)
    if change.plan is None:
        return change
    keys_of = change.plan
    parts: list[Node] = []
    sides: list[tuple[int, Callable[[Node], Node]]] = [(1, at.new), (-1, at.old)]
    for sign, rows_at in sides:
        rows = rows_at(node.child)
        if keys:
            on = tuple((key, key) for key in keys)
            asked = Matching(columns=rows.columns, child=rows, keys=keys_of, on=on)
            rows = pushed(asked, at.engine)
        whole = with_children(node, [rows])
        parts.append(Weigh(columns=signed(node.columns), child=whole, sign=sign))
    return Change(Union(columns=signed(node.columns), inputs=tuple(parts)), grows=False)

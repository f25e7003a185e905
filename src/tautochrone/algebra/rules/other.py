"""Operators without a rule: compared as a whole, so that everything above stays incremental."""

from __future__ import annotations

from typing import Any

from tautochrone.algebra.delta import Bag, Change, Differentiator, signed
from tautochrone.algebra.plan import ColumnId, Other, Union, Weigh
from tautochrone.model.refresh import RefreshMode

__all__ = ["OtherRule"]


class OtherRule:
    """Δ = f(X₁) - f(X₀)."""

    def meaning(self, node: Other, *inputs: Bag) -> list[dict[ColumnId, Any]]:
        return list(node.handle(*inputs))

    def change(self, node: Other, at: Differentiator) -> Change:
        columns = signed(node.columns)
        after = Weigh(columns=columns, child=at.new(node), sign=1)
        before = Weigh(columns=columns, child=at.old(node), sign=-1)
        return Change(Union(columns=columns, inputs=(after, before)), grows=False)

    def mode(self, node: Other) -> tuple[RefreshMode, str]:
        return RefreshMode.DIFF, node.reason

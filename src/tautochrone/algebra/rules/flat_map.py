"""Extend: the engine's row-by-row operators, such as explode and Python functions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tautochrone.algebra.delta import Bag, Change, Differentiator, signed
from tautochrone.algebra.plan import ColumnId, Extend
from tautochrone.model.refresh import RefreshMode

__all__ = ["ExtendRule"]


class ExtendRule:
    """Each row's results carry the row's weight."""

    def meaning(self, node: Extend, rows: Bag) -> list[dict[ColumnId, Any]]:
        return [
            {**{column: row[column] for column in node.kept}, **made}
            for row in rows
            for made in node.handle(row)
        ]

    def change(self, node: Extend, at: Differentiator) -> Change:
        child = at.change(node.child)
        assert child.plan is not None
        columns, kept = signed(node.columns), signed(node.kept)
        return Change(replace(node, columns=columns, child=child.plan, kept=kept), child.grows)

    def mode(self, node: Extend) -> tuple[RefreshMode, str]:
        return RefreshMode.APPEND, "row by row over the change"

"""ORDER BY … LIMIT: the first rows and a buffer behind them are kept (Yi et al. 2003).

While the buffer holds enough rows a change is merged into it; only when deletes have used it up, the
child is read again.
"""

from __future__ import annotations

from typing import Any

from tautochrone.algebra.delta import Bag, Change, Differentiator, signed
from tautochrone.algebra.plan import (
    ColumnId,
    Kept,
    MergeTop,
    Moment,
    Node,
    Select,
    Stored,
    Top,
    Union,
    Weigh,
    Where,
)
from tautochrone.model.refresh import RefreshMode

__all__ = ["TopRule", "top_state_of"]


class TopRule:
    """See the module. The order is total: the engine breaks ties by all columns."""

    def meaning(self, node: Top, rows: Bag) -> list[dict[ColumnId, Any]]:
        return [dict(row) for row in sorted(rows, key=node.order)[node.offset :][: node.limit]]

    def change(self, node: Top, at: Differentiator) -> Change:
        if node.number not in at.states:
            at.note(node, "its rows cannot be kept: computed as a whole and compared", RefreshMode.DIFF)
            return _compared(node, at)
        child = at.kept(node.child)
        if child.plan is None:
            return child
        stored = at.engine.keep(Stored(columns=node.state_columns, of=node))
        merged = at.engine.keep(
            MergeTop(columns=node.state_columns, stored=stored, change=child.plan, of=node)
        )
        # At least one, for LIMIT 0: without any kept row nobody could tell that there are others.
        if merged.rows < max(node.limit + node.offset, 1) and not _complete(node, merged, at):
            at.note(node, "the buffer was used up: read again")
            merged = at.engine.keep(top_state_of(node, at.new(node.child)))
        at.updates[node.number] = merged
        columns = signed(node.columns)
        before = Weigh(columns=columns, child=_answer(node, stored), sign=-1)
        after = Weigh(columns=columns, child=_answer(node, merged), sign=1)
        return Change(Union(columns=columns, inputs=(before, after)), grows=False)

    def rows_from_state(self, node: Top, at: Differentiator, moment: Moment) -> Node:
        """The answer at a cut, from the kept rows."""
        if moment is Moment.NEW and at.change(node):
            return _answer(node, at.update(node.number))
        return _answer(node, Stored(columns=node.state_columns, of=node))

    def mode(self, node: Top) -> tuple[RefreshMode, str]:
        return RefreshMode.INCREMENTAL, f"first {node.limit} kept with a buffer"


def top_state_of(node: Top, rows: Node) -> Node:
    """The whole state of a node over the rows of its child."""
    nothing = Kept(columns=node.state_columns, handle=None, rows=0)
    weighed = Weigh(columns=signed(rows.columns), child=rows)
    return MergeTop(columns=node.state_columns, stored=nothing, change=weighed, of=node)


def _compared(node: Top, at: Differentiator) -> Change:
    """Δ = f(X₁) - f(X₀)."""
    columns = signed(node.columns)
    after = Weigh(columns=columns, child=at.new(node), sign=1)
    before = Weigh(columns=columns, child=at.old(node), sign=-1)
    return Change(Union(columns=columns, inputs=(after, before)), grows=False)


def _complete(node: Top, merged: Kept, at: Differentiator) -> bool:
    """Whether the kept rows are all that there are. Without rows nobody knows: read again."""
    whole = Where(columns=merged.columns, child=merged, flag=node.complete)
    return merged.rows > 0 and at.engine.keep(whole).rows > 0


def _answer(node: Top, rows: Node) -> Node:
    kept = Select(columns=node.columns, child=rows)
    return Top(
        columns=node.columns,
        child=kept,
        order=node.order,
        limit=node.limit,
        offset=node.offset,
        number=node.number,
        complete=node.complete,
    )

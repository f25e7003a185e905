"""ORDER BY … LIMIT: the first rows and a buffer behind them are kept (Yi et al. 2003).

While the buffer holds enough rows a change is merged into it; only when deletes have used it up, the
child is read again.
"""

from __future__ import annotations

from typing import Any

from tautochrone.algebra.delta import Bag, Change, Differentiator, zset_columns
from tautochrone.algebra.nodes import (
    ColumnId,
    CutSide,
    FlagFilter,
    Materialized,
    MergeTopK,
    Node,
    Select,
    StateScan,
    TopK,
    Union,
    WithWeight,
)
from tautochrone.model.refresh import RefreshMode

__all__ = ["TopKRule", "top_k_state"]


class TopKRule:
    """See the module. The order is total: the engine breaks ties by all columns."""

    def evaluate(self, node: TopK, rows: Bag) -> list[dict[ColumnId, Any]]:
        return [dict(row) for row in sorted(rows, key=node.order)[node.offset :][: node.limit]]

    def change(self, node: TopK, at: Differentiator) -> Change:
        if node.number not in at.states:
            at.record(node, "its rows cannot be kept: computed as a whole and compared", RefreshMode.DIFF)
            return _compared(node, at)
        child = at.materialized_change(node.child)
        if child.plan is None:
            return child
        stored = at.engine.materialize(StateScan(columns=node.state_columns, of=node))
        merged = at.engine.materialize(
            MergeTopK(columns=node.state_columns, stored=stored, change=child.plan, of=node)
        )
        # At least one, for LIMIT 0: without any kept row nobody could tell that there are others.
        if merged.rows < max(node.limit + node.offset, 1) and not _complete(node, merged, at):
            at.record(node, "the buffer was used up: read again")
            merged = at.engine.materialize(top_k_state(node, at.rows_after(node.child)))
        at.state_updates[node.number] = merged
        columns = zset_columns(node.columns)
        before = WithWeight(columns=columns, child=_answer(node, stored), sign=-1)
        after = WithWeight(columns=columns, child=_answer(node, merged), sign=1)
        return Change(Union(columns=columns, inputs=(before, after)), insert_only=False)

    def rows_from_state(self, node: TopK, at: Differentiator, side: CutSide) -> Node:
        """The answer at a cut, from the kept rows."""
        if side is CutSide.AFTER and at.change(node):
            return _answer(node, at.state_update(node.number))
        return _answer(node, StateScan(columns=node.state_columns, of=node))

    def mode(self, node: TopK) -> tuple[RefreshMode, str]:
        return RefreshMode.INCREMENTAL, f"first {node.limit} kept with a buffer"


def top_k_state(node: TopK, rows: Node) -> Node:
    """The whole state of a node over the rows of its child."""
    nothing = Materialized(columns=node.state_columns, handle=None, rows=0)
    weighed = WithWeight(columns=zset_columns(rows.columns), child=rows)
    return MergeTopK(columns=node.state_columns, stored=nothing, change=weighed, of=node)


def _compared(node: TopK, at: Differentiator) -> Change:
    """Δ = f(X₁) - f(X₀)."""
    columns = zset_columns(node.columns)
    after = WithWeight(columns=columns, child=at.rows_after(node), sign=1)
    before = WithWeight(columns=columns, child=at.rows_before(node), sign=-1)
    return Change(Union(columns=columns, inputs=(after, before)), insert_only=False)


def _complete(node: TopK, merged: Materialized, at: Differentiator) -> bool:
    """Whether the kept rows are all that there are. Without rows nobody knows: read again."""
    whole = FlagFilter(columns=merged.columns, child=merged, flag=node.complete)
    return merged.rows > 0 and at.engine.materialize(whole).rows > 0


def _answer(node: TopK, rows: Node) -> Node:
    kept = Select(columns=node.columns, child=rows)
    return TopK(
        columns=node.columns,
        child=kept,
        order=node.order,
        limit=node.limit,
        offset=node.offset,
        number=node.number,
        complete=node.complete,
    )

"""ORDER BY … LIMIT: the state is a buffer, the first rows and some behind them (Yi et al. 2003).

    Δτ(A) = τ(buffer_after) - τ(buffer_before), buffer_after = merge(buffer_before, ΔA)

While the buffer has enough rows the change is merged into it. When deletes have exhausted it, it is read
again from A_after. `ORDER BY v LIMIT 2`; the buffer was `a 1`, `b 3`, `c 5`:

    ΔA         buffer_after       Δτ(A)
    a 1 -1     b 3, d 4, c 5      a 1 -1
    d 4 +1                        d 4 +1
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
from tautochrone.model.checkpoint import RefreshMode

__all__ = ["TopKRule", "top_k_state"]


class TopKRule:
    """The rule of `TopK`; the module has the formula and an example.

    The order is total, because the engine breaks ties by all columns.
    """

    def evaluate(self, node: TopK, rows: Bag) -> list[dict[ColumnId, Any]]:
        return [dict(row) for row in sorted(rows, key=node.order)[node.offset :][: node.limit]]

    def change(self, node: TopK, context: Differentiator) -> Change:
        if node.number not in context.states:
            context.record(node, "it has no state: computed over all rows and compared", RefreshMode.DIFF)
            return _difference(node, context.rows_before(node), context.rows_after(node))
        change = context.materialized_change(node.child)
        if change.plan is None:
            return change
        engine = context.engine
        stored = engine.materialize(StateScan(columns=node.state_columns, operator=node))
        merged = engine.materialize(
            MergeTopK(columns=node.state_columns, stored=stored, change=change.plan, top_k=node)
        )
        # At least one row, also for LIMIT 0: an empty buffer cannot say whether it is complete.
        if merged.rows < max(node.limit + node.offset, 1) and not _is_complete(node, merged, context):
            context.record(node, "the buffer was exhausted: read again")
            merged = engine.materialize(top_k_state(node, context.rows_after(node.child)))
        context.state_updates[node.number] = merged
        return _difference(node, _first_rows(node, stored), _first_rows(node, merged))

    def rows_from_state(self, node: TopK, context: Differentiator, side: CutSide) -> Node:
        if side is CutSide.AFTER and context.change(node):
            return _first_rows(node, context.state_update(node.number))
        return _first_rows(node, StateScan(columns=node.state_columns, operator=node))

    def mode(self, node: TopK) -> tuple[RefreshMode, str]:
        return RefreshMode.INCREMENTAL, f"first {node.limit} rows, with a buffer"


def top_k_state(node: TopK, rows: Node) -> Node:
    """The state of a node whose child has these rows, as a first build stores it."""
    no_rows = Materialized(columns=node.state_columns, handle=None, rows=0)
    inserts = WithWeight(columns=zset_columns(rows.columns), child=rows)
    return MergeTopK(columns=node.state_columns, stored=no_rows, change=inserts, top_k=node)


def _difference(node: TopK, before: Node, after: Node) -> Change:
    columns = zset_columns(node.columns)
    deletes = WithWeight(columns=columns, child=before, sign=-1)
    inserts = WithWeight(columns=columns, child=after, sign=1)
    return Change(Union(columns=columns, inputs=(deletes, inserts)), insert_only=False)


def _is_complete(node: TopK, buffer: Materialized, context: Differentiator) -> bool:
    """Whether the buffered rows are all rows of the child. An empty buffer does not say."""
    complete = FlagFilter(columns=buffer.columns, child=buffer, flag=node.complete)
    return buffer.rows > 0 and context.engine.materialize(complete).rows > 0


def _first_rows(node: TopK, buffer: Node) -> Node:
    """The result from the buffered rows."""
    return node.over(Select(columns=node.columns, child=buffer))

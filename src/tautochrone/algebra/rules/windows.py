"""The rules of what depends on the order of rows: window functions, and ORDER BY … LIMIT."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from tautochrone.algebra.delta import Bag, Change, Differentiator, zset_columns
from tautochrone.algebra.nodes import (
    ColumnId,
    CutSide,
    FlagFilter,
    Join,
    JoinKind,
    Materialized,
    MergeTopK,
    Node,
    OrderedFrom,
    Project,
    Rename,
    RunningTotals,
    Select,
    StateScan,
    TopK,
    Totals,
    Union,
    Window,
    WithWeight,
)
from tautochrone.algebra.rules.aggregates import few_rows_at_most, recompute_changed_groups
from tautochrone.model.checkpoint import RefreshMode
from tautochrone.model.counts import counted

__all__ = ["TopKRule", "WindowRule"]


class WindowRule:
    """Window functions: partitions that changed are recomputed, before and after.

        Δw(A) = w(A_after ⋉ K) - w(A_before ⋉ K), K the partition keys in ΔA

    `row_number() OVER (PARTITION BY k ORDER BY v)`; A was `a 5`, `b 6`:

        ΔA         K     Δw(A)
        a 1 +1     a     a 5 1 -1
                         a 1 1 +1
                         a 5 2 +1

    Without partitions, functions of earlier rows change from the first changed row on:

        Δw(A) = T + w(A_after from m) - T + w(A_before from m)

    m is the first value of the order in ΔA, and T what the rows before m add up to, which is the same before
    and after. `row_number() OVER (ORDER BY v)`; A was `a 5`, `b 6`, `c 8`:

        ΔA         m     T     Δw(A)
        d 7 +1     7     2     c 8 3 -1
                               d 7 3 +1
                               c 8 4 +1

    The order in a partition is total, because the engine breaks ties by all columns. So the same rows always
    give the same result.
    """

    node_type: ClassVar = Window

    def evaluate(self, node: Window, rows: Bag) -> list[dict[ColumnId, Any]]:
        partitions: dict[tuple[Any, ...], list[Any]] = {}
        for row in rows:
            partitions.setdefault(tuple(row[column] for column in node.partition), []).append(row)
        return [row for partition in partitions.values() for row in node.handle(partition)]

    def change(self, node: Window, context: Differentiator) -> Change:
        if node.running is not None and few_rows_at_most(node.child) is None:
            return _change_from_first_row(node, node.running, context)
        return recompute_changed_groups(node, node.partition, context)

    def mode(self, node: Window) -> tuple[RefreshMode, str]:
        if node.partition:
            return RefreshMode.INCREMENTAL, "partitions that changed"
        if (rows := few_rows_at_most(node.child)) is not None:
            return RefreshMode.INCREMENTAL, f"window without PARTITION BY over at most {counted(rows, 'row')}"
        if node.running is not None:
            return RefreshMode.INCREMENTAL, "rows from the first changed one on, in the window's order"
        return RefreshMode.DIFF, "window without PARTITION BY: every row may change"


def _change_from_first_row(node: Window, running: RunningTotals, context: Differentiator) -> Change:
    # A row that was deleted and inserted again must not count as the first change.
    change = context.materialized_change(node.child, consolidated=True)
    if change.plan is None:
        return change
    engine = context.engine
    bound_key = engine.fresh()
    first = TopK(
        columns=(running.key,),
        child=Select(columns=(running.key,), child=change.plan),
        order=running.order,
        limit=1,
        offset=0,
        number=0,
        complete=engine.fresh(),
    )
    bound = engine.materialize(Rename(columns=(bound_key,), child=first, sources=(running.key,)))

    def cut(rows: Node, *, before: bool) -> Node:
        return OrderedFrom(
            columns=rows.columns,
            child=rows,
            key=running.key,
            order=running.order,
            bound=bound,
            bound_key=bound_key,
            before=before,
        )

    rows_before = cut(context.rows_before(node.child), before=True)
    totals = engine.materialize(Totals(columns=running.total, child=rows_before, handle=running.totals))
    columns = zset_columns(node.columns)
    sides: list[tuple[int, Callable[[Node], Node]]] = [(1, context.rows_after), (-1, context.rows_before)]
    inputs = []
    for sign, rows_of in sides:
        rows = cut(rows_of(node.child), before=False)
        inputs.append(
            WithWeight(columns=columns, child=_continued_totals(node, running, rows, totals), sign=sign)
        )
    return Change(Union(columns=columns, inputs=tuple(inputs)), insert_only=False)


def _continued_totals(node: Window, running: RunningTotals, rows: Node, totals: Materialized) -> Node:
    """The window functions over rows behind those of which the totals are."""
    windowed = Window(
        columns=(*rows.columns, *running.partial), child=rows, handle=running.handle, partition=()
    )
    both = (*windowed.columns, *totals.columns)
    joined = Join(columns=both, left=windowed, right=totals, kind=JoinKind.SCALAR)
    results = dict(zip(node.columns[len(rows.columns) :], running.results, strict=True))
    return Project(
        columns=node.columns, child=joined, expressions=tuple(results.get(column) for column in node.columns)
    )


class TopKRule:
    """ORDER BY … LIMIT: the state is a buffer, the first rows and some behind them (Yi et al. 2003).

        Δτ(A) = τ(buffer_after) - τ(buffer_before), buffer_after = merge(buffer_before, ΔA)

    While the buffer has enough rows the change is merged into it. When deletes have exhausted it, it is read
    again from A_after. `ORDER BY v LIMIT 2`; the buffer was `a 1`, `b 3`, `c 5`:

        ΔA         buffer_after       Δτ(A)
        a 1 -1     b 3, d 4, c 5      a 1 -1
        d 4 +1                        d 4 +1

    The order is total, because the engine breaks ties by all columns.
    """

    node_type: ClassVar = TopK

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
            merged = engine.materialize(context.first_state(node))
        context.state_updates[node.number] = merged
        return _difference(node, _first_rows(node, stored), _first_rows(node, merged))

    def state_of(self, node: TopK, rows: Node, context: Differentiator) -> Node:
        no_rows = Materialized(columns=node.state_columns, handle=None, rows=0)
        inserts = WithWeight(columns=zset_columns(rows.columns), child=rows)
        return MergeTopK(columns=node.state_columns, stored=no_rows, change=inserts, top_k=node)

    def rows_from_state(self, node: TopK, context: Differentiator, side: CutSide) -> Node:
        if side is CutSide.AFTER and context.change(node):
            return _first_rows(node, context.state_update(node.number))
        return _first_rows(node, StateScan(columns=node.state_columns, operator=node))

    def mode(self, node: TopK) -> tuple[RefreshMode, str]:
        return RefreshMode.INCREMENTAL, f"first {node.limit} rows, with a buffer"


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

"""Window functions: partitions that changed are recomputed, before and after.

    Δw(A) = w(A_after ⋉ K) - w(A_before ⋉ K), K the partition keys in ΔA

`row_number() OVER (PARTITION BY k ORDER BY v)`; A was `a 5`, `b 6`:

    ΔA         K     Δw(A)
    a 1 +1     a     a 5 1 -1
                     a 1 1 +1
                     a 5 2 +1

Without partitions, functions of earlier rows change from the first changed row on:

    Δw(A) = T + w(A_after from m) - T + w(A_before from m)

m is the first value of the order in ΔA, and T what the rows before m add up to, which is the same before and
after. `row_number() OVER (ORDER BY v)`; A was `a 5`, `b 6`, `c 8`:

    ΔA         m     T     Δw(A)
    d 7 +1     7     2     c 8 3 -1
                           d 7 3 +1
                           c 8 4 +1
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tautochrone.algebra.delta import Bag, Change, Differentiator, zset_columns
from tautochrone.algebra.nodes import (
    ColumnId,
    Join,
    JoinKind,
    Materialized,
    Node,
    OrderedFrom,
    Project,
    Rename,
    RunningTotals,
    Select,
    TopK,
    Totals,
    Union,
    Window,
    WithWeight,
    plural,
)
from tautochrone.algebra.rules.changed_groups import few_rows_at_most, recompute_changed_groups
from tautochrone.model.checkpoint import RefreshMode

__all__ = ["WindowRule"]


class WindowRule:
    """The rule of `Window`; the module has the formulas and examples.

    The order in a partition is total, because the engine breaks ties by all columns. So the same rows always
    give the same result.
    """

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
            return RefreshMode.INCREMENTAL, f"window without PARTITION BY over at most {plural(rows, 'row')}"
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
        inputs.append(WithWeight(columns=columns, child=_continued(node, running, rows, totals), sign=sign))
    return Change(Union(columns=columns, inputs=tuple(inputs)), insert_only=False)


def _continued(node: Window, running: RunningTotals, rows: Node, totals: Materialized) -> Node:
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

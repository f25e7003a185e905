"""Builders of small queries, named like SQL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count as numbers
from typing import Any

from tautochrone.algebra.delta import Row
from tautochrone.algebra.nodes import (
    Aggregate,
    AggregateCall,
    AggregateFunction,
    ColumnId,
    Expression,
    Filter,
    Join,
    JoinKey,
    JoinKind,
    Node,
    RunningTotals,
    Scan,
    TopK,
    Window,
)

from .random_expressions import order_of

_NUMBERS = numbers()


def bag(*rows: tuple[Any, ...]) -> Counter[tuple[Any, ...]]:
    return Counter(rows)


def columns_of(names: str) -> tuple[ColumnId, ...]:
    return tuple(ColumnId(name) for name in names.split())


def scan(table: str, columns: str, positions: Sequence[int] | None = None) -> Scan:
    return Scan(columns=columns_of(columns), table=table, handle=positions)


def expression(reads: str, handle: Callable[[Row], Any]) -> Expression:
    return Expression(handle, frozenset(columns_of(reads)), reads)


def where(child: Node, reads: str, handle: Callable[[Row], Any]) -> Filter:
    return Filter(columns=child.columns, child=child, condition=expression(reads, handle))


def join(
    left: Node,
    right: Node,
    on: str = "",
    kind: JoinKind = JoinKind.INNER,
    condition: Expression | None = None,
) -> Join:
    """A join. `on` has pairs such as `a=b`, or `a==b` where NULL equals NULL."""
    keys = []
    for pair in on.split():
        safe = "==" in pair
        a, b = pair.split("==" if safe else "=")
        keys.append(JoinKey(left=ColumnId(a), right=ColumnId(b), null_safe=safe))
    columns, exists = (*left.columns, *right.columns), None
    if kind in (JoinKind.SEMI, JoinKind.ANTI):
        columns = left.columns
    elif kind is JoinKind.EXISTENCE:
        exists = ColumnId("exists")
        columns = (*left.columns, exists)
    conditions = (condition,) if condition else ()
    return Join(
        columns=columns,
        left=left,
        right=right,
        kind=kind,
        keys=tuple(keys),
        conditions=conditions,
        exists=exists,
    )


def call(kind: AggregateFunction, argument: str = "", exact: bool = True) -> AggregateCall:
    """An aggregate function of a column; COUNT without a column counts rows."""
    number = next(_NUMBERS)
    width = {
        AggregateFunction.SUM: 2,
        AggregateFunction.AVERAGE: 2,
        AggregateFunction.VARIANCE: 3,
        AggregateFunction.OTHER: 0,
    }.get(kind, 1)
    return AggregateCall(
        output=ColumnId(f"{kind}{number}"),
        function=kind,
        handle=lambda rows: tuple(sorted(row[argument] for row in rows if row[argument] is not None)),
        argument=expression(argument, lambda row: row[argument]) if argument else None,
        exact=exact,
        accumulators=tuple(ColumnId(f"{kind}{number}_{part}") for part in range(width)),
    )


def group(child: Node, keys: str, *calls: AggregateCall) -> Aggregate:
    return Aggregate(
        columns=(*columns_of(keys), *(call.output for call in calls)),
        child=child,
        keys=columns_of(keys),
        calls=calls,
        count=ColumnId(f"count_{next(_NUMBERS)}"),
        number=next(_NUMBERS),
    )


def row_number(child: Node, partition: str, order: str, number: str = "row_number") -> Window:
    """ROW_NUMBER by some columns, ties broken by all."""
    key = order_of((*columns_of(order), *child.columns))

    def numbered(rows: Sequence[Row]) -> list[dict[ColumnId, Any]]:
        return [{**row, ColumnId(number): index + 1} for index, row in enumerate(sorted(rows, key=key))]

    columns = (*child.columns, ColumnId(number))
    return Window(columns=columns, child=child, handle=numbered, partition=columns_of(partition))


def continued_row_number(child: Node, order: str) -> Window:
    """ROW_NUMBER by a column without partitions, which goes on from the number of earlier rows."""
    window = row_number(child, "", order)
    total = ColumnId("rows_before")
    return replace(
        window,
        running=RunningTotals(
            key=ColumnId(order),
            order=order_of(columns_of(order)),
            handle=row_number(child, "", order, "later_number").handle,
            partial=(ColumnId("later_number"),),
            totals=lambda rows: {total: len(rows)},
            total=(total,),
            results=(
                Expression(
                    lambda row: row[ColumnId("later_number")] + row[total],
                    frozenset((ColumnId("later_number"), total)),
                ),
            ),
        ),
    )


def first(child: Node, order: str, limit: int, offset: int = 0) -> TopK:
    return TopK(
        columns=child.columns,
        child=child,
        order=order_of((*columns_of(order), *child.columns)),
        limit=limit,
        offset=offset,
        number=next(_NUMBERS),
        complete=ColumnId(f"complete_{next(_NUMBERS)}"),
    )

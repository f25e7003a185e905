"""Random queries: every node, join kind and aggregate kind, nested as they come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.support.plan_evaluator_nodes import comparable

from tautochrone.algebra.delta import Row
from tautochrone.algebra.nodes import (
    Aggregate,
    AggregateCall,
    AggregateFunction,
    ColumnId,
    Constant,
    Expand,
    Expression,
    Filter,
    FlatMap,
    Join,
    JoinKey,
    JoinKind,
    Node,
    Project,
    Rename,
    RunningTotals,
    ScalarFilter,
    Scan,
    Select,
    TopK,
    Union,
    Window,
)

from .choices import ByteChoices
from .random_expressions import FLAG, FLOAT, INT, LIST, RandomExpressions, order_of

TABLES = ("a", "b", "c")
"""Each has the columns (integer, integer, inexact number), all nullable."""


class RandomQueries(RandomExpressions):
    """Builds one query.

    Attributes:
        stateful_nodes: by number.
        scans: how many there are.
    """

    def __init__(self, choices: ByteChoices) -> None:
        super().__init__(choices)
        self.stateful_nodes: list[Aggregate | TopK] = []
        self.scans = 0

    def query(self, budget: int) -> Node:
        """A query of about `budget` operators."""
        if budget <= 0 or self.scans >= 6:
            return self.leaf()
        makers: list[tuple[Callable[[int], Node], int]] = [
            (self.filter, 3),
            (self.project, 2),
            (self.select, 1),
            (self.rename, 1),
            (self.union, 2),
            (self.expand, 1),
            (self.flat_map, 2),
            (self.join, 12),
            (self.chain, 4),
            (self.aggregate, 10),
            (self.distinct, 2),
            (self.window, 3),
            (self.top_k, 3),
            (self.scalar_filter, 3),
        ]
        return self.choices.weighted(makers)(budget - 1)

    # -- leaves and columns ------------------------------------------------------------------------------

    def leaf(self) -> Node:
        if self.choices.chance(5):
            columns = (self.column(INT), self.column(INT))
            rows = [
                self.choices.choose([(0, 1), (1, 1), (None, 2), (2, None)])
                for _ in range(self.choices.below(4))
            ]
            return Constant(columns=columns, handle=rows)
        self.scans += 1
        table = self.choices.choose(TABLES)
        positions = self.choices.choose([(0, 1, 2), (0, 1), (1, 0), (1, 2), (1,)])
        columns = tuple(self.column((INT, INT, FLOAT)[position]) for position in positions)
        return Scan(columns=columns, table=table, handle=positions)

    # -- row by row --------------------------------------------------------------------------------------

    def filter(self, budget: int) -> Node:
        return self.filtered(self.query(budget))

    def filtered(self, child: Node) -> Node:
        return Filter(columns=child.columns, child=child, condition=self.predicate(child.columns))

    def project(self, budget: int) -> Node:
        return self.projected(self.query(budget))

    def projected(self, child: Node) -> Node:
        passed: list[tuple[ColumnId, Expression | None]] = [
            (column, None) for column in self.choices.sample(child.columns, 1, 4)
        ]
        computed = [(self.column(INT), self.number(child.columns)) for _ in range(self.choices.below(3))]
        pairs = [*passed, *computed]
        return Project(
            columns=tuple(c for c, _ in pairs), child=child, expressions=tuple(e for _, e in pairs)
        )

    def select(self, budget: int) -> Node:
        child = self.query(budget)
        return Select(columns=tuple(self.choices.sample(child.columns, 1, 4)), child=child)

    def rename(self, budget: int) -> Node:
        child = self.query(budget)
        sources = tuple(self.choices.sample(child.columns, 1, 4))
        columns = tuple(self.column(self.types[source]) for source in sources)
        return Rename(columns=columns, child=child, sources=sources)

    def union(self, budget: int) -> Node:
        number = 2 + self.choices.chance(25)
        width = 1 + self.choices.below(2)
        columns = tuple(self.column(INT) for _ in range(width))
        inputs = []
        for _ in range(number):
            child = self.query((budget - 1) // number)
            numbers = tuple(self.number(child.columns) for _ in columns)
            inputs.append(Project(columns=columns, child=child, expressions=numbers))
        return Union(columns=columns, inputs=tuple(inputs))

    def expand(self, budget: int) -> Node:
        child = self.query(budget)
        sets = 1 + self.choices.below(3)
        columns = (self.column(INT), self.column(INT), self.column(INT))
        a, b = self.number(child.columns), self.number(child.columns)
        null = Expression(lambda row: None, frozenset(), "null")
        projections = [
            (a if number != 1 else null, b if number == 0 else null, _constant(number))
            for number in range(sets)
        ]
        return Expand(columns=columns, child=child, projections=tuple(projections))

    def flat_map(self, budget: int) -> Node:
        child = self.query(budget)
        number, item = self.number(child.columns), self.column(INT)
        passed = tuple(self.choices.sample(child.columns, 0, 4))

        def explode(row: Row) -> list[dict[ColumnId, Any]]:
            value = number.handle(row)
            return [{item: count} for count in range(0 if value is None else value % 3)]

        return FlatMap(columns=(*passed, item), child=child, handle=explode, passed=passed, generated=(item,))

    # -- joins -------------------------------------------------------------------------------------------

    def join(self, budget: int) -> Node:
        kind = self.choices.choose(list(JoinKind))
        if kind is JoinKind.SCALAR:
            left, right = self.query(budget // 2), self.one_row(budget // 2)
            return Join(columns=(*left.columns, *right.columns), left=left, right=right, kind=kind)
        left, right = self.query(budget // 2), self.query(budget // 2)
        return self.joined(left, right, kind)

    def joined(self, left: Node, right: Node, kind: JoinKind) -> Node:
        keys = []
        for column in self.choices.sample(self.columns_of_type(right, INT), 1, 1 + self.choices.chance(15)):
            ints = self.columns_of_type(left, INT)
            if ints and not self.choices.chance(12):
                keys.append(
                    JoinKey(left=self.choices.choose(ints), right=column, null_safe=self.choices.chance(20))
                )
        conditions = []
        if self.choices.chance(25) or (not keys and kind is not JoinKind.SEMI):
            conditions.append(self.predicate(left.columns, right.columns))
        columns, exists = (*left.columns, *right.columns), None
        if kind in (JoinKind.SEMI, JoinKind.ANTI):
            columns = left.columns
        elif kind is JoinKind.EXISTENCE:
            exists = self.column(FLAG)
            columns = (*left.columns, exists)
        return Join(
            columns=columns,
            left=left,
            right=right,
            kind=kind,
            keys=tuple(keys),
            conditions=tuple(conditions),
            exists=exists,
        )

    def chain(self, budget: int) -> Node:
        """Inner joins of three to five inputs, with selections and projections between."""
        parts = 3 + self.choices.below(3)
        current = self.query(budget // parts)
        for _ in range(parts - 1):
            part = self.query(budget // parts)
            if self.choices.chance(30):
                current, part = part, current
            current = self.joined(current, part, JoinKind.INNER)
            match self.choices.below(6):
                case 3:
                    current = self.filtered(current)
                case 4:
                    current = self.projected(current)
                case 5:
                    current = Select(columns=tuple(self.choices.sample(current.columns, 1, 4)), child=current)
        return current

    def one_row(self, budget: int) -> Node:
        """A query with at most one row."""
        if self.choices.chance(25):
            return self.top_k(budget, limit=1)
        child = self.aggregate(budget, keyless=True)
        return self.filtered(child) if self.choices.chance(25) else child

    def scalar_filter(self, budget: int) -> Node:
        child = self.query(budget // 2)
        scalars = [self.one_row(budget // 3) for _ in range(1 + self.choices.chance(30))]
        conditions = [self.predicate(child.columns, scalar.columns) for scalar in scalars]
        both = Expression(
            lambda row: all(condition.handle(row) for condition in conditions),
            frozenset().union(*(condition.references for condition in conditions)),
            " and ".join(condition.text for condition in conditions),
        )
        return ScalarFilter(columns=child.columns, child=child, scalars=tuple(scalars), condition=both)

    # -- groups ------------------------------------------------------------------------------------------

    def aggregate(self, budget: int, keyless: bool = False) -> Node:
        child = self.query(budget)
        keys = () if keyless else tuple(self.choices.sample(self.columns_of_type(child, INT, FLAG), 0, 2))
        # Without keys at least one call, or there would be no column.
        calls = [
            self.call(child) for _ in range(self.choices.below(3) if keys else 1 + self.choices.below(2))
        ]
        if not self.choices.chance(25):
            calls = [call for call in calls if call.is_mergeable] or (
                [] if keys else [self.call(child, AggregateFunction.COUNT)]
            )
        return self.add_aggregate(child, keys, tuple(calls))

    def distinct(self, budget: int) -> Node:
        child = self.query(budget)
        columns = tuple(self.columns_of_type(child, INT, FLAG))
        return self.add_aggregate(child, columns, ()) if columns else child

    def add_aggregate(
        self, child: Node, keys: tuple[ColumnId, ...], calls: tuple[AggregateCall, ...]
    ) -> Aggregate:
        aggregate = Aggregate(
            columns=(*keys, *(call.output for call in calls)),
            child=child,
            keys=keys,
            calls=calls,
            count=self.column(INT),
            number=len(self.stateful_nodes),
        )
        self.stateful_nodes.append(aggregate)
        return aggregate

    def call(self, child: Node, function: AggregateFunction | None = None) -> AggregateCall:
        function = function or self.choices.choose(list(AggregateFunction))
        floats = self.columns_of_type(child, FLOAT)
        exact_only = function is AggregateFunction.VARIANCE or function.startswith("bit_")
        inexact = bool(floats) and self.choices.chance(50) and not exact_only
        argument = self.number(child.columns)
        if inexact:
            column = self.choices.choose(floats)
            argument = Expression(lambda row: row[column], frozenset([column]), column)
        column_type = INT if function is AggregateFunction.COUNT or not inexact else FLOAT
        column_type = {
            AggregateFunction.AVERAGE: FLOAT,
            AggregateFunction.VARIANCE: FLOAT,
            AggregateFunction.OTHER: LIST,
        }.get(function, column_type)
        width = {
            AggregateFunction.SUM: 2,
            AggregateFunction.AVERAGE: 2,
            AggregateFunction.VARIANCE: 3,
            AggregateFunction.OTHER: 0,
        }.get(function, 1)
        return AggregateCall(
            output=self.column(column_type),
            function=function,
            handle=lambda rows: tuple(
                sorted(comparable(v) for row in rows if (v := argument.handle(row)) is not None)
            ),
            argument=None if function is AggregateFunction.COUNT and self.choices.chance(50) else argument,
            condition=self.predicate(child.columns) if self.choices.chance(20) else None,
            exact=not inexact,
            accumulators=tuple(self.column(column_type) for _ in range(width)),
            text=f"{function}({argument.text})",
        )

    def window(self, budget: int) -> Node:
        child = self.query(budget)
        keys = self.columns_of_type(child, INT, FLAG)
        partition = tuple(self.choices.sample(keys, 0, 2))
        first = tuple(self.choices.sample(keys, 0, 1))
        order, number = order_of((*first, *child.columns)), self.number(child.columns)
        row_number, running_sum = self.column(INT), self.column(INT)

        def windowed_as(*outputs: ColumnId) -> Callable[[Sequence[Row]], list[dict[ColumnId, Any]]]:
            def windowed(rows: Sequence[Row]) -> list[dict[ColumnId, Any]]:
                output, total = [], 0
                for index, row in enumerate(sorted(rows, key=order)):
                    total += number.handle(row) or 0
                    output.append({**row, **dict(zip(outputs, (index + 1, total), strict=True))})
                return output

            return windowed

        running = None
        if first and not partition:
            partial, totals = (self.column(INT), self.column(INT)), (self.column(INT), self.column(INT))
            running = RunningTotals(
                key=first[0],
                order=order_of(first),
                handle=windowed_as(*partial),
                partial=partial,
                totals=lambda rows: {
                    totals[0]: len(rows),
                    totals[1]: sum(number.handle(row) or 0 for row in rows),
                },
                total=totals,
                results=tuple(map(_sum_of, partial, totals)),
            )
        columns = (*child.columns, row_number, running_sum)
        handle = windowed_as(row_number, running_sum)
        return Window(columns=columns, child=child, handle=handle, partition=partition, running=running)

    def top_k(self, budget: int, limit: int | None = None) -> Node:
        child = self.query(budget)
        top_k = TopK(
            columns=child.columns,
            child=child,
            order=order_of(self.choices.sample(child.columns, len(child.columns), len(child.columns))),
            limit=limit or self.choices.below(4),
            offset=self.choices.below(3),
            number=len(self.stateful_nodes),
            complete=self.column(FLAG),
        )
        self.stateful_nodes.append(top_k)
        return top_k


def _constant(value: int) -> Expression:
    return Expression(lambda row: value, frozenset(), f"{value}")


def _sum_of(left: ColumnId, right: ColumnId) -> Expression:
    return Expression(lambda row: row[left] + row[right], frozenset((left, right)))

"""Catalyst's aggregates, windows and limits in the algebra."""

from __future__ import annotations

from typing import TYPE_CHECKING

from py4j.java_gateway import JavaObject

from tautochrone.algebra.nodes import (
    Aggregate,
    AggregateCall,
    AggregateFunction,
    ColumnId,
    Expression,
    Join,
    JoinKey,
    JoinKind,
    Node,
    Rename,
    Select,
    TopK,
    Window,
)
from tautochrone.spark.analysis.nondeterminism import (
    is_first_of_partition,
    nondeterministic_function,
    nondeterministic_range_frame,
    nondeterministic_unordered_rows,
    order_insensitive_arrays,
)
from tautochrone.spark.jvm.catalyst import decimal_digits, items, kind
from tautochrone.spark.translate.distinct_aggregates import (
    distinct_aggregate_groups,
    distinct_children,
    is_distinct,
)
from tautochrone.spark.translate.exact_variance import sum_types, variance_argument

if TYPE_CHECKING:
    from tautochrone.spark.translate.from_catalyst import Translator

__all__ = ["Groups"]

_KINDS = {
    "Count": AggregateFunction.COUNT,
    "Sum": AggregateFunction.SUM,
    "Average": AggregateFunction.AVERAGE,
    "Min": AggregateFunction.MIN,
    "Max": AggregateFunction.MAX,
    "BitAndAgg": AggregateFunction.BIT_AND,
    "BitOrAgg": AggregateFunction.BIT_OR,
    "BitXorAgg": AggregateFunction.BIT_XOR,
}
_RANKS = frozenset({"Rank", "DenseRank", "PercentRank"})
_INEXACT = ("double", "float")
_NOT_SUMMED = ("interval", "void")
_NOT_ORDERED = ("map", "variant", "interval")


class Groups:
    """The part of a `Translator` for nodes that look at many rows at once."""

    def __init__(self, translator: Translator) -> None:
        self._translator = translator
        self._number = 0
        self._sorted: set[int] = set()

    # -- aggregates -------------------------------------------------------------------------------

    def aggregate(self, plan: JavaObject) -> Node:
        """GROUP BY, DISTINCT, and aggregates over everything."""
        translator = self._translator
        catalyst = translator.catalyst
        child = translator.node(plan.child())
        grouping = list(items(plan.groupingExpressions()))
        child, keys = translator.with_computed_columns(child, grouping)
        computed = [
            (expression, translator.attributes[key])
            for expression, key in zip(grouping, keys, strict=True)
            if kind(expression) != "AttributeReference"
        ]
        calls: list[JavaObject] = []

        def replace(expression: JavaObject) -> JavaObject | None:
            if kind(expression) == "AggregateExpression":
                calls.append(expression)
                return expression.resultAttribute()
            self._sorted.update(order_insensitive_arrays(expression))
            return next((key for other, key in computed if other.semanticEquals(expression)), None)

        named = []
        for entry in items(plan.aggregateExpressions()):
            if kind(entry) == "Alias":
                named.append(
                    catalyst.alias(
                        catalyst.transform_down(entry.child(), replace), str(entry.name()), entry.exprId()
                    )
                )
            else:
                named.append(entry)
        translator.refuse_subqueries("Aggregate", [*grouping, *calls])
        if any("sessionWindow" in str(translator.attributes[key].metadata().json()) for key in keys):
            translator.obstacles.append("session_window() merges groups, which has no rule")
        unique = tuple(dict.fromkeys(keys))
        return translator.project(self._grouped(child, unique, calls), named)

    def _grouped(self, child: Node, keys: tuple[ColumnId, ...], calls: list[JavaObject]) -> Node:
        """Groups with plain calls, and beside them one grouping for each argument of DISTINCT."""
        groups = distinct_aggregate_groups(calls)
        if len(groups) < 2:
            return self._of_one_kind(child, keys, calls)
        whole: Node | None = None
        for part in groups:
            made = self._of_one_kind(child, keys, part)
            whole = made if whole is None else self._beside(whole, made, keys)
        assert whole is not None
        outputs = tuple(self._translator.register(call.resultAttribute()) for call in calls)
        return Select(columns=(*keys, *outputs), child=whole)

    def _beside(self, left: Node, right: Node, keys: tuple[ColumnId, ...]) -> Node:
        """Two groupings of the same rows as one: both have every group once."""
        translator = self._translator
        ids = tuple(translator.register(translator.attributes[key].newInstance()) for key in keys)
        outputs = right.columns[len(keys) :]
        renamed = Rename(columns=(*ids, *outputs), child=right, sources=right.columns) if keys else right
        return Join(
            columns=(*left.columns, *renamed.columns),
            left=left,
            right=renamed,
            kind=JoinKind.INNER,
            keys=tuple(JoinKey(left=a, right=b, null_safe=True) for a, b in zip(keys, ids, strict=True)),
        )

    def _of_one_kind(self, child: Node, keys: tuple[ColumnId, ...], calls: list[JavaObject]) -> Node:
        if calls and is_distinct(calls[0]):
            child, calls = self._distinct_rows(child, keys, calls)
        self._number += 1
        translated = tuple(self._call(call) for call in calls)
        return Aggregate(
            columns=(*keys, *(call.output for call in translated)),
            child=child,
            keys=keys,
            calls=translated,
            count=self._fresh("bigint"),
            number=self._number,
        )

    def _distinct_rows(
        self, child: Node, keys: tuple[ColumnId, ...], calls: list[JavaObject]
    ) -> tuple[Node, list[JavaObject]]:
        """`f(DISTINCT x)` by group as f(x) over the distinct rows of group and x, so that each of the two
        can follow a change by its own state. Where a FILTER does not hold, x is NULL, which never counts."""
        translator = self._translator
        catalyst = translator.catalyst
        arguments = distinct_children(calls[0])
        if not arguments:
            translator.obstacles.append("DISTINCT of a constant has no rule")
        if calls[0].filter().isDefined():
            condition = calls[0].filter().get()
            arguments = [
                catalyst.expression("If")(condition, argument, catalyst.null(argument.dataType()))
                for argument in arguments
            ]
        child, found = translator.with_computed_columns(child, arguments)
        columns = tuple(dict.fromkeys((*keys, *found)))
        self._number += 1
        rows = Aggregate(
            columns=columns,
            child=child,
            keys=columns,
            calls=(),
            count=self._fresh("bigint"),
            number=self._number,
        )
        values = [translator.attributes[column] for column in found]
        complete = catalyst.expression("aggregate.Complete$")
        plain = []
        for call in calls:
            function = self._over(call.aggregateFunction(), values)
            plain.append(call.copy(function, complete, False, catalyst.none, call.resultId()))
        return rows, plain

    def _over(self, function: JavaObject, values: list[JavaObject]) -> JavaObject:
        """A DISTINCT function over columns instead of its `distinct_children`."""
        catalyst = self._translator.catalyst
        left = iter(values)

        def column(argument: JavaObject) -> JavaObject:
            if kind(argument) == "SortOrder":
                inner, *same = items(argument.children())
                return argument.withNewChildren(catalyst.seq([column(inner), *same]))
            return argument if argument.foldable() else next(left)

        return function.withNewChildren(catalyst.seq([column(child) for child in items(function.children())]))

    def _call(self, handle: JavaObject) -> AggregateCall:
        translator = self._translator
        function = handle.aggregateFunction()
        if int(handle.resultId().id()) not in self._sorted and (
            reason := nondeterministic_function(function)
        ):
            translator.add_nondeterminism(reason)
        arguments = list(items(function.children()))
        if kind(function) == "Count" and len(arguments) > 1:
            arguments = [self._all_there(arguments)]
        condition = handle.filter()
        output = translator.register(handle.resultAttribute())
        found = _KINDS.get(kind(function), AggregateFunction.OTHER)
        type_name = str(arguments[0].dataType().catalogString()) if arguments else ""
        if len(arguments) != 1:
            found = AggregateFunction.OTHER
        if found in (AggregateFunction.SUM, AggregateFunction.AVERAGE) and type_name.startswith(_NOT_SUMMED):
            found = AggregateFunction.OTHER
        if found in (AggregateFunction.MIN, AggregateFunction.MAX) and type_name.startswith(_NOT_ORDERED):
            found = AggregateFunction.OTHER
        if found in (AggregateFunction.SUM, AggregateFunction.AVERAGE) and str(
            function.prettyName()
        ).startswith("try_"):
            found = AggregateFunction.OTHER
        if (exact := variance_argument(function)) is not None:
            found, arguments, type_name = (
                AggregateFunction.VARIANCE,
                [exact],
                str(exact.dataType().catalogString()),
            )
        argument = arguments[0] if arguments else None
        if found in (AggregateFunction.SUM, AggregateFunction.AVERAGE) and _rounds(type_name, function):
            found = AggregateFunction.OTHER
        rows_only = found is AggregateFunction.COUNT and argument is not None and not argument.nullable()
        return AggregateCall(
            output=output,
            function=found,
            handle=handle,
            argument=None if argument is None or rows_only else self._where(argument, condition),
            condition=translator.expression(condition.get()) if condition.isDefined() else None,
            exact=not type_name.startswith(_INEXACT)
            or found not in (AggregateFunction.SUM, AggregateFunction.AVERAGE),
            accumulators=self._accumulators(found, function, type_name),
            reads=translator.catalyst.references(handle),
            text=str(handle.toString()),
        )

    def _where(self, argument: JavaObject, condition: JavaObject) -> Expression:
        """An argument, evaluated only where FILTER holds: elsewhere it may be an error."""
        catalyst = self._translator.catalyst
        if condition.isDefined() and kind(argument) != "AttributeReference":
            nothing = catalyst.null(argument.dataType())
            argument = catalyst.expression("If")(condition.get(), argument, nothing)
        return self._translator.expression(argument)

    def _all_there(self, arguments: list[JavaObject]) -> JavaObject:
        """What COUNT of several values counts: rows in which none of them is NULL."""
        catalyst = self._translator.catalyst
        there = catalyst.expression("IsNotNull")(arguments[0])
        for argument in arguments[1:]:
            there = catalyst.expression("And")(there, catalyst.expression("IsNotNull")(argument))
        return catalyst.expression("If")(there, catalyst.literal(True), catalyst.null(there.dataType()))

    def _accumulators(
        self, found: AggregateFunction, function: JavaObject, type_name: str
    ) -> tuple[ColumnId, ...]:
        match found:
            case AggregateFunction.OTHER:
                return ()
            case AggregateFunction.COUNT:
                return (self._fresh("bigint"),)
            case AggregateFunction.SUM:
                return self._fresh(str(function.dataType().sql())), self._fresh("bigint")
            case AggregateFunction.AVERAGE:
                return self._fresh(_average_sum(type_name)), self._fresh("bigint")
            case AggregateFunction.VARIANCE:
                return (*map(self._fresh, sum_types(type_name)), self._fresh("bigint"))
            case _:
                return (self._fresh(str(function.dataType().sql())),)

    def _fresh(self, type_name: str) -> ColumnId:
        """A new column of a type; only the type of its attribute counts."""
        translator = self._translator
        catalyst = translator.catalyst
        column, expr_id = catalyst.new_expr_id()
        data_type = catalyst.java_object("types.DataType").fromDDL(type_name)
        literal = catalyst.null(data_type)
        translator.register(catalyst.alias(literal, str(column), expr_id).toAttribute())
        return column

    # -- windows ----------------------------------------------------------------------------------

    def window(self, plan: JavaObject) -> Node:
        """Window functions. Those over rows get a total order: ties would be broken by chance. Ranks give
        ties the same number, so their order stays as it was written."""
        translator = self._translator
        catalyst = translator.catalyst
        child = translator.node(plan.child())
        partition = list(items(plan.partitionSpec()))
        keyed = all(kind(entry) == "AttributeReference" for entry in partition)
        keys = tuple(translator.register(entry) for entry in partition) if keyed else ()
        order = list(items(plan.orderSpec()))
        more = self.ties(child, order)
        by_rows: list[JavaObject] = []
        by_range: list[JavaObject] = []
        for entry in items(plan.windowExpressions()):
            window = entry.child()
            if _told_apart(window):
                by_rows.append(entry)
                continue
            reason = nondeterministic_range_frame(window) if more else None
            if reason is not None and is_first_of_partition(window):
                # Which row is first does not hang on where the frame ends.
                by_rows.append(entry)
                continue
            if reason is not None:
                translator.add_nondeterminism(reason)
            by_range.append(entry)
        if not order and (reason := next(filter(None, map(nondeterministic_unordered_rows, by_rows)), None)):
            # Spark itself makes such ones of a LIMIT in a LATERAL subquery.
            translator.add_nondeterminism(reason)
            return translator.other(plan, reason)
        for entries, ties in ((by_range, False), (by_rows, bool(order))):
            if not entries:
                continue
            whole = [*order, *more] if ties else order
            handle = catalyst.logical("Window")(
                catalyst.seq(entries), plan.partitionSpec(), catalyst.seq(whole), plan.child(), plan.hint()
            )
            made = tuple(translator.register(entry.toAttribute()) for entry in entries)
            child = Window(columns=(*child.columns, *made), child=child, handle=handle, partition=keys)
        wanted = tuple(dict.fromkeys(translator.register_all(plan.output())))
        return child if child.columns == wanted else Select(columns=wanted, child=child)

    def ties(self, child: Node, order: list[JavaObject]) -> list[JavaObject]:
        """Sort orders over the columns that `order` leaves out."""
        translator = self._translator
        catalyst = translator.catalyst
        named = {
            catalyst.column_id(entry.child())
            for entry in order
            if kind(entry.child()) == "AttributeReference"
        }
        found = []
        for column in child.columns:
            attribute = translator.attributes[column]
            if column in named or str(attribute.dataType().catalogString()).startswith(_NOT_ORDERED):
                continue
            found.append(catalyst.ascending(attribute))
        return found

    # -- limits -----------------------------------------------------------------------------------

    def limit(self, plan: JavaObject) -> Node:
        """ORDER BY … LIMIT … OFFSET; a limit without an order has no rule."""
        translator = self._translator
        local = plan.child()
        below = local.child() if kind(local) == "LocalLimit" else local
        offset = 0
        if kind(below) == "Offset":
            offset = int(below.offsetExpr().value())
            below = below.child()
        pruned = []
        while kind(below) == "Project":
            pruned.append(below)
            below = below.child()
        if kind(below) != "Sort" or kind(plan.limitExpr()) != "Literal":
            reason = "LIMIT without ORDER BY is no function of its input"
            translator.add_nondeterminism(reason)
            return translator.other(plan, reason)
        child = translator.node(below.child())
        order = list(items(below.order()))
        self._number += 1
        top = TopK(
            columns=child.columns,
            child=child,
            order=[*order, *self.ties(child, order)],
            limit=int(plan.limitExpr().value()),
            offset=offset,
            number=self._number,
            complete=self._fresh("boolean"),
        )
        node: Node = top
        for project in reversed(pruned):
            node = translator.project(node, list(items(project.projectList())))
        return node


def _told_apart(window: JavaObject) -> bool:
    """Whether a window function looks at single rows. Ranks do not: equal rows get the same number."""
    frame = kind(window.windowSpec().frameSpecification().frameType())
    return frame == "RowFrame" and kind(window.windowFunction()) not in _RANKS


def _rounds(type_name: str, function: JavaObject) -> bool:
    """Whether adding two sums would round: Spark gives such an addition a place less."""
    text = str(function.dataType().catalogString()) if kind(function) == "Sum" else _average_sum(type_name)
    precision, scale = decimal_digits(text) or (0, 0)
    return precision == 38 and scale > 6


def _average_sum(type_name: str) -> str:
    """The type in which an average's sum is exact."""
    if (of_decimal := decimal_digits(type_name)) is not None:
        precision, scale = of_decimal
        return f"decimal({min(38, precision + 10)},{scale})"
    return "double" if type_name in _INEXACT else "decimal(38,0)"

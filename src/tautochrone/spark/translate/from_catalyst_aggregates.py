"""From Catalyst's aggregates to the algebra, those with DISTINCT included."""

from __future__ import annotations

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
)
from tautochrone.spark.analysis.nondeterminism import (
    nondeterministic_function,
    order_insensitive_arrays,
    rounds_by_order,
)
from tautochrone.spark.analysis.optimized_plan import DISTINCT_MODE, KNOWN_NULLABLE
from tautochrone.spark.jvm.catalyst import Catalyst, children_of, decimal_digits, items, kind
from tautochrone.spark.translate.exact_variance import call_text, sum_types, variance_argument
from tautochrone.spark.translate.translation_context import TranslationContext

__all__ = ["AggregateTranslation", "sum_may_overflow", "sum_rounds"]


def _distinct_aggregate_groups(calls: list[JavaObject]) -> list[list[JavaObject]]:
    """The calls in groups that one Aggregate node each can compute: the calls without DISTINCT, and the calls
    that are DISTINCT in the same arguments with the same FILTER."""
    groups: list[list[JavaObject]] = []
    for call in calls:
        for group in groups:
            if _same_rows(group[0], call):
                group.append(call)
                break
        else:
            groups.append([call])
    return groups


def _is_distinct(call: JavaObject) -> bool:
    return kind(call.mode()) == DISTINCT_MODE


def _same_rows(first: JavaObject, second: JavaObject) -> bool:
    """Whether two calls aggregate the same rows."""
    if not (_is_distinct(first) and _is_distinct(second)):
        return not _is_distinct(first) and not _is_distinct(second)
    if first.filter().isDefined() != second.filter().isDefined():
        return False
    if first.filter().isDefined() and not first.filter().get().semanticEquals(second.filter().get()):
        return False
    a, b = _distinct_children(first), _distinct_children(second)
    return len(a) == len(b) and all(x.semanticEquals(y) for x, y in zip(a, b, strict=True))


def _distinct_children(call: JavaObject) -> list[JavaObject]:
    """The arguments whose values must be distinct, in order. A constant, such as a separator, is none."""
    arguments = children_of(call.aggregateFunction())
    wrapped = ("SortOrder", KNOWN_NULLABLE)
    children = [argument.child() if kind(argument) in wrapped else argument for argument in arguments]
    return [argument for argument in children if not argument.foldable()]


_INCREMENTAL = {
    "Count": AggregateFunction.COUNT,
    "Sum": AggregateFunction.SUM,
    "Average": AggregateFunction.AVERAGE,
    "Min": AggregateFunction.MIN,
    "Max": AggregateFunction.MAX,
    "BitAndAgg": AggregateFunction.BIT_AND,
    "BitOrAgg": AggregateFunction.BIT_OR,
    "BitXorAgg": AggregateFunction.BIT_XOR,
}
_SUMS = (AggregateFunction.SUM, AggregateFunction.AVERAGE)
_INEXACT = ("double", "float")
_NOT_SUMMED = ("interval", "void")
_NOT_ORDERED = ("map", "variant", "interval")


class AggregateTranslation:
    """The part of a `TranslationContext` for GROUP BY, DISTINCT and aggregate functions."""

    def __init__(self, translator: TranslationContext) -> None:
        self._translator = translator
        self._grouping: list[JavaObject] = []
        # Result ids of array functions whose order the query does not use.
        self._order_insensitive: set[int] = set()

    def aggregate(self, plan: JavaObject) -> Node:
        """The node of GROUP BY, SELECT DISTINCT, or an aggregate without keys."""
        translator = self._translator
        child = translator.node(plan.child())
        grouping = list(items(plan.groupingExpressions()))
        self._grouping = grouping
        child, keys = translator.with_computed_columns(child, grouping)
        computed = [
            (expression, translator.attributes[key])
            for expression, key in zip(grouping, keys, strict=True)
            if kind(expression) != "AttributeReference"
        ]
        calls, named = self._calls_and_results(list(items(plan.aggregateExpressions())), computed)
        translator.refuse_subqueries("Aggregate", [*grouping, *calls])
        if any("sessionWindow" in str(translator.attributes[key].metadata().json()) for key in keys):
            translator.obstacles.append("session_window() merges groups, which has no rule")
        unique = tuple(dict.fromkeys(keys))
        return translator.project(self._grouped(child, unique, calls), named)

    def _calls_and_results(
        self, results: list[JavaObject], computed_keys: list[tuple[JavaObject, JavaObject]]
    ) -> tuple[list[JavaObject], list[JavaObject]]:
        """The aggregate calls in the result expressions, and these expressions over the columns of groups.

        Args:
            results: named expressions.
            computed_keys: grouping expressions that are no columns, each with the column of the key.
        """
        catalyst = self._translator.catalyst
        calls: list[JavaObject] = []

        def column_of_groups(expression: JavaObject) -> JavaObject | None:
            """The column with the value of a call or of a computed key; None for other expressions."""
            if kind(expression) == "AggregateExpression":
                calls.append(expression)
                return expression.resultAttribute()
            self._order_insensitive.update(order_insensitive_arrays(expression))
            return next((key for source, key in computed_keys if source.semanticEquals(expression)), None)

        named = []
        for entry in results:
            if kind(entry) == "Alias":
                over_groups = catalyst.transform_down(entry.child(), column_of_groups)
                named.append(catalyst.alias(over_groups, str(entry.name()), entry.exprId()))
            else:
                named.append(entry)
        return calls, named

    def _grouped(self, child: Node, keys: tuple[ColumnId, ...], calls: list[JavaObject]) -> Node:
        """One aggregate for the plain calls and one for each set of DISTINCT arguments, joined by their
        keys."""
        groups = _distinct_aggregate_groups(calls)
        if len(groups) < 2:
            return self._aggregate_of(child, keys, calls)
        joined: Node | None = None
        for group in groups:
            aggregate = self._aggregate_of(child, keys, group)
            joined = aggregate if joined is None else self._joined_by_keys(joined, aggregate, keys)
        assert joined is not None
        outputs = tuple(self._translator.register(call.resultAttribute()) for call in calls)
        return Select(columns=(*keys, *outputs), child=joined)

    def _joined_by_keys(self, left: Node, right: Node, keys: tuple[ColumnId, ...]) -> Node:
        """Two aggregates of the same rows as one: both have each group exactly once."""
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

    def _aggregate_of(self, child: Node, keys: tuple[ColumnId, ...], calls: list[JavaObject]) -> Node:
        """An aggregate whose calls are all plain, or all DISTINCT in the same arguments."""
        translator = self._translator
        if calls and _is_distinct(calls[0]):
            child, calls = self._distinct_rows(child, keys, calls)
        translated = tuple(self._call(call) for call in calls)
        return Aggregate(
            columns=(*keys, *(call.output for call in translated)),
            child=child,
            keys=keys,
            calls=translated,
            count=translator.typed_column("bigint"),
            number=translator.next_state_number(),
        )

    def _distinct_rows(
        self, child: Node, keys: tuple[ColumnId, ...], calls: list[JavaObject]
    ) -> tuple[Node, list[JavaObject]]:
        """The rows and calls for `f(DISTINCT x) GROUP BY k`: f(x) over the distinct rows of k and x.

        Each of the two aggregates then has its own state. Where a FILTER is false, x is NULL, which aggregate
        functions ignore. A constant x is the same in all rows, so one row per group counts it.
        """
        translator = self._translator
        catalyst = translator.catalyst
        arguments = _distinct_children(calls[0])
        is_constant = not arguments
        if is_constant:
            # DISTINCT of a constant names no column: TRUE stands for it. The calls keep the constant.
            arguments = [catalyst.literal(True)]
        if calls[0].filter().isDefined():
            condition = calls[0].filter().get()
            arguments = [
                catalyst.expression("If")(condition, argument, catalyst.null(argument.dataType()))
                for argument in arguments
            ]
        child, argument_columns = translator.with_computed_columns(child, arguments)
        columns = tuple(dict.fromkeys((*keys, *argument_columns)))
        rows = Aggregate(
            columns=columns,
            child=child,
            keys=columns,
            calls=(),
            count=translator.typed_column("bigint"),
            number=translator.next_state_number(),
        )
        values = [translator.attributes[column] for column in argument_columns]
        complete = catalyst.expression("aggregate.Complete$")
        condition = catalyst.option(values[0]) if is_constant else catalyst.none
        plain = []
        for call in calls:
            function = self._with_arguments(call.aggregateFunction(), values)
            plain.append(call.copy(function, complete, False, condition, call.resultId()))
        return rows, plain

    def _with_arguments(self, function: JavaObject, values: list[JavaObject]) -> JavaObject:
        """A DISTINCT function with columns in place of its `_distinct_children`."""
        catalyst = self._translator.catalyst
        columns = iter(values)

        def column(argument: JavaObject) -> JavaObject:
            if kind(argument) == "SortOrder":
                value, *same_order = children_of(argument)
                return argument.withNewChildren(catalyst.seq([column(value), *same_order]))
            return argument if argument.foldable() else next(columns)

        return function.withNewChildren(catalyst.seq([column(child) for child in children_of(function)]))

    def _call(self, handle: JavaObject) -> AggregateCall:
        translator = self._translator
        function = handle.aggregateFunction()
        if int(handle.resultId().id()) not in self._order_insensitive and (
            reason := nondeterministic_function(function, self._grouping)
        ):
            translator.add_nondeterminism(reason)
        arguments = list(children_of(function))
        if kind(function) == "Count" and len(arguments) > 1:
            arguments = [self._null_unless_all_present(arguments)]
        condition = handle.filter()
        output = translator.register(handle.resultAttribute())
        type_name = str(arguments[0].dataType().catalogString()) if arguments else ""
        aggregate_function = _incremental_function(function, arguments, type_name)
        if (exact := variance_argument(function, translator.catalyst)) is not None:
            aggregate_function, arguments = AggregateFunction.VARIANCE, [exact]
            type_name = str(exact.dataType().catalogString())
        argument = arguments[0] if arguments else None
        is_count = aggregate_function is AggregateFunction.COUNT
        counts_rows = is_count and argument is not None and not argument.nullable()
        return AggregateCall(
            output=output,
            function=aggregate_function,
            handle=handle,
            argument=None if argument is None or counts_rows else self._filtered(argument, condition),
            condition=translator.expression(condition.get()) if condition.isDefined() else None,
            exact=not type_name.startswith(_INEXACT) or aggregate_function not in _SUMS,
            may_overflow=aggregate_function in _SUMS
            and sum_may_overflow(function, translator.catalyst, type_name),
            unstable=rounds_by_order(function),
            accumulators=self._accumulators(aggregate_function, function, type_name),
            reads=translator.catalyst.references(handle),
            text=call_text(handle),
        )

    def _filtered(self, argument: JavaObject, condition: JavaObject) -> Expression:
        """An argument that is evaluated only where FILTER is true: elsewhere its evaluation may fail."""
        catalyst = self._translator.catalyst
        if condition.isDefined() and kind(argument) != "AttributeReference":
            null = catalyst.null(argument.dataType())
            argument = catalyst.expression("If")(condition.get(), argument, null)
        return self._translator.expression(argument)

    def _null_unless_all_present(self, arguments: list[JavaObject]) -> JavaObject:
        """The argument of COUNT(a, b, …): NULL in rows in which one of the values is NULL."""
        catalyst = self._translator.catalyst
        all_present = catalyst.expression("IsNotNull")(arguments[0])
        for argument in arguments[1:]:
            all_present = catalyst.expression("And")(all_present, catalyst.expression("IsNotNull")(argument))
        return catalyst.expression("If")(
            all_present, catalyst.literal(True), catalyst.null(all_present.dataType())
        )

    def _accumulators(
        self, aggregate_function: AggregateFunction, function: JavaObject, type_name: str
    ) -> tuple[ColumnId, ...]:
        new_column = self._translator.typed_column
        match aggregate_function:
            case AggregateFunction.OTHER:
                return ()
            case AggregateFunction.COUNT:
                return (new_column("bigint"),)
            case AggregateFunction.SUM:
                return new_column(str(function.dataType().sql())), new_column("bigint")
            case AggregateFunction.AVERAGE:
                return new_column(_average_sum(type_name)), new_column("bigint")
            case AggregateFunction.VARIANCE:
                return (
                    *map(new_column, sum_types(type_name)),
                    new_column("bigint"),
                )
            case _:
                return (new_column(str(function.dataType().sql())),)


def _incremental_function(
    function: JavaObject, arguments: list[JavaObject], type_name: str
) -> AggregateFunction:
    """The algebra's function for one of Catalyst's; OTHER when it has no rule for arguments of this type."""
    if len(arguments) != 1:
        return AggregateFunction.OTHER
    incremental = _INCREMENTAL.get(kind(function), AggregateFunction.OTHER)
    # try_sum() and try_avg() return NULL on overflow, which cannot be undone when a row is deleted.
    is_try = str(function.prettyName()).startswith("try_")
    if incremental in _SUMS:
        is_sum = incremental is AggregateFunction.SUM
        sum_type = str(function.dataType().catalogString()) if is_sum else _average_sum(type_name)
        if is_try or type_name.startswith(_NOT_SUMMED) or sum_rounds(sum_type):
            return AggregateFunction.OTHER
    if incremental in (AggregateFunction.MIN, AggregateFunction.MAX) and type_name.startswith(_NOT_ORDERED):
        return AggregateFunction.OTHER
    return incremental


def sum_rounds(type_name: str) -> bool:
    """Whether adding two sums of this type rounds: at precision 38 Spark drops a digit of the scale."""
    precision, scale = decimal_digits(type_name) or (0, 0)
    return precision == 38 and scale > 6


def sum_may_overflow(function: JavaObject, catalyst: Catalyst, type_name: str) -> bool:
    """Whether SUM or AVG of arguments of a type becomes NULL when it overflows. Sums of integers wrap."""
    is_sum = kind(function) == "Sum"
    sum_type = str(function.dataType().catalogString()) if is_sum else _average_sum(type_name)
    precision, _ = decimal_digits(sum_type) or (0, 0)
    # Below that, more than 10¹⁰ rows are needed.
    if precision < 38 or decimal_digits(type_name) is None:
        return False
    return catalyst.session.conf.get("spark.sql.ansi.enabled") != "true"


def _average_sum(type_name: str) -> str:
    """The type in which the sum of an average is exact."""
    if (digits := decimal_digits(type_name)) is not None:
        precision, scale = digits
        return f"decimal({min(38, precision + 10)},{scale})"
    return "double" if type_name in _INEXACT else "decimal(38,0)"

"""Window functions that go on from totals of earlier rows."""

from __future__ import annotations

from py4j.java_gateway import JavaObject

from tautochrone.algebra.nodes import Expression, Node, RunningTotals
from tautochrone.spark.jvm.catalyst import Catalyst, decimal_digits, kind
from tautochrone.spark.translate.translation_context import TranslationContext

__all__ = ["running_totals"]

_EXACT = ("tinyint", "smallint", "int", "bigint", "decimal")
_ORDERED = (*_EXACT, "boolean", "date", "timestamp", "timestamp_ntz", "string")
"""Types of which equal values are the same, in a comparison as in a sort. -0.0 and 0.0 are not."""


def running_totals(
    translator: TranslationContext, child: Node, functions: list[JavaObject], order: list[JavaObject]
) -> RunningTotals | None:
    """How the window functions of one plan without PARTITION BY go on behind rows that did not change.

    Args:
        translator: of the query.
        child: the rows of the window.
        functions: each a window function under an alias.
        order: the sort orders of the window, ties broken.

    Returns:
        None if one of the functions cannot be continued, or if the first column of the order has a type in
        which equal values can differ.
    """
    catalyst = translator.catalyst
    if not order or kind(order[0].child()) != "AttributeReference":
        return None
    key = catalyst.column_id(order[0].child())
    if key not in child.columns or not _is_one_of(order[0].child().dataType(), _ORDERED):
        return None
    partials, totals, results = list[JavaObject](), list[JavaObject](), list[Expression]()
    for entry in functions:
        total_function = _total_function(catalyst, entry.child())
        if total_function is None:
            return None
        partial, total = (
            _under_new_column(catalyst, entry.child()),
            _under_new_column(catalyst, total_function),
        )
        partials.append(partial)
        totals.append(total)
        result = _result(catalyst, entry.child(), partial.toAttribute(), total.toAttribute())
        results.append(translator.expression(result))
    handle = catalyst.logical("Window")(
        catalyst.seq(partials),
        catalyst.seq(),
        catalyst.seq(order),
        catalyst.logical("OneRowRelation")(),
        catalyst.none,
    )
    return RunningTotals(
        key=key,
        order=order[:1],
        handle=handle,
        partial=tuple(translator.register(entry.toAttribute()) for entry in partials),
        totals=totals,
        total=tuple(translator.register(entry.toAttribute()) for entry in totals),
        results=tuple(results),
    )


def _total_function(catalyst: Catalyst, window: JavaObject) -> JavaObject | None:
    """The aggregate function whose result over the earlier rows the window function goes on from."""
    frame = window.windowSpec().frameSpecification()
    if kind(frame) != "SpecifiedWindowFrame":
        return None
    if kind(frame.lower()) != "UnboundedPreceding" or kind(frame.upper()) != "CurrentRow":
        return None
    call = window.windowFunction()
    if kind(call) in ("RowNumber", "Rank"):
        count = catalyst.spark_sql_class("catalyst.expressions.aggregate.Count")(
            catalyst.seq([catalyst.literal(1)])
        )
        return count.toAggregateExpression()
    if kind(call) != "AggregateExpression" or call.isDistinct() or call.filter().isDefined():
        return None
    function = call.aggregateFunction()
    if kind(function) == "Count":
        return call
    if kind(function) not in ("Sum", "Min", "Max") or str(function.prettyName()).startswith("try_"):
        return None
    if kind(function) != "Sum":
        return call if _is_one_of(function.dataType(), _ORDERED) else None
    is_exact = _is_one_of(function.dataType(), _EXACT) and not _rounds(function.dataType())
    return call if is_exact else None


def _result(catalyst: Catalyst, window: JavaObject, partial: JavaObject, total: JavaObject) -> JavaObject:
    """The result over all rows, from that over the later rows and the total of the earlier ones."""
    call = window.windowFunction()
    name = kind(call.aggregateFunction()) if kind(call) == "AggregateExpression" else kind(call)
    if name in ("Min", "Max"):
        return catalyst.expression("Least" if name == "Min" else "Greatest")(catalyst.seq([partial, total]))
    result_type = partial.dataType()
    if name == "Sum":
        both = catalyst.cast(catalyst.expression("Add")(partial, total), result_type)
        return catalyst.expression("Coalesce")(catalyst.seq([both, partial, total]))
    zero = catalyst.cast(catalyst.literal(0), result_type)
    earlier = catalyst.expression("Coalesce")(catalyst.seq([catalyst.cast(total, result_type), zero]))
    return catalyst.expression("Add")(partial, earlier)


def _under_new_column(catalyst: Catalyst, expression: JavaObject) -> JavaObject:
    column, expr_id = catalyst.new_expr_id()
    return catalyst.alias(expression, str(column), expr_id)


def _rounds(data_type: JavaObject) -> bool:
    """Whether the addition of two such sums would round: at precision 38 Spark drops a digit of the scale."""
    precision, scale = decimal_digits(str(data_type.catalogString())) or (0, 0)
    return precision == 38 and scale > 6


def _is_one_of(data_type: JavaObject, types: tuple[str, ...]) -> bool:
    return str(data_type.catalogString()).partition("(")[0] in types

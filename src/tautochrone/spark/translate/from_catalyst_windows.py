"""From Catalyst's windows and limits to the algebra."""

from __future__ import annotations

from collections.abc import Sequence

from py4j.java_gateway import JavaObject

from tautochrone.algebra.nodes import ColumnId, Expression, Node, RunningTotals, Select, TopK, Window
from tautochrone.algebra.nodes.base import shortened
from tautochrone.spark.analysis.analyzed_plan import most_rows
from tautochrone.spark.analysis.nondeterminism import (
    is_first_of_partition,
    range_window_nondeterminism,
    rounds_by_order,
    unordered_rows_window_nondeterminism,
)
from tautochrone.spark.jvm.catalyst import Catalyst, items, kind
from tautochrone.spark.translate.from_catalyst_aggregates import sum_may_overflow, sum_rounds
from tautochrone.spark.translate.translation_context import TranslationContext

__all__ = ["first_rows_of_window", "translate_limit", "translate_window"]

_RANKS = frozenset({"Rank", "DenseRank", "PercentRank"})
_FROM_EARLIER_ROWS = frozenset({"RowNumber", "Rank", "DenseRank"})
_MOST_FIRST_ROWS = 1000
_COMPARISONS = {
    "EqualTo": "EqualTo",
    "LessThan": "GreaterThan",
    "LessThanOrEqual": "GreaterThanOrEqual",
    "GreaterThan": "LessThan",
    "GreaterThanOrEqual": "LessThanOrEqual",
}
"""Each comparison with the one that says the same with its sides exchanged."""
_UNORDERABLE = ("map", "variant", "interval")


def translate_window(translator: TranslationContext, plan: JavaObject, first_rows: int | None = None) -> Node:
    """The nodes of window functions, over the first rows of their order alone if `first_rows` is given.

    Functions over ROWS frames get a total order, otherwise ties would be broken at random. Ranks give ties
    the same number, so their order stays as it is in the query. Sums of floats over whole partitions without
    an order get the order of their summands: a partition that is computed again gives the same bits.
    """
    catalyst = translator.catalyst
    child = translator.node(plan.child())
    partition = list(items(plan.partitionSpec()))
    order = list(items(plan.orderSpec()))
    tie_breakers = _tie_breakers(translator, child, order)
    child, keys = _with_partition_keys(translator, child, partition)
    if first_rows is not None:
        child = TopK(
            columns=child.columns,
            child=child,
            order=[*order, *tie_breakers],
            limit=first_rows,
            offset=0,
            number=translator.next_state_number(),
            complete=translator.typed_column("boolean"),
        )
    entries, results = _window_functions(catalyst, list(items(plan.windowExpressions())))
    by_rows, by_range = _by_need_of_total_order(translator, entries, has_ties=bool(tie_breakers))
    if not order and (reason := next(filter(None, map(unordered_rows_window_nondeterminism, by_rows)), None)):
        # Spark makes such window functions of a LIMIT in a LATERAL subquery.
        translator.add_nondeterminism(reason)
        return translator.unsupported(plan, reason)
    for functions, is_ordered in ((by_range, False), (by_rows, bool(order))):
        if not functions:
            continue
        sort = [*order, *tie_breakers] if is_ordered else order
        translator.breaks_ties |= len(sort) > len(order)
        rounded = [entry for entry in functions if rounds_by_order(_function_of(entry))]
        if rounded and not order:
            sort = _order_of_summands(translator, child, rounded)
        is_total = is_ordered or bool(sort and not order) or not tie_breakers
        unstable = {
            translator.register(entry.toAttribute()): shortened(str(_function_of(entry).toString()))
            for entry in ([] if is_total else rounded)
        }
        handle = catalyst.logical("Window")(
            catalyst.seq(functions), plan.partitionSpec(), catalyst.seq(sort), plan.child(), plan.hint()
        )
        outputs = tuple(translator.register(entry.toAttribute()) for entry in functions)
        running = None if partition or not order else _running_totals(translator, child, functions, sort)
        columns = (*child.columns, *outputs)
        child = Window(
            columns=columns,
            child=child,
            handle=handle,
            partition=keys,
            running=running,
            unstable=unstable,
        )
    if results:
        computed = {catalyst.column_id(entry.toAttribute()): entry for entry in results}
        return translator.project(
            child, [computed.get(catalyst.column_id(entry), entry) for entry in items(plan.output())]
        )
    columns = tuple(dict.fromkeys(translator.register_all(plan.output())))
    return child if child.columns == columns else Select(columns=columns, child=child)


def _function_of(entry: JavaObject) -> JavaObject:
    """The function of a window function under an alias."""
    function = entry.child().windowFunction()
    return function.aggregateFunction() if kind(function) == "AggregateExpression" else function


def _order_of_summands(
    translator: TranslationContext, child: Node, functions: Sequence[JavaObject]
) -> list[JavaObject]:
    """An order in which all ties have the same values in these window functions; empty if there is none."""
    catalyst = translator.catalyst
    columns = frozenset[ColumnId]().union(
        *(catalyst.references(entry.child().windowFunction()) for entry in functions)
    )
    attributes = [translator.attributes[column] for column in child.columns if column in columns]
    if any(str(each.dataType().catalogString()).startswith(_UNORDERABLE) for each in attributes):
        return []
    return [catalyst.ascending(attribute) for attribute in attributes]


def _with_partition_keys(
    translator: TranslationContext, child: Node, partition: Sequence[JavaObject]
) -> tuple[Node, tuple[ColumnId, ...]]:
    """A node of the same rows that has the keys of partitions as columns, and these columns.

    Of a float Spark takes the normalized value: -0.0 is in the partition of 0.0.
    """
    catalyst = translator.catalyst
    keys: list[ColumnId] = []
    computed: list[JavaObject] = []
    for entry in partition:
        if kind(entry) == "AttributeReference":
            keys.append(translator.register(entry))
        elif not entry.foldable():
            column, expr_id = catalyst.new_expr_id()
            computed.append(catalyst.alias(entry, str(column), expr_id))
            keys.append(column)
    if computed:
        stored = [translator.attributes[column] for column in child.columns]
        child = translator.project(child, [*stored, *computed])
    return child, tuple(keys)


def _by_need_of_total_order(
    translator: TranslationContext, entries: list[JavaObject], *, has_ties: bool
) -> tuple[list[JavaObject], list[JavaObject]]:
    """The window functions whose result the order of tied rows changes, and the others."""
    by_rows: list[JavaObject] = []
    by_range: list[JavaObject] = []
    for entry in entries:
        window = entry.child()
        if _depends_on_row_order(window):
            by_rows.append(entry)
            continue
        reason = range_window_nondeterminism(window) if has_ties else None
        if reason is not None and is_first_of_partition(window):
            # first_value() is the first row wherever the frame ends. As a ROWS function it gets tie breakers,
            # which make its result deterministic.
            by_rows.append(entry)
            continue
        if reason is not None:
            translator.add_nondeterminism(reason)
        by_range.append(entry)
    return by_rows, by_range


def _window_functions(
    catalyst: Catalyst, entries: list[JavaObject]
) -> tuple[list[JavaObject], list[JavaObject]]:
    """The window functions of a plan, each under an alias, and the results that are computed from them.

    Spark puts columns of the input among the window functions of a correlated subquery: these pass anyway.
    """
    functions, results = [], []

    def replace(expression: JavaObject) -> JavaObject | None:
        if kind(expression) != "WindowExpression":
            return None
        column, expr_id = catalyst.new_expr_id()
        functions.append(catalyst.alias(expression, str(column), expr_id))
        return functions[-1].toAttribute()

    for entry in entries:
        if kind(entry) != "Alias":
            continue
        if kind(entry.child()) == "WindowExpression":
            functions.append(entry)
            continue
        computed = catalyst.transform_down(entry.child(), replace)
        results.append(catalyst.alias(computed, str(entry.name()), entry.exprId()))
    return functions, results


def first_rows_of_window(catalyst: Catalyst, condition: JavaObject, plan: JavaObject) -> int | None:
    """How many of the first rows a filter can keep that compares row_number() with a constant.

    None if the filter has no such comparison, if there are partitions, or if one of the window functions
    depends on later rows. `WHERE row_number() OVER (ORDER BY …) <= 3` is ORDER BY … LIMIT 3.
    """
    if kind(plan) != "Window" or plan.orderSpec().isEmpty():
        return None
    if not all(entry.foldable() for entry in items(plan.partitionSpec())):
        return None
    entries = list(items(plan.windowExpressions()))
    if not all(map(_depends_on_earlier_rows_only, entries)):
        return None
    numbers = {
        catalyst.column_id(entry.toAttribute())
        for entry in entries
        if kind(entry.child().windowFunction()) == "RowNumber"
    }
    parts = catalyst.conjuncts(condition)
    bounds = [bound for part in parts if (bound := _bound(catalyst, part, numbers)) is not None]
    return min(bounds) if bounds and 0 <= min(bounds) <= _MOST_FIRST_ROWS else None


def _depends_on_earlier_rows_only(entry: JavaObject) -> bool:
    """Whether later rows in the order of the window cannot change its value."""
    if kind(entry) != "Alias" or kind(entry.child()) != "WindowExpression":
        return False
    window = entry.child()
    if kind(window.windowFunction()) in _FROM_EARLIER_ROWS:
        return True
    frame = window.windowSpec().frameSpecification()
    is_aggregate = kind(window.windowFunction()) == "AggregateExpression"
    return is_aggregate and kind(frame.frameType()) == "RowFrame" and kind(frame.upper()) == "CurrentRow"


def _bound(catalyst: Catalyst, comparison: JavaObject, numbers: set[ColumnId]) -> int | None:
    """The largest row number that passes `row_number <= 3` and the like."""
    name = kind(comparison)
    if name not in _COMPARISONS:
        return None
    left, right = comparison.left(), comparison.right()
    if kind(left) == "Literal":
        name, left, right = _COMPARISONS[name], right, left
    if kind(left) != "AttributeReference" or kind(right) != "Literal" or right.value() is None:
        return None
    if catalyst.column_id(left) not in numbers or name.startswith("Greater"):
        return None
    return int(right.value()) - (name == "LessThan")


def _tie_breakers(translator: TranslationContext, child: Node, order: list[JavaObject]) -> list[JavaObject]:
    """Sort orders over the columns that `order` does not contain."""
    catalyst = translator.catalyst
    named = {
        catalyst.column_id(entry.child()) for entry in order if kind(entry.child()) == "AttributeReference"
    }
    orders = []
    for column in child.columns:
        attribute = translator.attributes[column]
        if column in named or str(attribute.dataType().catalogString()).startswith(_UNORDERABLE):
            continue
        orders.append(catalyst.ascending(attribute))
    return orders


def translate_limit(translator: TranslationContext, plan: JavaObject) -> Node:
    """The node of ORDER BY … LIMIT … OFFSET.

    A limit without an order has no rule, except where it removes no row, and LIMIT 1 of equal rows.
    """
    local = plan.child()
    source = local.child() if kind(local) == "LocalLimit" else local
    if kind(plan.limitExpr()) == "Literal":
        limit, bound = int(plan.limitExpr().value()), most_rows(source)
        if bound is not None and bound <= limit:
            return translator.node(source)
        if limit == 1 and _has_equal_rows(source):
            return translator.node(_one_of_equal_rows(translator.catalyst, source))
    offset = 0
    if kind(source) == "Offset":
        offset = int(source.offsetExpr().value())
        source = source.child()
    projects = []
    while kind(source) == "Project":
        projects.append(source)
        source = source.child()
    if kind(source) != "Sort" or kind(plan.limitExpr()) != "Literal":
        reason = "LIMIT without ORDER BY picks arbitrary rows"
        translator.add_nondeterminism(reason)
        return translator.unsupported(plan, reason)
    child = translator.node(source.child())
    order = list(items(source.order()))
    tie_breakers = _tie_breakers(translator, child, order)
    translator.breaks_ties |= bool(tie_breakers)
    top_k = TopK(
        columns=child.columns,
        child=child,
        order=[*order, *tie_breakers],
        limit=int(plan.limitExpr().value()),
        offset=offset,
        number=translator.next_state_number(),
        complete=translator.typed_column("boolean"),
    )
    node: Node = top_k
    for project in reversed(projects):
        node = translator.project(node, list(items(project.projectList())))
    return node


def _has_equal_rows(plan: JavaObject) -> bool:
    """Whether all rows of a plan are the same constants."""
    if kind(plan) != "Project":
        return False
    return all(kind(entry) == "Alias" and entry.child().foldable() for entry in items(plan.projectList()))


def _one_of_equal_rows(catalyst: Catalyst, plan: JavaObject) -> JavaObject:
    """A plan with one of the rows of a plan whose rows are all the same, and none if it has none."""
    output = plan.output()
    if not output.isEmpty():
        return catalyst.logical("Aggregate")(output, output, plan, catalyst.none)
    # Without a grouping expression an aggregate returns one row even for an empty input. So it groups by the
    # constant `true`: one row if there are input rows, none otherwise.
    true = catalyst.literal(True)
    _, expr_id = catalyst.new_expr_id()
    row = catalyst.seq([catalyst.alias(true, "row", expr_id)])
    group = catalyst.logical("Aggregate")(catalyst.seq([true]), row, plan, catalyst.none)
    return catalyst.logical("Project")(output, group)


def _depends_on_row_order(window: JavaObject) -> bool:
    """Whether the order of tied rows changes a window function. For ranks it does not: ties get the same
    number."""
    frame = kind(window.windowSpec().frameSpecification().frameType())
    return frame == "RowFrame" and kind(window.windowFunction()) not in _RANKS


# -- totals of earlier rows ------------------------------------------------------------------------


_EXACT = ("tinyint", "smallint", "int", "bigint", "decimal")
_ORDERED = (*_EXACT, "boolean", "date", "timestamp", "timestamp_ntz", "string")
"""Types of which equal values are the same, in a comparison as in a sort. -0.0 and 0.0 are not."""


def _running_totals(
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
        partial = _under_new_column(catalyst, entry.child())
        total = _under_new_column(catalyst, total_function)
        partials.append(partial)
        totals.append(total)
        result = _result_over_all_rows(catalyst, entry.child(), partial.toAttribute(), total.toAttribute())
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
    sum_type = str(function.dataType().catalogString())
    if not _is_one_of(function.dataType(), _EXACT) or sum_rounds(sum_type):
        return None
    return None if sum_may_overflow(function, catalyst, sum_type) else call


def _result_over_all_rows(
    catalyst: Catalyst, window: JavaObject, partial: JavaObject, total: JavaObject
) -> JavaObject:
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


def _is_one_of(data_type: JavaObject, types: tuple[str, ...]) -> bool:
    return str(data_type.catalogString()).partition("(")[0] in types

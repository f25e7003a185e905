"""Aggregate and window functions whose result depends on the order of rows or on how ties are broken.

The old result of a group cannot be computed again to be removed from a view. So a view with such a function
is refreshed by comparing its new rows with the stored ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from py4j.java_gateway import JavaObject

from tautochrone.spark.jvm.catalyst import children_of, items, kind

__all__ = [
    "is_first_of_partition",
    "nondeterministic_function",
    "order_insensitive_arrays",
    "range_window_nondeterminism",
    "rounds_by_order",
    "unordered_rows_window_nondeterminism",
]

_ANY_ROW = {"First": "first()", "Last": "last()", "Mode": "mode()"}
_ARRAYS = {"CollectList": "collect_list()", "CollectSet": "collect_set()"}
_MAX_BY = {"MaxBy": "max_by()", "MinBy": "min_by()"}
_APPROXIMATE = frozenset(
    {
        *(
            "ApproximatePercentile",
            "HistogramNumeric",
            "ApproxTopK",
            "ApproxTopKAccumulate",
            "ApproxTopKCombine",
        ),
        *("HllSketchAgg", "HllUnionAgg", "KllSketchAggBigint", "KllSketchAggFloat", "KllSketchAggDouble"),
        *("KllMergeAggBigint", "KllMergeAggFloat", "KllMergeAggDouble"),
        *("ThetaSketchAgg", "ThetaUnionAgg", "ThetaIntersectionAgg"),
    }
)
"""Functions that summarize as rows arrive: what they drop depends on the order. HyperLogLog++, count-min
sketches and bitmaps drop nothing: parts give the same in any order."""
_ORDER_SENSITIVE = frozenset({*_ANY_ROW, *_ARRAYS, *_MAX_BY, "ListAgg"})
# -0.0 equals 0.0 in an order, but functions of the two differ: 1/x, or the cast to a string.
_SIGNED_ZERO = ("FLOAT", "DOUBLE")
_ORDER_INSENSITIVE = frozenset(
    {"SortArray", "ArrayMax", "ArrayMin", "Size", "ArrayContains", "ArrayExists", "ArrayForAll"}
)
_LENGTHS = frozenset({"Length", "OctetLength", "BitLength"})
_PER_ELEMENT = frozenset({"ArrayDistinct", "Cast"})
_PER_ELEMENT_WITHOUT_INDEX = frozenset({"ArrayFilter", "ArrayTransform"})
# The comparators of array_sort() without an argument, for non-nullable and nullable elements.
_BY_VALUE = "if ((lambda left < lambda right)) -1 else if ((lambda left > lambda right)) 1 else 0"
_NULLS_LAST = (
    "if ((isnull(lambda left) AND isnull(lambda right))) 0 else if (isnull(lambda left)) 1 "
    f"else if (isnull(lambda right)) -1 else {_BY_VALUE}"
)


def nondeterministic_function(function: JavaObject, keys: Sequence[JavaObject] = ()) -> str | None:
    """The reason why an aggregate function has several right results, or None.

    Args:
        function: Catalyst's aggregate function.
        keys: expressions with one value in all rows that it aggregates, such as those of GROUP BY.
    """
    name = kind(function)
    if _is_constant_in_group(function, keys):
        return None
    if name in _ANY_ROW and not (name == "Mode" and function.reverseOpt().isDefined()):
        return f"{_ANY_ROW[name]} picks an arbitrary row"
    if name in _ARRAYS:
        return f"{_ARRAYS[name]} returns elements in any order: use sort_array()"
    if name in _MAX_BY and not _order_determines(function.orderingExpr(), function.valueExpr()):
        return f"{_MAX_BY[name]} picks an arbitrary row of a tie: order by a struct that ends with the value"
    if name in _APPROXIMATE:
        return f"{function.prettyName()}() approximates by the order in which rows arrive"
    if name == "ListAgg":
        orders = [entry.child() for entry in items(function.orderExpressions())]
        if not _determined_by(function.child(), orders):
            return "listagg() joins in any order the values that tie in WITHIN GROUP"
    return None


_STABLE = frozenset(
    {
        *("Min", "Max", "First", "Last", "MinBy", "MaxBy", "Mode", "Percentile", "PercentileDisc", "ListAgg"),
        *("CollectList", "CollectSet", "NthValue", "Lag", "Lead", "PercentRank", "CumeDist"),
    }
)
"""Functions that add up no floats: the same rows give the same bits."""
_SMALL_SUMMANDS = ("tinyint", "smallint", "int")
"""The sum of four million INTs is exact as a DOUBLE, in which Spark's AVG adds up integers."""


def rounds_by_order(function: JavaObject) -> bool:
    """Whether the last digits of a function's result depend on the order of the rows: it adds up floats.

    Args:
        function: Catalyst's aggregate or window function.
    """
    result = str(function.dataType().catalogString())
    if kind(function) in _STABLE or not ("double" in result or "float" in result):
        return False
    if kind(function) != "Average":
        return True
    argument = function.children().apply(0)
    # Spark's optimizer averages decimals of at most 11 digits as integers.
    return kind(argument) != "UnscaledValue" and argument.dataType().catalogString() not in _SMALL_SUMMANDS


def range_window_nondeterminism(window: JavaObject) -> str | None:
    """The reason why a window function over a RANGE frame has several right results for ties, or None.

    The caller has made sure that the frame is RANGE and that ties are possible.
    """
    function, spec = window.windowFunction(), window.windowSpec()
    name = kind(function)
    if name not in ("NthValue", "AggregateExpression"):
        return None
    picked = function if name == "NthValue" else function.aggregateFunction()
    if kind(picked) in ("NthValue", "First", "Last"):
        # A frame has all rows of a tie or none. If they have the same value, any of them may be picked.
        orders = [*items(spec.partitionSpec()), *(entry.child() for entry in items(spec.orderSpec()))]
        value = picked.children().apply(0)
        if value.deterministic() and _is_function_of(value, _exact(orders)):
            return None
    return "nth_value() picks an arbitrary row" if name == "NthValue" else nondeterministic_function(picked)


def unordered_rows_window_nondeterminism(entry: JavaObject) -> str | None:
    """The reason why a window function over a ROWS frame without ORDER BY has several right results, or
    None.

    The caller has made sure that the frame is ROWS and that there is no ORDER BY.
    """
    window = entry.child()
    function, frame = window.windowFunction(), window.windowSpec().frameSpecification()
    ends = kind(frame.lower()), kind(frame.upper())
    if kind(function) != "AggregateExpression" or ends != ("UnboundedPreceding", "UnboundedFollowing"):
        return "a window function over ROWS without ORDER BY depends on an arbitrary order"
    return nondeterministic_function(function.aggregateFunction())


def is_first_of_partition(window: JavaObject) -> bool:
    """Whether a window function is first_value() of an ordered partition whose frame ends at or after the
    row."""
    function, spec = window.windowFunction(), window.windowSpec()
    if kind(function) != "AggregateExpression" or kind(function.aggregateFunction()) != "First":
        return False
    frame = spec.frameSpecification()
    whole = kind(frame.lower()) == "UnboundedPreceding"
    ends = kind(frame.upper()) in ("CurrentRow", "UnboundedFollowing")
    # With IGNORE NULLS the result depends on the end of the frame, so ties there matter.
    return (
        whole and ends and not function.aggregateFunction().ignoreNulls() and not spec.orderSpec().isEmpty()
    )


def order_insensitive_arrays(expression: JavaObject) -> set[int]:
    """Result ids of the aggregate functions whose array `expression` uses independently of its order.

    The length of listagg() does not depend on the order either.
    """
    if kind(expression) in _LENGTHS:
        return _result_id_of(expression.children().apply(0), frozenset({"ListAgg"}))
    if kind(expression) not in _ORDER_INSENSITIVE and not _sorts_by_value(expression):
        return set()
    array = expression.children().apply(0)
    while _is_per_element(array):
        array = array.children().apply(0)
    return _result_id_of(array, frozenset(_ARRAYS))


def _is_constant_in_group(function: JavaObject, keys: Sequence[JavaObject]) -> bool:
    """Whether a function aggregates the same value in all rows, whose order then does not matter."""
    if kind(function) not in _ORDER_SENSITIVE:
        return False
    value = function.children().apply(0)
    return bool(value.deterministic()) and _is_function_of(value, _exact(keys))


def _result_id_of(call: JavaObject, functions: frozenset[str]) -> set[int]:
    """The result id of a call of one of these functions: an array that first() picks has no other order."""
    is_call = kind(call) == "AggregateExpression" and kind(call.aggregateFunction()) in functions
    return {int(call.resultId().id())} if is_call else set()


def _sorts_by_value(expression: JavaObject) -> bool:
    """Whether it is array_sort() without a comparator. With a user's comparator different elements may
    tie."""
    if kind(expression) != "ArraySort":
        return False
    order = re.sub(r"#\d+L?", "", str(expression.function().function().toString()))
    return order in (_BY_VALUE, _NULLS_LAST)


def _is_per_element(array: JavaObject) -> bool:
    """Whether a permutation of the array argument gives a permutation of the same result."""
    name = kind(array)
    if name in _PER_ELEMENT_WITHOUT_INDEX:
        return int(array.function().arguments().size()) == 1
    return name in _PER_ELEMENT


def _order_determines(order: JavaObject, value: JavaObject) -> bool:
    """Whether rows with an equal order expression have an equal value."""
    return _determined_by(
        value, list(items(order.valExprs())) if kind(order) == "CreateNamedStruct" else [order]
    )


def _determined_by(value: JavaObject, orders: Sequence[JavaObject]) -> bool:
    """Whether rows with equal `orders` have an equal `value`: it is one of them or a function of them."""
    if any(order.semanticEquals(value) and not _is_collated(order) for order in orders):
        return True
    return bool(value.deterministic()) and _is_function_of(value, _exact(orders))


def _exact(orders: Iterable[JavaObject]) -> list[JavaObject]:
    """The orders whose equal values are the same in every function of them."""
    return [
        order
        for order in orders
        if not _is_collated(order) and not any(name in order.dataType().sql() for name in _SIGNED_ZERO)
    ]


def _is_collated(expression: JavaObject) -> bool:
    """Whether equal values may differ, such as 'a' and 'A' in UTF8_LCASE."""
    return "collate" in expression.dataType().catalogString()


def _is_function_of(value: JavaObject, orders: Sequence[JavaObject]) -> bool:
    if value.foldable() or any(order.semanticEquals(value) for order in orders):
        return True
    parts = list(children_of(value))
    return bool(parts) and all(_is_function_of(part, orders) for part in parts)

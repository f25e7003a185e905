"""Aggregate functions whose answer hangs on the order of rows or on how ties are broken.

The old answer of a group cannot be computed again to be taken out of a view, so whoever uses such a function
has the view compared with what is stored.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from py4j.java_gateway import JavaObject

from tautochrone.spark.jvm.catalyst import items, kind

__all__ = [
    "is_first_of_partition",
    "nondeterministic_function",
    "nondeterministic_range_frame",
    "nondeterministic_unordered_rows",
    "order_insensitive_arrays",
]

_FIRST = {"First": "first()", "Last": "last()", "Mode": "mode()"}
_ARRAYS = {"CollectList": "collect_list()", "CollectSet": "collect_set()"}
_BEST = {"MaxBy": "max_by()", "MinBy": "min_by()"}
# -0.0 ties with 0.0, and what is made of them may differ: 1/x, or the text.
_SIGNED_ZERO = ("FLOAT", "DOUBLE")
_ORDERLESS = frozenset(
    {"SortArray", "ArrayMax", "ArrayMin", "Size", "ArrayContains", "ArrayExists", "ArrayForAll"}
)
_ITEM_BY_ITEM = frozenset({"ArrayDistinct", "Cast"})
_ITEM_BY_ITEM_UNLESS_COUNTED = frozenset({"ArrayFilter", "ArrayTransform"})
# array_sort() without a comparator, where items may be NULL and where not.
_BY_VALUE = "if ((lambda left < lambda right)) -1 else if ((lambda left > lambda right)) 1 else 0"
_NULLS_LAST = (
    "if ((isnull(lambda left) AND isnull(lambda right))) 0 else if (isnull(lambda left)) 1 "
    f"else if (isnull(lambda right)) -1 else {_BY_VALUE}"
)


def nondeterministic_function(function: JavaObject) -> str | None:
    """Why a function's answer is one of several, or None."""
    name = kind(function)
    if name in _FIRST and not (name == "Mode" and function.reverseOpt().isDefined()):
        return f"{_FIRST[name]} takes any of several rows"
    if name in _ARRAYS:
        return f"{_ARRAYS[name]} gives an array in any order: use sort_array()"
    if name in _BEST and not _tells(function.orderingExpr(), function.valueExpr()):
        return f"{_BEST[name]} breaks ties by chance: order by a struct that ends with the value"
    if name == "ListAgg":
        orders = [entry.child() for entry in items(function.orderExpressions())]
        if not _told(function.child(), orders):
            return "listagg() joins in any order what WITHIN GROUP does not tell apart"
    return None


def nondeterministic_range_frame(window: JavaObject) -> str | None:
    """Why a window function over a RANGE frame gives one of several answers where rows tie, or None."""
    called = window.windowFunction()
    if kind(called) == "NthValue":
        return "nth_value() takes any of several rows"
    return (
        nondeterministic_function(called.aggregateFunction())
        if kind(called) == "AggregateExpression"
        else None
    )


def nondeterministic_unordered_rows(entry: JavaObject) -> str | None:
    """Why a window function over a ROWS frame without ORDER BY gives one of several answers, or None."""
    window = entry.child()
    called, frame = window.windowFunction(), window.windowSpec().frameSpecification()
    ends = kind(frame.lower()), kind(frame.upper())
    if kind(called) != "AggregateExpression" or ends != ("UnboundedPreceding", "UnboundedFollowing"):
        return "a window function over rows without ORDER BY is no function of its input"
    return nondeterministic_function(called.aggregateFunction())


def is_first_of_partition(window: JavaObject) -> bool:
    """Whether it is first_value() of an ordered partition, wherever the frame ends after the row."""
    called, spec = window.windowFunction(), window.windowSpec()
    if kind(called) != "AggregateExpression" or kind(called.aggregateFunction()) != "First":
        return False
    frame = spec.frameSpecification()
    whole = kind(frame.lower()) == "UnboundedPreceding"
    ends = kind(frame.upper()) in ("CurrentRow", "UnboundedFollowing")
    # Without NULLs, which of tied rows is first does hang on the end.
    return whole and ends and not called.aggregateFunction().ignoreNulls() and not spec.orderSpec().isEmpty()


def order_insensitive_arrays(expression: JavaObject) -> set[int]:
    """Results (by id) of functions whose array `expression` reads without regard to its order."""
    if kind(expression) not in _ORDERLESS and not _sorts_by_value(expression):
        return set()
    array = expression.children().apply(0)
    while _each_by_itself(array):
        array = array.children().apply(0)
    return {int(array.resultId().id())} if kind(array) == "AggregateExpression" else set()


def _sorts_by_value(expression: JavaObject) -> bool:
    """Whether it is array_sort() and no comparator of the user's, under which different items may tie."""
    if kind(expression) != "ArraySort":
        return False
    order = re.sub(r"#\d+L?", "", str(expression.function().function().toString()))
    return order in (_BY_VALUE, _NULLS_LAST)


def _each_by_itself(array: JavaObject) -> bool:
    """Whether an array of the same items in another order gives the same items in another order."""
    name = kind(array)
    if name in _ITEM_BY_ITEM_UNLESS_COUNTED:
        return int(array.function().arguments().size()) == 1
    return name in _ITEM_BY_ITEM


def _tells(order: JavaObject, value: JavaObject) -> bool:
    """Whether equal orders have equal values."""
    return _told(value, list(items(order.valExprs())) if kind(order) == "CreateNamedStruct" else [order])


def _told(value: JavaObject, orders: Sequence[JavaObject]) -> bool:
    """Whether rows that agree in all of `orders` agree in `value`: it is one of them, or made of them."""
    if any(order.semanticEquals(value) for order in orders):
        return True
    exact = [order for order in orders if not any(name in order.dataType().sql() for name in _SIGNED_ZERO)]
    return bool(value.deterministic()) and _made_of(value, exact)


def _made_of(value: JavaObject, orders: Sequence[JavaObject]) -> bool:
    if value.foldable() or any(order.semanticEquals(value) for order in orders):
        return True
    parts = list(items(value.children()))
    return bool(parts) and all(_made_of(part, orders) for part in parts)

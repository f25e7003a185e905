"""How many rows a plan can have at most, whatever its tables hold."""

from __future__ import annotations

from math import prod

from py4j.java_gateway import JavaObject

from tautochrone.spark.jvm.catalyst import items, kind

__all__ = ["most_rows"]

_AT_MOST_THE_ROWS_OF_THE_CHILD = frozenset(
    {"Project", "Filter", "Sort", "Window", "SubqueryAlias", "RepartitionByExpression", "Repartition"}
)
_INNER = frozenset({"Inner", "Cross"})
_LEFT_ROWS = frozenset({"LeftSemi", "LeftAnti", "LeftSingle"})


def most_rows(plan: JavaObject) -> int | None:
    """The largest number of rows; None when it depends on the tables.

    Besides what Spark knows: groups by constants and by booleans, and operators over those.
    """
    known = plan.maxRows()
    if known.isDefined():
        return int(str(known.get()))
    name = kind(plan)
    if name in _AT_MOST_THE_ROWS_OF_THE_CHILD:
        return most_rows(plan.child())
    if name == "Aggregate":
        groups = [_most_values(key) for key in items(plan.groupingExpressions())]
        return prod(number for number in groups if number) if all(groups) else most_rows(plan.child())
    if name == "Union":
        bounds = [most_rows(child) for child in items(plan.children())]
        return None if None in bounds else sum(bound for bound in bounds if bound is not None)
    if name == "Join":
        join = kind(plan.joinType())
        if join in _LEFT_ROWS:
            return most_rows(plan.left())
        left, right = most_rows(plan.left()), most_rows(plan.right())
        return left * right if join in _INNER and left is not None and right is not None else None
    return None


def _most_values(key: JavaObject) -> int | None:
    """How many values, with NULL, an expression can have."""
    if key.foldable():
        return 1
    if str(key.dataType().catalogString()) != "boolean":
        return None
    return 3 if key.nullable() else 2

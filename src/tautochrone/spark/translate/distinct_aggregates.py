"""Aggregate functions with DISTINCT: which they are, and which of them the same rows can answer."""

from __future__ import annotations

from py4j.java_gateway import JavaObject

from tautochrone.spark.analysis.optimized_plan import DISTINCT_MODE, KNOWN_NULLABLE
from tautochrone.spark.jvm.catalyst import items, kind

__all__ = ["distinct_aggregate_groups", "distinct_children", "is_distinct"]


def distinct_aggregate_groups(calls: list[JavaObject]) -> list[list[JavaObject]]:
    """Calls that one grouping can answer: the plain ones, and those that are DISTINCT in the same values."""
    found: list[list[JavaObject]] = []
    for call in calls:
        for part in found:
            if _same_rows(part[0], call):
                part.append(call)
                break
        else:
            found.append([call])
    return found


def is_distinct(call: JavaObject) -> bool:
    return kind(call.mode()) == DISTINCT_MODE


def _same_rows(one: JavaObject, other: JavaObject) -> bool:
    if not (is_distinct(one) and is_distinct(other)):
        return not is_distinct(one) and not is_distinct(other)
    if one.filter().isDefined() != other.filter().isDefined():
        return False
    if one.filter().isDefined() and not one.filter().get().semanticEquals(other.filter().get()):
        return False
    a, b = distinct_children(one), distinct_children(other)
    return len(a) == len(b) and all(x.semanticEquals(y) for x, y in zip(a, b, strict=True))


def distinct_children(call: JavaObject) -> list[JavaObject]:
    """What a DISTINCT function tells rows apart by, in the order of its arguments; a separator is none."""
    arguments = items(call.aggregateFunction().children())
    wrapped = ("SortOrder", KNOWN_NULLABLE)
    found = [argument.child() if kind(argument) in wrapped else argument for argument in arguments]
    return [argument for argument in found if not argument.foldable()]

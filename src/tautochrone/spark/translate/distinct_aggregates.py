"""Aggregate functions with DISTINCT, and which calls one Aggregate node can compute."""

from __future__ import annotations

from py4j.java_gateway import JavaObject

from tautochrone.spark.analysis.optimized_plan import DISTINCT_MODE, KNOWN_NULLABLE
from tautochrone.spark.jvm.catalyst import items, kind

__all__ = ["distinct_aggregate_groups", "distinct_children", "is_distinct"]


def distinct_aggregate_groups(calls: list[JavaObject]) -> list[list[JavaObject]]:
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


def is_distinct(call: JavaObject) -> bool:
    return kind(call.mode()) == DISTINCT_MODE


def _same_rows(first: JavaObject, second: JavaObject) -> bool:
    """Whether two calls aggregate the same rows."""
    if not (is_distinct(first) and is_distinct(second)):
        return not is_distinct(first) and not is_distinct(second)
    if first.filter().isDefined() != second.filter().isDefined():
        return False
    if first.filter().isDefined() and not first.filter().get().semanticEquals(second.filter().get()):
        return False
    a, b = distinct_children(first), distinct_children(second)
    return len(a) == len(b) and all(x.semanticEquals(y) for x, y in zip(a, b, strict=True))


def distinct_children(call: JavaObject) -> list[JavaObject]:
    """The arguments whose values must be distinct, in order. A constant, such as a separator, is none."""
    arguments = items(call.aggregateFunction().children())
    wrapped = ("SortOrder", KNOWN_NULLABLE)
    children = [argument.child() if kind(argument) in wrapped else argument for argument in arguments]
    return [argument for argument in children if not argument.foldable()]

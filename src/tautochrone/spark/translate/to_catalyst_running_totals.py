"""Lowering of the rows from a bound on, and of totals over all rows."""

from __future__ import annotations

from py4j.java_gateway import JavaObject

from tautochrone.algebra.nodes import OrderedFrom, Totals
from tautochrone.spark.translate.lowering_context import LoweringContext

__all__ = ["lower_ordered_from", "lower_totals"]


def lower_ordered_from(lowering: LoweringContext, node: OrderedFrom) -> JavaObject:
    """The plan of the rows from a bound on, or of those before it."""
    catalyst = lowering.catalyst
    key, bound = lowering.columns.attribute(node.key), lowering.columns.attribute(node.bound_key)
    (order,) = node.order
    descending = str(order.direction().sql()) == "DESC"
    name = "LessThanOrEqual" if descending else "GreaterThanOrEqual"
    reached = catalyst.expression("Coalesce")(
        catalyst.seq([catalyst.expression(name)(key, bound), catalyst.literal(False)])
    )
    nulls_first = str(order.nullOrdering().sql()) == "NULLS FIRST"
    # NULL as the bound: every row if NULL comes first, and else only those that are NULL too.
    is_null = catalyst.expression("IsNull")(bound if nulls_first else key)
    condition = catalyst.expression("Or")(is_null, reached)
    if node.before:
        condition = catalyst.expression("Not")(condition)
    plan = lowering.join_scalars(lowering.plan(node.child), (node.bound,))
    return lowering.selected(catalyst.logical("Filter")(condition, plan), node.columns)


def lower_totals(lowering: LoweringContext, node: Totals) -> JavaObject:
    """The plan of one row with aggregate functions over all rows."""
    catalyst = lowering.catalyst
    child = lowering.coalesced(node.child)
    return catalyst.logical("Aggregate")(catalyst.seq(), catalyst.seq(node.handle), child, catalyst.none)

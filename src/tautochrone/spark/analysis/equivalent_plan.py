"""Rewrites of an analyzed plan that keep its rows, other than those of Spark's optimizer."""

from __future__ import annotations

from py4j.java_gateway import JavaObject

from tautochrone.spark.analysis.scalar_subqueries import SCALAR
from tautochrone.spark.jvm.callbacks import TransformRule
from tautochrone.spark.jvm.catalyst import Catalyst, contains_pattern, items, kind

__all__ = ["with_exists_as_groups", "without_result_order"]

_ONE_CHILD = frozenset({"Project", "Filter", "SubqueryAlias", "View"})
_SAME_EXISTENCE = frozenset({"Project", "Sort", "SubqueryAlias", "View", "Distinct", "LocalLimit"})
_EXISTS_PATTERN = "EXISTS_SUBQUERY"


def without_result_order(catalyst: Catalyst, plan: JavaObject) -> JavaObject:
    """The query without the ORDER BY of its result, which a table does not keep.

    An order below a LIMIT decides which rows there are, so it stays.
    """
    name = kind(plan)
    if name == "Sort":
        return without_result_order(catalyst, plan.child())
    if name == "WithCTE":
        return plan.copy(without_result_order(catalyst, plan.plan()), plan.cteDefs())
    if name in _ONE_CHILD:
        return plan.withNewChildren(catalyst.seq([without_result_order(catalyst, plan.child())]))
    return plan


def with_exists_as_groups(catalyst: Catalyst, node: JavaObject) -> JavaObject:
    """The operator with a scalar subquery in place of each EXISTS without correlation.

    The scalar is the only group of the subquery's rows by a constant, and NULL when there is no row. Spark
    would read the first row behind a LIMIT 1, but a LIMIT without an order has no rule. A LIMIT that the
    query itself has in an EXISTS changes nothing, and is left out.
    """
    if not any(contains_pattern(expression, _EXISTS_PATTERN) for expression in items(node.expressions())):
        return node

    def replace(expression: JavaObject) -> JavaObject:
        if kind(expression) != "Exists":
            return expression
        if not expression.children().isEmpty():
            rows = expression.plan()
            limited = kind(rows) in ("GlobalLimit", "LocalLimit")
            return expression.withNewPlan(_rows_to_exist(rows)) if limited else expression
        true = catalyst.literal(True)
        _, expr_id = catalyst.new_expr_id()
        group = catalyst.logical("Aggregate")(
            catalyst.seq([true]),
            catalyst.seq([catalyst.alias(true, "row", expr_id)]),
            _rows_to_exist(expression.plan()),
            catalyst.none,
        )
        empty, none = catalyst.seq(), catalyst.none
        scalar = catalyst.expression(SCALAR)(group, empty, expression.exprId(), empty, none, none, none)
        return catalyst.expression("IsNotNull")(scalar)

    return node.transformExpressions(TransformRule(replace))


def _rows_to_exist(plan: JavaObject) -> JavaObject:
    """A plan that has rows whenever `plan` has: without its LIMIT, ORDER BY, DISTINCT and results."""
    while kind(plan) in _SAME_EXISTENCE or _keeps_a_row(plan):
        plan = plan.child()
    return plan


def _keeps_a_row(plan: JavaObject) -> bool:
    if kind(plan) != "GlobalLimit" or kind(plan.limitExpr()) != "Literal":
        return False
    return int(plan.limitExpr().value()) > 0

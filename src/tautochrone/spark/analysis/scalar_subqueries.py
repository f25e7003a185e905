"""Moves scalar subqueries from expressions to where the algebra has a rule for them.

A filter keeps them: when a scalar changes, its rule visits only rows whose condition changes. For any other
operator the scalar becomes a column, by a join with the subquery's only row.
"""

from __future__ import annotations

from py4j.java_gateway import JavaObject

from tautochrone.spark.jvm.catalyst import Catalyst, TransformRule, children_of, contains_pattern, items, kind

__all__ = ["SCALAR", "has_subquery", "join_scalar_subqueries"]

SCALAR = "ScalarSubquery"


def join_scalar_subqueries(catalyst: Catalyst, plan: JavaObject) -> JavaObject:
    """The plan with scalar subqueries only in filters and in the result expressions of aggregates."""
    if not contains_pattern(plan, "SCALAR_SUBQUERY"):
        return plan
    return plan.transformUpWithSubqueries(TransformRule(lambda node: _joined(catalyst, node)))


def has_subquery(plan: JavaObject) -> bool:
    """Whether a plan or an expression contains a subquery of any kind."""
    return contains_pattern(plan, "PLAN_EXPRESSION")


def _joined(catalyst: Catalyst, node: JavaObject) -> JavaObject:
    if kind(node) == "Filter" or node.children().isEmpty():
        return node
    if not any(contains_pattern(expression, "SCALAR_SUBQUERY") for expression in items(node.expressions())):
        return node
    scalars = _ScalarJoins(catalyst)
    if kind(node) == "Aggregate":
        grouping, results = scalars.grouped(node)
        rewritten = node.copy(grouping, results, scalars.joined(node.child()), node.hint())
    else:
        rewritten = node.transformExpressions(TransformRule(lambda part: scalars.column(part) or part))
        first, *rest = children_of(node)
        rewritten = rewritten.withNewChildren(catalyst.seq([scalars.joined(first), *rest]))
    if rewritten.output().size() == node.output().size():
        return rewritten
    return catalyst.logical("Project")(node.output(), rewritten)


class _ScalarJoins:
    """The scalar subqueries of one operator, as columns of joins below it."""

    def __init__(self, catalyst: Catalyst) -> None:
        self._catalyst = catalyst
        self._columns: list[tuple[JavaObject, JavaObject, JavaObject]] = []

    def column(self, expression: JavaObject) -> JavaObject | None:
        """The column of a scalar subquery; None for any other expression."""
        if kind(expression) != SCALAR:
            return None
        # A grouping key and the same text in SELECT are two equal subqueries and must become one column.
        for subquery, attribute, _ in self._columns:
            if subquery.semanticEquals(expression):
                return attribute
        self._columns.append((expression, *_renamed(self._catalyst, expression.plan())))
        return self._columns[-1][1]

    def grouped(self, node: JavaObject) -> tuple[JavaObject, JavaObject]:
        """Grouping and result expressions of an aggregate, with subqueries replaced by columns.

        Only keys and the arguments of functions are evaluated below the grouping. A scalar elsewhere in a
        result expression stays there and is joined to the groups later.
        """
        catalyst = self._catalyst
        before = list(items(node.groupingExpressions()))
        after = [catalyst.transform_down(key, self.column) for key in before]

        def replace(expression: JavaObject) -> JavaObject | None:
            for old, new in zip(before, after, strict=True):
                if old.semanticEquals(expression):
                    return new
            if kind(expression) == "AggregateExpression":
                return catalyst.transform_down(expression, self.column)
            return None

        results = []
        for entry in items(node.aggregateExpressions()):
            if kind(entry) == "Alias":
                inner = catalyst.transform_down(entry.child(), replace)
                results.append(entry.withNewChildren(catalyst.seq([inner])))
            else:
                results.append(entry)
        return catalyst.seq(after), catalyst.seq(results)

    def joined(self, child: JavaObject) -> JavaObject:
        catalyst = self._catalyst
        single = catalyst.spark_sql_class("catalyst.plans.LeftSingle$")
        for _, _, source in self._columns:
            child = catalyst.logical("Join")(child, source, single, catalyst.none, catalyst.no_hint)
        return child


def _renamed(catalyst: Catalyst, plan: JavaObject) -> tuple[JavaObject, JavaObject]:
    """The column and the plan of a subquery. It gets a new column id: it may read the operator's own
    table."""
    _, expr_id = catalyst.new_expr_id()
    named = catalyst.alias(plan.output().apply(0), "scalar", expr_id)
    project = catalyst.logical("Project")(catalyst.seq([named]), plan)
    # A scalar subquery without a row is NULL.
    return named.toAttribute().withNullability(True), project

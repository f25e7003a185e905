"""Scalar subqueries in expressions, brought to where the algebra has a rule for them.

A filter keeps them: when a scalar moves, only rows count for which the outcome turns. Any other operator
finds the scalar beside each of its rows, by a join with the subquery's only row.
"""

from __future__ import annotations

from py4j.java_gateway import JavaObject

from tautochrone.spark.jvm.callbacks import TransformRule
from tautochrone.spark.jvm.catalyst import Catalyst, contains_pattern, items, kind

__all__ = ["SCALAR", "has_subquery", "join_scalar_subqueries"]

SCALAR = "ScalarSubquery"


def join_scalar_subqueries(catalyst: Catalyst, plan: JavaObject) -> JavaObject:
    """The plan with scalar subqueries in filters, and in results of aggregates, only."""
    if not contains_pattern(plan, "SCALAR_SUBQUERY"):
        return plan
    return plan.transformUpWithSubqueries(TransformRule(lambda node: _moved(catalyst, node)))


def has_subquery(plan: JavaObject) -> bool:
    """Whether an expression holds a plan of its own, anywhere in a plan or in an expression."""
    return contains_pattern(plan, "PLAN_EXPRESSION")


def _moved(catalyst: Catalyst, node: JavaObject) -> JavaObject:
    if kind(node) == "Filter" or node.children().isEmpty():
        return node
    if not any(contains_pattern(expression, "SCALAR_SUBQUERY") for expression in items(node.expressions())):
        return node
    beside = _Beside(catalyst)
    if kind(node) == "Aggregate":
        grouping, results = beside.grouped(node)
        rewritten = node.copy(grouping, results, beside.joined(node.child()), node.hint())
    else:
        rewritten = node.transformExpressions(TransformRule(lambda part: beside.column(part) or part))
        first, *rest = items(node.children())
        rewritten = rewritten.withNewChildren(catalyst.seq([beside.joined(first), *rest]))
    if rewritten.output().size() == node.output().size():
        return rewritten
    return catalyst.logical("Project")(node.output(), rewritten)


class _Beside:
    """The scalars that one operator finds beside its rows."""

    def __init__(self, catalyst: Catalyst) -> None:
        self._catalyst = catalyst
        self._made: list[tuple[JavaObject, JavaObject, JavaObject]] = []

    def column(self, expression: JavaObject) -> JavaObject | None:
        """The column of a scalar subquery; None for any other expression."""
        if kind(expression) != SCALAR:
            return None
        # A group key and the same text in SELECT are two subqueries and must be one column.
        for other, attribute, _ in self._made:
            if other.semanticEquals(expression):
                return attribute
        self._made.append((expression, *_renamed(self._catalyst, expression.plan())))
        return self._made[-1][1]

    def grouped(self, node: JavaObject) -> tuple[JavaObject, JavaObject]:
        """Keys and results of an aggregate. Only keys and what functions read is there below it: a scalar
        that a result reads besides stays, and is joined to the groups later."""
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
        single = catalyst.java_object("catalyst.plans.LeftSingle$")
        for _, _, source in self._made:
            child = catalyst.logical("Join")(child, source, single, catalyst.none, catalyst.no_hint)
        return child


def _renamed(catalyst: Catalyst, plan: JavaObject) -> tuple[JavaObject, JavaObject]:
    """A subquery's plan with a column id that nothing else has: it may read the same table as the rows."""
    _, expr_id = catalyst.new_expr_id()
    named = catalyst.alias(plan.output().apply(0), "scalar", expr_id)
    project = catalyst.logical("Project")(catalyst.seq([named]), plan)
    # Without a row it is NULL.
    return named.toAttribute().withNullability(True), project

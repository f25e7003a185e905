"""The plan of a query by Spark's own analyzer and optimizer, over opaque leaves in place of its tables.

The analyzed plan is first rewritten in ways that keep its rows and that Spark's optimizer does not have. In
the optimized one, scalar subqueries are moved from expressions to where the algebra has a rule for them: a
filter keeps them, because when a scalar changes, its rule visits only rows whose condition changes. For any
other operator the scalar becomes a column, by a join with the subquery's only row.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, SparkSession

from tautochrone.model.names import TableName
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan, lake_table
from tautochrone.spark.analysis.current_time import read_clocks, reads_current_time
from tautochrone.spark.analysis.session_context import session_settings
from tautochrone.spark.jvm.catalyst import (
    SCALAR_SUBQUERY,
    Catalyst,
    children_of,
    contains_pattern,
    items,
    kind,
    start_callback_server,
    transformed,
)

__all__ = ["DISTINCT_MODE", "KNOWN_NULLABLE", "OptimizedPlan", "has_subquery", "optimized_plan"]

_ONE_CHILD = frozenset({"Project", "Filter", "SubqueryAlias", "View"})
_SAME_EXISTENCE = frozenset({"Project", "Sort", "SubqueryAlias", "View", "Distinct", "LocalLimit"})
_EXISTS_PATTERN = "EXISTS_SUBQUERY"


def _without_result_order(catalyst: Catalyst, plan: JavaObject) -> JavaObject:
    """The query without the ORDER BY of its result, which a table does not keep.

    An order below a LIMIT decides which rows there are, so it stays.
    """
    name = kind(plan)
    if name == "Sort":
        return _without_result_order(catalyst, plan.child())
    if name == "WithCTE":
        return plan.copy(_without_result_order(catalyst, plan.plan()), plan.cteDefs())
    if name in _ONE_CHILD:
        return plan.withNewChildren(catalyst.seq([_without_result_order(catalyst, plan.child())]))
    return plan


def _with_exists_as_groups(catalyst: Catalyst, node: JavaObject) -> JavaObject:
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
        return catalyst.expression("IsNotNull")(catalyst.scalar_subquery(group, expression.exprId()))

    return transformed(node.transformExpressions, replace)


def _rows_to_exist(plan: JavaObject) -> JavaObject:
    """A plan that has rows whenever `plan` has: without its LIMIT, ORDER BY, DISTINCT and results."""
    while kind(plan) in _SAME_EXISTENCE or _is_limit_above_zero(plan):
        plan = plan.child()
    return plan


def _is_limit_above_zero(plan: JavaObject) -> bool:
    if kind(plan) != "GlobalLimit" or kind(plan.limitExpr()) != "Literal":
        return False
    return int(plan.limitExpr().value()) > 0


DISTINCT_MODE = "Partial"
"""The aggregate mode that marks a function as DISTINCT. Only Spark's physical planner uses this mode
otherwise, and a function in it reads the same columns as in the usual mode `Complete`."""

KNOWN_NULLABLE = "KnownNullable"
"""Spark's expression that marks a value as nullable; it is put around arguments of COUNT(DISTINCT …)."""

_RULES = "org.apache.spark.sql.catalyst.optimizer"
_EXCLUDED_RULES_CONF = "spark.sql.optimizer.excludedRules"
# These rules make plans cheaper to run once and harder to maintain incrementally: merged subqueries become
# nodes of their own, limits and window limits appear in places where the query has none.
_EXCLUDED_RULES = (
    "MergeScalarSubqueries",
    "MergeSubplans",
    "InferWindowGroupLimit",
    "LimitPushDown",
    "LimitPushDownThroughWindow",
    "OptimizeCsvJsonExprs",
)


class OptimizedPlan:
    """An optimized plan, with the lake table of each opaque leaf.

    Tables are found by the RDD of a leaf, which copies of the leaf keep.

    Attributes:
        plan: the Catalyst plan.
        obstacles: parts of the query that the plan does not represent.
    """

    def __init__(self, plan: JavaObject, tables: dict[int, TableName], obstacles: list[str]) -> None:
        self.plan = plan
        self.obstacles = obstacles
        self._tables = tables

    def table_of(self, leaf: JavaObject) -> TableName | None:
        """The lake table that a `LogicalRDD` leaf stands for; None for other data."""
        return self._tables.get(int(leaf.rdd().id()))


def optimized_plan(frame: DataFrame, catalog: str) -> OptimizedPlan:
    """Optimize a query after its lake tables were replaced by leaves without statistics or rows.

    Spark cannot fold a leaf over an RDD, prune it or push operators into it, so everything that the query
    does stays in the plan above it.
    """
    session = frame.sparkSession
    catalyst = Catalyst(session)
    start_callback_server(session)
    leaves = _Leaves(catalyst, catalog)
    plan = _without_result_order(catalyst, analyzed_plan(frame))
    plan = transformed(plan.transformUpWithSubqueries, leaves.replaced)
    with _without_rules(session):
        dataset = catalyst.spark_sql_class("classic.Dataset")
        optimized = dataset.ofRows(session._jsparkSession, plan).queryExecution().optimizedPlan()  # noqa: SLF001
    return OptimizedPlan(_join_scalar_subqueries(catalyst, optimized), leaves.tables, leaves.obstacles)


def _without_rules(session: SparkSession) -> AbstractContextManager[None]:
    before = session.conf.get(_EXCLUDED_RULES_CONF, None)
    excluded = ",".join(f"{_RULES}.{rule}" for rule in _EXCLUDED_RULES)
    return session_settings(session, {_EXCLUDED_RULES_CONF: f"{before},{excluded}" if before else excluded})


def _special_read(relation: JavaObject) -> str | None:
    """How a relation reads its table otherwise than its rows at a cut, as text; None if it does not."""
    if relation.timeTravelSpec().isDefined():
        return "at a fixed version"
    if not relation.options().isEmpty():
        return "with read options"
    names = {str(attribute.name()) for attribute in items(relation.output())}
    columns = {str(column.name()) for column in relation.table().columns()}
    return "with metadata columns" if names - columns else None


class _Leaves:
    """Replaces tables and clocks by opaque leaves, and marks DISTINCT functions, in a plan with its
    subqueries."""

    def __init__(self, catalyst: Catalyst, catalog: str) -> None:
        self._catalyst = catalyst
        self._catalog = catalog
        self._rdds: dict[TableName, JavaObject] = {}
        self.tables: dict[int, TableName] = {}
        self.obstacles: list[str] = []

    def replaced(self, node: JavaObject) -> JavaObject:
        """The replacement of a node; to be called from the leaves upwards."""
        if kind(node) == "DataSourceV2Relation":
            name = lake_table(node, self._catalog)
            if name is None:
                return node
            if reason := _special_read(node):
                self.obstacles.append(f"it reads {name} {reason}")
            return self._leaf(name, node.output())
        if reads_current_time(node):
            seq = self._catalyst.seq
            node = read_clocks(self._catalyst, node, lambda clock, time: self._leaf(clock, seq([time])))
        if contains_pattern(node, "EXISTS_SUBQUERY"):
            node = _with_exists_as_groups(self._catalyst, node)
        return self._with_distinct_modes(node) if kind(node) == "Aggregate" else node

    def _leaf(self, name: TableName, output: JavaObject) -> JavaObject:
        catalyst = self._catalyst
        if name not in self._rdds:
            self._rdds[name] = catalyst.session.sparkContext.parallelize([])._jrdd.rdd()  # noqa: SLF001
            self.tables[int(self._rdds[name].id())] = name
        return catalyst.spark_sql_class("execution.LogicalRDD")(
            output,
            self._rdds[name],
            catalyst.spark_sql_class("catalyst.plans.physical.UnknownPartitioning")(0),
            catalyst.seq(),
            False,
            catalyst.none,
            catalyst.session._jsparkSession,  # noqa: SLF001
            catalyst.none,
            catalyst.none,
        )

    def _with_distinct_modes(self, node: JavaObject) -> JavaObject:
        """An aggregate with `DISTINCT_MODE` in place of the DISTINCT flag of its functions.

        With the flag Spark would rewrite several DISTINCT functions into numbered copies of the rows. The
        numbers depend on hashes, so a state could not be read after a restart.
        """
        if "distinct" not in str(node.aggregateExpressions().toString()):
            return node
        catalyst = self._catalyst

        def replace(expression: JavaObject) -> JavaObject | None:
            if kind(expression) != "AggregateExpression" or not expression.isDistinct():
                return None
            function = expression.aggregateFunction()
            if kind(function) == "Count":
                # Spark would replace a count of a non-nullable value by a count of rows.
                children = [self._nullable(child) for child in children_of(function)]
                function = function.withNewChildren(catalyst.seq(children))
            return expression.copy(
                function,
                catalyst.expression(f"aggregate.{DISTINCT_MODE}$"),
                False,
                expression.filter(),
                expression.resultId(),
            )

        named = [catalyst.transform_down(entry, replace) for entry in items(node.aggregateExpressions())]
        return node.copy(node.groupingExpressions(), catalyst.seq(named), node.child(), node.hint())

    def _nullable(self, argument: JavaObject) -> JavaObject:
        return argument if argument.foldable() else self._catalyst.expression(KNOWN_NULLABLE)(argument)


# -- scalar subqueries -----------------------------------------------------------------------------


def _join_scalar_subqueries(catalyst: Catalyst, plan: JavaObject) -> JavaObject:
    """The plan with scalar subqueries only in filters and in the result expressions of aggregates."""
    if not contains_pattern(plan, "SCALAR_SUBQUERY"):
        return plan
    return transformed(plan.transformUpWithSubqueries, lambda node: _with_scalar_joins(catalyst, node))


def has_subquery(plan: JavaObject) -> bool:
    """Whether a plan or an expression contains a subquery of any kind."""
    return contains_pattern(plan, "PLAN_EXPRESSION")


def _with_scalar_joins(catalyst: Catalyst, node: JavaObject) -> JavaObject:
    if kind(node) == "Filter" or node.children().isEmpty():
        return node
    if not any(contains_pattern(expression, "SCALAR_SUBQUERY") for expression in items(node.expressions())):
        return node
    scalars = _ScalarJoins(catalyst)
    if kind(node) == "Aggregate":
        grouping, results = scalars.grouped(node)
        rewritten = node.copy(grouping, results, scalars.joined(node.child()), node.hint())
    else:
        rewritten = transformed(node.transformExpressions, lambda part: scalars.column(part) or part)
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
        if kind(expression) != SCALAR_SUBQUERY:
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

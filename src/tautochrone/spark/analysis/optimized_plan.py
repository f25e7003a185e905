"""The optimised plan of a query over opaque leaves: Spark's own analyser and optimiser as front end."""

from __future__ import annotations

from contextlib import AbstractContextManager

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, SparkSession

from tautochrone.model.names import TableName
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan, lake_table
from tautochrone.spark.analysis.current_time import read_clocks, reads_current_time
from tautochrone.spark.analysis.scalar_subqueries import join_scalar_subqueries
from tautochrone.spark.analysis.session_context import session_settings
from tautochrone.spark.jvm.callbacks import TransformRule, start_callback_server
from tautochrone.spark.jvm.catalyst import Catalyst, items, kind

__all__ = ["DISTINCT_MODE", "KNOWN_NULLABLE", "OptimizedPlan", "optimized_plan"]

DISTINCT_MODE = "Partial"
"""Catalyst's mode of an aggregate function that sees each combination of its arguments once. Nobody but the
planner of physical plans uses it, and in it a function reads what it reads in the usual mode."""

KNOWN_NULLABLE = "KnownNullable"
"""Spark's tag for what it must take for NULL at times; it is around the arguments of COUNT(DISTINCT …)."""

_RULES = "org.apache.spark.sql.catalyst.optimizer"
_EXCLUDED = "spark.sql.optimizer.excludedRules"
# They make plans cheaper to run once and harder to follow: merged subqueries become nodes of their own,
# limits and window limits appear in places where nobody wrote them.
_NOT_WANTED = (
    "MergeScalarSubqueries",
    "MergeSubplans",
    "InferWindowGroupLimit",
    "LimitPushDown",
    "LimitPushDownThroughWindow",
    "OptimizeCsvJsonExprs",
)


class OptimizedPlan:
    """A plan and, per leaf that stands for a lake table, the table's name (by the RDD of the leaf, which
    also copies of the leaf keep). `obstacles`: why it is not the whole query."""

    def __init__(self, plan: JavaObject, tables: dict[int, TableName], obstacles: list[str]) -> None:
        self.plan = plan
        self.obstacles = obstacles
        self._tables = tables

    def table_of(self, leaf: JavaObject) -> TableName | None:
        """The lake table that a `LogicalRDD` leaf stands for; None for other data."""
        return self._tables.get(int(leaf.rdd().id()))


def optimized_plan(frame: DataFrame, catalog: str) -> OptimizedPlan:
    """Optimise a query after its lake tables were replaced by leaves without statistics or rows.

    A leaf over an RDD cannot be folded, pruned or pushed into, so that everything the query does is in
    the plan above it.
    """
    session = frame.sparkSession
    catalyst = Catalyst(session)
    start_callback_server(session)
    leaves = _Leaves(catalyst, catalog)
    plan = analyzed_plan(frame).transformUpWithSubqueries(TransformRule(leaves.replaced))
    with _without_rules(session):
        dataset = catalyst.java_object("classic.Dataset")
        answer = dataset.ofRows(session._jsparkSession, plan).queryExecution().optimizedPlan()  # noqa: SLF001
    return OptimizedPlan(join_scalar_subqueries(catalyst, answer), leaves.tables, leaves.obstacles)


def _without_rules(session: SparkSession) -> AbstractContextManager[None]:
    before = session.conf.get(_EXCLUDED, None)
    ours = ",".join(f"{_RULES}.{rule}" for rule in _NOT_WANTED)
    return session_settings(session, {_EXCLUDED: f"{before},{ours}" if before else ours})


def _unlike_the_table(relation: JavaObject) -> str | None:
    """What a leaf asks of its table besides the rows at a cut, in words, or None."""
    if relation.timeTravelSpec().isDefined():
        return "at a version of its own"
    if not relation.options().isEmpty():
        return "with options of its own"
    names = {str(attribute.name()) for attribute in items(relation.output())}
    columns = {str(column.name()) for column in relation.table().columns()}
    return "with metadata columns" if names - columns else None


class _Leaves:
    """What stands in a plan instead of each of its nodes, subqueries included."""

    def __init__(self, catalyst: Catalyst, catalog: str) -> None:
        self._catalyst = catalyst
        self._catalog = catalog
        self._rdds: dict[TableName, JavaObject] = {}
        self.tables: dict[int, TableName] = {}
        self.obstacles: list[str] = []

    def replaced(self, node: JavaObject) -> JavaObject:
        """To be called from the leaves upwards."""
        if kind(node) == "DataSourceV2Relation":
            name = lake_table(node, self._catalog)
            if name is None:
                return node
            if reason := _unlike_the_table(node):
                self.obstacles.append(f"it reads {name} {reason}")
            return self._leaf(name, node.output())
        if reads_current_time(node):
            one = self._catalyst.seq
            node = read_clocks(self._catalyst, node, lambda clock, at: self._leaf(clock, one([at])))
        return self._with_marks(node) if kind(node) == "Aggregate" else node

    def _leaf(self, name: TableName, output: JavaObject) -> JavaObject:
        catalyst = self._catalyst
        if name not in self._rdds:
            self._rdds[name] = catalyst.session.sparkContext.parallelize([])._jrdd.rdd()  # noqa: SLF001
            self.tables[int(self._rdds[name].id())] = name
        return catalyst.java_object("execution.LogicalRDD")(
            output,
            self._rdds[name],
            catalyst.java_object("catalyst.plans.physical.UnknownPartitioning")(0),
            catalyst.seq(),
            False,
            catalyst.none,
            catalyst.session._jsparkSession,  # noqa: SLF001
            catalyst.none,
            catalyst.none,
        )

    def _with_marks(self, node: JavaObject) -> JavaObject:
        """An aggregate whose DISTINCT is said by the mode of its functions.

        Spark would rewrite several of them into numbered copies of the rows, and which number means what
        depends on hashes: a state could not be read after a restart.
        """
        if "distinct" not in str(node.aggregateExpressions().toString()):
            return node
        catalyst = self._catalyst

        def replace(expression: JavaObject) -> JavaObject | None:
            if kind(expression) != "AggregateExpression" or not expression.isDistinct():
                return None
            function = expression.aggregateFunction()
            if kind(function) == "Count":
                # A count of what is never NULL would become a count of rows.
                children = [self._nullable(child) for child in items(function.children())]
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

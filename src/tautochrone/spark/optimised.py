"""The optimised plan of a query over opaque leaves: Spark's own analyser and optimiser as front end."""

from __future__ import annotations

from contextlib import AbstractContextManager

from py4j.java_gateway import JavaObject
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession

from tautochrone.model.names import TableName
from tautochrone.spark.catalyst import Catalyst, items, kind
from tautochrone.spark.evaluate import with_settings
from tautochrone.spark.plans import analysed, lake_table

__all__ = ["DISTINCT_MARK", "OptimisedPlan", "optimised"]

DISTINCT_MARK = "KnownNullable"
"""Spark's tag around the arguments of an aggregate that sees each combination of their values once."""

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


class OptimisedPlan:
    """A plan and, per leaf that stands for a lake table, the table's name (by the RDD of the leaf, which
    also copies of the leaf keep)."""

    def __init__(self, plan: JavaObject, tables: dict[int, TableName]) -> None:
        self.plan = plan
        self._tables = tables

    def table_of(self, leaf: JavaObject) -> TableName | None:
        """The lake table that a `LogicalRDD` leaf stands for; None for other data."""
        return self._tables.get(int(leaf.rdd().id()))


def optimised(frame: DataFrame, catalog: str) -> OptimisedPlan:
    """Optimise a query after its lake tables were replaced by leaves without statistics or rows.

    A leaf over an RDD cannot be folded, pruned or pushed into, so that everything the query does is in
    the plan above it.
    """
    session = frame.sparkSession
    catalyst = Catalyst(session)
    gateway = session.sparkContext._gateway  # noqa: SLF001
    assert gateway is not None
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    leaves = _Leaves(catalyst, catalog)
    plan = analysed(frame).transformUpWithSubqueries(leaves)
    with _without_rules(session):
        dataset = catalyst.find("classic.Dataset")
        answer = dataset.ofRows(session._jsparkSession, plan).queryExecution().optimizedPlan()  # noqa: SLF001
    return OptimisedPlan(answer, leaves.tables)


def _without_rules(session: SparkSession) -> AbstractContextManager[None]:
    before = session.conf.get(_EXCLUDED, None)
    ours = ",".join(f"{_RULES}.{rule}" for rule in _NOT_WANTED)
    return with_settings(session, {_EXCLUDED: f"{before},{ours}" if before else ours})


class _Leaves:
    """A Scala partial function: called back by Catalyst for every node, subqueries included."""

    def __init__(self, catalyst: Catalyst, catalog: str) -> None:
        self._catalyst = catalyst
        self._catalog = catalog
        self._rdds: dict[TableName, JavaObject] = {}
        self.tables: dict[int, TableName] = {}

    def isDefinedAt(self, _node: JavaObject) -> bool:  # noqa: N802
        return True

    def apply(self, node: JavaObject) -> JavaObject:
        return self.applyOrElse(node, None)

    def applyOrElse(self, node: JavaObject, _default: object) -> JavaObject:  # noqa: N802
        if kind(node) == "Aggregate":
            return self._with_marks(node)
        if kind(node) != "DataSourceV2Relation":
            return node
        name = lake_table(node, self._catalog)
        if name is None:
            return node
        catalyst = self._catalyst
        if name not in self._rdds:
            self._rdds[name] = catalyst.session.sparkContext.parallelize([])._jrdd.rdd()  # noqa: SLF001
            self.tables[int(self._rdds[name].id())] = name
        return catalyst.find("execution.LogicalRDD")(
            node.output(),
            self._rdds[name],
            catalyst.find("catalyst.plans.physical.UnknownPartitioning")(0),
            catalyst.seq(),
            False,
            catalyst.none,
            catalyst.session._jsparkSession,  # noqa: SLF001
            catalyst.none,
            catalyst.none,
        )

    def _with_marks(self, node: JavaObject) -> JavaObject:
        """An aggregate whose DISTINCT is said by a mark around the arguments.

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
            marked = [catalyst.expression(DISTINCT_MARK)(child) for child in items(function.children())]
            return expression.copy(
                function.withNewChildren(catalyst.seq(marked)),
                expression.mode(),
                False,
                expression.filter(),
                expression.resultId(),
            )

        named = [catalyst.rebuilt(entry, replace) for entry in items(node.aggregateExpressions())]
        return node.copy(node.groupingExpressions(), catalyst.seq(named), node.child(), node.hint())

    class Java:
        implements = ("scala.PartialFunction",)

"""Queries that ask for the time: which clocks they read, and the same queries with the time given.

Only *analysed* plans are looked at: the optimiser writes the machine's time into them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

from py4j.java_gateway import JavaObject
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from tautochrone.model.clock import NOW, today
from tautochrone.model.names import TableName, Version
from tautochrone.spark.callbacks import Rewrite, allow_callbacks
from tautochrone.spark.catalyst import Catalyst, items, kind
from tautochrone.spark.evaluate import dataframe_of_plan
from tautochrone.spark.packages import packages_of
from tautochrone.spark.scalars import SCALAR

__all__ = ["CLOCK_FUNCTIONS", "clocks_of", "current_like", "day_of", "frozen", "row_of", "with_clocks"]

CLOCK_FUNCTIONS = {
    "CurrentTimestamp": "current_timestamp()",
    "Now": "now()",
    "LocalTimestamp": "localtimestamp()",
    "CurrentDate": "current_date()",
}
"""Catalyst's classes with the functions that people write."""


def clocks_of(plan: JavaObject) -> Mapping[TableName, str]:
    """The clocks that a query reads, subqueries included, each with a function that asks for it."""
    found: dict[TableName, str] = {}
    for root in (plan, *items(plan.subqueriesAll())):
        if current_like(root):
            _collect(root, found)
    return found


def _collect(node: JavaObject, found: dict[TableName, str]) -> None:
    for expression in items(node.expressions()):
        _collect_called(expression, found)
    for child in items(node.children()):
        _collect(child, found)


def _collect_called(expression: JavaObject, found: dict[TableName, str]) -> None:
    clock = _clock_of(expression)
    if clock is not None:
        found.setdefault(clock, CLOCK_FUNCTIONS[kind(expression)])
    for child in items(expression.children()):
        _collect_called(child, found)


def current_like(plan: JavaObject) -> bool:
    """Whether a function of the time is in a plan or its expressions. The bit also covers
    current_database() and its kin, which a definition fixes."""
    return bool(plan.treePatternBits().get(_pattern()))


@cache
def _pattern() -> int:
    """The number of Catalyst's CURRENT_LIKE pattern in this Spark."""
    context = SparkContext._active_spark_context  # noqa: SLF001
    assert context is not None
    return int(packages_of(context._jvm).org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE().id())  # noqa: SLF001


def _clock_of(expression: JavaObject) -> TableName | None:
    name = kind(expression)
    if name not in CLOCK_FUNCTIONS:
        return None
    return today(str(expression.timeZoneId().get())) if name == "CurrentDate" else NOW


def day_of(session: SparkSession, zone: str, micros: int) -> int:
    """The date in a time zone, in days since 1970, as Spark counts it."""
    times = packages_of(session._jvm).org.apache.spark.sql.catalyst.util.DateTimeUtils  # noqa: SLF001
    return int(times.microsToDays(micros, times.getZoneId(zone)))


def row_of(session: SparkSession, clock: TableName, version: Version) -> DataFrame:
    """What a clock shows: one row with the column `at`."""
    function = "timestamp_micros" if clock == NOW else "date_from_unix_date"
    return session.sql(f"SELECT {function}({int(version)}) AS at")


def frozen(frame: DataFrame, versions: Mapping[TableName, Version]) -> DataFrame:
    """The same query at the time that `versions` has for the clocks that it reads.

    Raises:
        KeyError: a clock has no version.
    """
    plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001
    if not clocks_of(plan):
        return frame
    catalyst = Catalyst(frame.sparkSession)

    def given(expression: JavaObject) -> JavaObject:
        clock = _clock_of(expression)
        if clock is None:
            return expression
        at = catalyst.expression("Literal")(int(versions[clock]), _type_of(catalyst, clock))
        return _as_asked(catalyst, expression, at)

    allow_callbacks(frame.sparkSession)
    return dataframe_of_plan(frame.sparkSession, plan.transformAllExpressionsWithSubqueries(Rewrite(given)))


def with_clocks(
    catalyst: Catalyst, node: JavaObject, leaf: Callable[[TableName, JavaObject], JavaObject]
) -> JavaObject:
    """A plan's node that asks scalar subqueries for the time.

    Args:
        leaf: makes the leaf of a clock with one given attribute.
    """

    def subquery(expression: JavaObject) -> JavaObject:
        clock = _clock_of(expression)
        if clock is None:
            return expression
        _, expr_id = catalyst.new_id()
        shape = catalyst.null(_type_of(catalyst, clock))
        at = leaf(clock, catalyst.alias(shape, "at", expr_id).toAttribute())
        return _as_asked(catalyst, expression, _scalar(catalyst, at))

    return node.transformExpressions(Rewrite(subquery))


def _scalar(catalyst: Catalyst, plan: JavaObject) -> JavaObject:
    _, expr_id = catalyst.new_id()
    empty, none = catalyst.seq(), catalyst.none
    return catalyst.expression(SCALAR)(plan, empty, expr_id, empty, none, none, none)


def _as_asked(catalyst: Catalyst, function: JavaObject, at: JavaObject) -> JavaObject:
    """The time in the type of the function that asked for it."""
    if kind(function) != "LocalTimestamp":
        return at
    mode = catalyst.expression("EvalMode").LEGACY()
    return catalyst.expression("Cast")(at, function.dataType(), function.timeZoneId(), mode)


def _type_of(catalyst: Catalyst, clock: TableName) -> JavaObject:
    types = packages_of(catalyst.session._jvm).org.apache.spark.sql.types.DataTypes  # noqa: SLF001
    return types.TimestampType if clock == NOW else types.DateType

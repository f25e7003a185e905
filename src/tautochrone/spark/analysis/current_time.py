"""Queries that use the current time: which clocks they read, and the same queries at a fixed time.

Works on *analyzed* plans: the optimizer would replace the functions by the machine's time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, SparkSession

from tautochrone.model.names import NOW, TableName, Version, today
from tautochrone.spark.analysis.session_context import dataframe_of_plan
from tautochrone.spark.jvm.catalyst import (
    Catalyst,
    contains_pattern,
    items,
    kind,
    plan_and_subqueries,
    start_callback_server,
    transformed,
    walk,
)

__all__ = ["clock_row", "clocks_of", "date_in_zone", "read_clocks", "reads_current_time", "with_fixed_time"]

_SQL_NAMES = {
    "CurrentTimestamp": "current_timestamp()",
    "Now": "now()",
    "LocalTimestamp": "localtimestamp()",
    "CurrentDate": "current_date()",
}
"""Catalyst's expression classes and the SQL functions that make them."""


def clocks_of(plan: JavaObject) -> Mapping[TableName, str]:
    """The clocks that a query and its subqueries read, each with an SQL function that reads it."""
    functions: dict[TableName, str] = {}
    candidates = (
        node for root in plan_and_subqueries(plan) if reads_current_time(root) for node in walk(root)
    )
    for node in candidates:
        for expression in items(node.expressions()):
            for part in walk(expression):
                clock = _clock_of(part)
                if clock is not None:
                    functions.setdefault(clock, _SQL_NAMES[kind(part)])
    return functions


def reads_current_time(plan: JavaObject) -> bool:
    """Whether a plan or its expressions may use the current time. Also true for current_database() and
    similar functions, which share Catalyst's pattern bit."""
    return contains_pattern(plan, "CURRENT_LIKE")


def _clock_of(expression: JavaObject) -> TableName | None:
    name = kind(expression)
    if name not in _SQL_NAMES:
        return None
    return today(str(expression.timeZoneId().get())) if name == "CurrentDate" else NOW


def date_in_zone(session: SparkSession, zone: str, micros: int) -> int:
    """The date in a time zone, in days since 1970-01-01, as Spark computes it.

    Args:
        session: any.
        zone: name of the time zone.
        micros: a time, in microseconds since 1970-01-01 UTC.
    """
    times = Catalyst(session).spark_sql_class("catalyst.util.DateTimeUtils")
    return int(times.microsToDays(micros, times.getZoneId(zone)))


def clock_row(session: SparkSession, clock: TableName, version: Version) -> DataFrame:
    """The content of a clock at a version: one row with the column `at`."""
    function = "timestamp_micros" if clock == NOW else "date_from_unix_date"
    return session.sql(f"SELECT {function}({int(version)}) AS at")


def with_fixed_time(frame: DataFrame, versions: Mapping[TableName, Version]) -> DataFrame:
    """The same query at a fixed time: the version that `versions` has for each clock it reads.

    Raises:
        KeyError: a clock has no version.
    """
    plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001
    if not clocks_of(plan):
        return frame
    catalyst = Catalyst(frame.sparkSession)

    def fixed(expression: JavaObject) -> JavaObject:
        clock = _clock_of(expression)
        if clock is None:
            return expression
        time = catalyst.expression("Literal")(int(versions[clock]), _type_of(catalyst, clock))
        return _typed(catalyst, expression, time)

    start_callback_server(frame.sparkSession)
    return dataframe_of_plan(
        frame.sparkSession, transformed(plan.transformAllExpressionsWithSubqueries, fixed)
    )


def read_clocks(
    catalyst: Catalyst, node: JavaObject, leaf: Callable[[TableName, JavaObject], JavaObject]
) -> JavaObject:
    """A node in which functions of the current time became scalar subqueries over clocks.

    Args:
        catalyst: of the session.
        node: of an analyzed plan.
        leaf: makes the leaf plan of a clock with the given output attribute.
    """

    def subquery(expression: JavaObject) -> JavaObject:
        clock = _clock_of(expression)
        if clock is None:
            return expression
        _, expr_id = catalyst.new_expr_id()
        null = catalyst.null(_type_of(catalyst, clock))
        plan = leaf(clock, catalyst.alias(null, "at", expr_id).toAttribute())
        _, subquery_id = catalyst.new_expr_id()
        return _typed(catalyst, expression, catalyst.scalar_subquery(plan, subquery_id))

    return transformed(node.transformExpressions, subquery)


def _typed(catalyst: Catalyst, function: JavaObject, time: JavaObject) -> JavaObject:
    """The time in the result type of the replaced function."""
    if kind(function) != "LocalTimestamp":
        return time
    return catalyst.cast(time, function.dataType(), function.timeZoneId())


def _type_of(catalyst: Catalyst, clock: TableName) -> JavaObject:
    types = catalyst.spark_sql_class("types.DataTypes")
    return types.TimestampType if clock == NOW else types.DateType

"""Queries that ask for the time: which clocks they read, and the same queries with the time given.

Only *analysed* plans are looked at: the optimiser writes the machine's time into them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, SparkSession

from tautochrone.model.clock import NOW, today
from tautochrone.model.names import TableName, Version
from tautochrone.spark.analysis.scalar_subqueries import SCALAR
from tautochrone.spark.analysis.session_context import dataframe_of_plan
from tautochrone.spark.jvm.callbacks import TransformRule, start_callback_server
from tautochrone.spark.jvm.catalyst import Catalyst, contains_pattern, items, kind, plan_and_subqueries, walk

__all__ = ["clock_row", "clocks_of", "date_in_zone", "read_clocks", "reads_current_time", "with_fixed_time"]

_FUNCTIONS = {
    "CurrentTimestamp": "current_timestamp()",
    "Now": "now()",
    "LocalTimestamp": "localtimestamp()",
    "CurrentDate": "current_date()",
}
"""Catalyst's classes with the functions that people write."""


def clocks_of(plan: JavaObject) -> Mapping[TableName, str]:
    """The clocks that a query reads, subqueries included, each with a function that asks for it."""
    found: dict[TableName, str] = {}
    asking = (node for root in plan_and_subqueries(plan) if reads_current_time(root) for node in walk(root))
    for node in asking:
        for expression in items(node.expressions()):
            for part in walk(expression):
                clock = _clock_of(part)
                if clock is not None:
                    found.setdefault(clock, _FUNCTIONS[kind(part)])
    return found


def reads_current_time(plan: JavaObject) -> bool:
    """Whether a function of the time is in a plan or its expressions. The bit also covers
    current_database() and its kin, which a definition fixes."""
    return contains_pattern(plan, "CURRENT_LIKE")


def _clock_of(expression: JavaObject) -> TableName | None:
    name = kind(expression)
    if name not in _FUNCTIONS:
        return None
    return today(str(expression.timeZoneId().get())) if name == "CurrentDate" else NOW


def date_in_zone(session: SparkSession, zone: str, micros: int) -> int:
    """The date in a time zone, in days since 1970, as Spark counts it."""
    times = Catalyst(session).java_object("catalyst.util.DateTimeUtils")
    return int(times.microsToDays(micros, times.getZoneId(zone)))


def clock_row(session: SparkSession, clock: TableName, version: Version) -> DataFrame:
    """What a clock shows: one row with the column `at`."""
    function = "timestamp_micros" if clock == NOW else "date_from_unix_date"
    return session.sql(f"SELECT {function}({int(version)}) AS at")


def with_fixed_time(frame: DataFrame, versions: Mapping[TableName, Version]) -> DataFrame:
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

    start_callback_server(frame.sparkSession)
    return dataframe_of_plan(
        frame.sparkSession, plan.transformAllExpressionsWithSubqueries(TransformRule(given))
    )


def read_clocks(
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
        _, expr_id = catalyst.new_expr_id()
        shape = catalyst.null(_type_of(catalyst, clock))
        at = leaf(clock, catalyst.alias(shape, "at", expr_id).toAttribute())
        return _as_asked(catalyst, expression, _scalar(catalyst, at))

    return node.transformExpressions(TransformRule(subquery))


def _scalar(catalyst: Catalyst, plan: JavaObject) -> JavaObject:
    _, expr_id = catalyst.new_expr_id()
    empty, none = catalyst.seq(), catalyst.none
    return catalyst.expression(SCALAR)(plan, empty, expr_id, empty, none, none, none)


def _as_asked(catalyst: Catalyst, function: JavaObject, at: JavaObject) -> JavaObject:
    """The time in the type of the function that asked for it."""
    if kind(function) != "LocalTimestamp":
        return at
    return catalyst.cast(at, function.dataType(), function.timeZoneId())


def _type_of(catalyst: Catalyst, clock: TableName) -> JavaObject:
    types = catalyst.java_object("types.DataTypes")
    return types.TimestampType if clock == NOW else types.DateType

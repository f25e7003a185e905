"""A streaming query's plan over the rows of a batch DataFrame, as a batch query."""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, SparkSession

from tautochrone.spark.analysis.analyzed_plan import analyzed_plan, replace_leaves
from tautochrone.spark.analysis.session_context import dataframe_of_plan, scala_seq
from tautochrone.spark.jvm.cached_packages import cached_packages
from tautochrone.spark.jvm.catalyst import items
from tautochrone.spark.sources.registry import is_stream_leaf

__all__ = ["stream_as_batch"]


_NOT_STREAMING = False


def stream_as_batch(session: SparkSession, plan: JavaObject, rows: DataFrame) -> DataFrame:
    """A streaming query over `rows` instead of its one source.

    Args:
        session: the session in which the query was evaluated.
        plan: the query's analyzed plan, row by row over one source.
        rows: rows with the source's columns, by name.
    """

    def leaf(node: JavaObject) -> JavaObject:
        return _renamed(session, node, analyzed_plan(rows)) if is_stream_leaf(node) else node

    return dataframe_of_plan(session, replace_leaves(session, plan, leaf))


def _renamed(session: SparkSession, source: JavaObject, rows: JavaObject) -> JavaObject:
    """The rows with the attributes that the source has in the plan."""
    jvm: Any = cached_packages(session._jvm)  # noqa: SLF001
    catalyst = jvm.org.apache.spark.sql.catalyst
    if str(rows.nodeName()) == "LocalRelation":
        has_columns, local_columns = source.schema(), rows.schema()
        if has_columns.equals(has_columns.asNullable()) and has_columns.equals(local_columns.asNullable()):
            # The rows fit as they are, so nothing has to be evaluated.
            return catalyst.plans.logical.LocalRelation(
                source.output(), rows.data(), _NOT_STREAMING, jvm.scala.Option.empty()
            )
    columns = {str(column.name()): column for column in items(rows.output())}
    no_names = scala_seq(session, [])
    renamed = [
        catalyst.expressions.Alias(
            columns[str(column.name())],
            column.name(),
            column.exprId(),
            column.qualifier(),
            jvm.scala.Option.empty(),
            no_names,
        )
        for column in items(source.output())
    ]
    return catalyst.plans.logical.Project(scala_seq(session, renamed), rows)

"""A query over other rows than those of its inputs: a streaming query as a batch query, over given rows or
over given records of its source; and any query over rows that stand for its tables.

Spark passes on a batch of a stream as a whole: when its query fails, the error does not say on which record.
So the same analyzed plan runs over records that are read again by their offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, SparkSession

from tautochrone.model.source import Unsupported
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan, determinism, replace_leaves
from tautochrone.spark.analysis.session_context import dataframe_of_plan, scala_seq
from tautochrone.spark.jvm.catalyst import (
    Catalyst,
    cached_packages,
    items,
    kind,
    start_callback_server,
    transformed,
    walk_with_subqueries,
)
from tautochrone.spark.sources.registry import is_stream_leaf, sources_of
from tautochrone.spark.sources.spark_source import STREAM_LEAVES, RecordReader

__all__ = ["FlowReplay", "flow_replay", "over_rows", "renamed", "stream_as_batch"]


def stream_as_batch(session: SparkSession, plan: JavaObject, rows: DataFrame) -> DataFrame:
    """A streaming query over `rows` instead of its one source.

    Args:
        session: the session in which the query was evaluated.
        plan: the query's analyzed plan, row by row over one source.
        rows: rows with the source's columns, by name.
    """

    def leaf(node: JavaObject) -> JavaObject:
        return renamed(session, node, analyzed_plan(rows)) if is_stream_leaf(node) else node

    return dataframe_of_plan(session, replace_leaves(session, plan, leaf))


def over_rows(frame: DataFrame, rows_of: Callable[[JavaObject], DataFrame | None]) -> DataFrame:
    """A query, also a stream, over rows that stand for its inputs, in subqueries too.

    Args:
        frame: the query.
        rows_of: gives the rows for a leaf of its analyzed plan, with the leaf's columns by name, and perhaps
            others; None leaves it as it is.

    Raises:
        KeyError: the rows lack a column of the leaf.
    """
    session = frame.sparkSession

    def leaf(node: JavaObject) -> JavaObject:
        rows = None if node.children().size() else rows_of(node)
        return node if rows is None else renamed(session, node, analyzed_plan(rows))

    start_callback_server(session)
    return dataframe_of_plan(session, transformed(analyzed_plan(frame).transformUpWithSubqueries, leaf))


def renamed(session: SparkSession, source: JavaObject, rows: JavaObject) -> JavaObject:
    """The rows with the attributes that the source has in the plan."""
    jvm: Any = cached_packages(session._jvm)  # noqa: SLF001
    catalyst = jvm.org.apache.spark.sql.catalyst
    if str(rows.nodeName()) == "LocalRelation":
        has_columns, local_columns = source.schema(), rows.schema()
        if has_columns.equals(has_columns.asNullable()) and has_columns.equals(local_columns.asNullable()):
            # The rows fit as they are, so nothing has to be evaluated.
            return Catalyst(session).local_relation(source.output(), rows.data())
    columns = {str(column.name()): column for column in items(rows.output())}
    no_names = scala_seq(session, [])
    renamed = [
        catalyst.expressions.Alias(
            _typed(session, columns[str(column.name())], column.dataType()),
            column.name(),
            column.exprId(),
            column.qualifier(),
            jvm.scala.Option.empty(),
            no_names,
        )
        for column in items(source.output())
    ]
    return catalyst.plans.logical.Project(scala_seq(session, renamed), rows)


def _typed(session: SparkSession, value: JavaObject, data_type: JavaObject) -> JavaObject:
    """The value with a type; the lake stores bytes and shorts as int."""
    if value.dataType().asNullable().equals(data_type.asNullable()):
        return value
    return Catalyst(session).cast(value, data_type)


_ROW_BY_ROW = frozenset(
    {"Project", "Filter", "Generate", "SubqueryAlias", "View", "EventTimeWatermark", *STREAM_LEAVES}
)


def flow_replay(session: SparkSession, frame: DataFrame) -> FlowReplay | Unsupported:
    """The replay of a streaming query's records, or the reason why they cannot be replayed.

    Args:
        session: the session in which the query was evaluated.
        frame: the streaming query.
    """
    plan = analyzed_plan(frame)
    if plan.subqueriesAll().size() > 0:
        return Unsupported("it has a subquery")
    for node in walk_with_subqueries(plan):
        if kind(node) not in _ROW_BY_ROW:
            return Unsupported(f"it is not row by row over one source: {kind(node)}")
    sources = sources_of(frame)
    if len(sources) != 1:
        return Unsupported("it does not read from one source")
    reader = sources[0].record_reader(session)
    if isinstance(reader, Unsupported):
        return reader
    deterministic, function = determinism(plan)
    if not deterministic:
        return Unsupported(f"{function} returns other values each time")
    return FlowReplay(session, plan, reader)


class FlowReplay:
    """The replay of one flow, returned by `flow_replay`.

    Args:
        session: the session in which the flow's query was evaluated.
        plan: the plan of the streaming query.
        reader: reads records of its source.
    """

    def __init__(self, session: SparkSession, plan: JavaObject, reader: RecordReader) -> None:
        self._session = session
        self._plan = plan
        self._reader = reader

    def records(self, starts: str, ends: str) -> DataFrame:
        """See `RecordReader.read`."""
        return self._reader.read(starts, ends)

    def query(self, records: DataFrame) -> DataFrame:
        """The flow's query over some or all of the records that `records` returned."""
        return stream_as_batch(self._session, self._plan, records)

"""A streaming flow's query over chosen records of its topics, as a batch.

Spark hands a batch of a stream over as a whole: when its query fails, nothing says on which record. Here
the same analysed plan is put over records that are read again by their offsets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, SparkSession

from tautochrone.spark.analysis.analyzed_plan import analyzed_plan, determinism, replace_leaves
from tautochrone.spark.analysis.session_context import dataframe_of_plan, scala_seq
from tautochrone.spark.jvm.cached_packages import cached_packages
from tautochrone.spark.jvm.catalyst import items, kind, walk_with_subqueries
from tautochrone.spark.sources.kafka import KafkaSource, kafka_sources

__all__ = ["EARLIEST", "KafkaReplay", "Offsets", "obstacle"]

Offsets = Mapping[str, Mapping[str, int]]
"""Topic → partition → offset, as Spark's Kafka source writes it into its logs."""

EARLIEST = -2
"""Spark's number for the first offset that a partition still has."""

_ROW_BY_ROW = frozenset(
    {"Project", "Filter", "Generate", "SubqueryAlias", "View", "EventTimeWatermark", "StreamingRelationV2"}
)
_NOT_OF_A_REPLAY = (
    "subscribe", "subscribepattern", "assign", "startingoffsets", "endingoffsets", "startingtimestamp",
    "endingtimestamp", "startingoffsetsbytimestamp", "endingoffsetsbytimestamp", "maxoffsetspertrigger",
    "minoffsetspertrigger", "maxtriggerdelay", "includeheaders",
)  # fmt: skip


def obstacle(frame: DataFrame) -> str:
    """Why a streaming query cannot be run record by record over one Kafka source; empty when it can."""
    plan = analyzed_plan(frame)
    if plan.subqueriesAll().size() > 0:
        return "it has a subquery"
    found = [kind(node) for node in walk_with_subqueries(plan)]
    for what in found:
        if what not in _ROW_BY_ROW:
            return f"it is not row by row over one Kafka source: {what}"
    if len(list(kafka_sources(frame))) != 1:
        return "it does not read from one Kafka source"
    certain, function = determinism(plan)
    return "" if certain else f"{function} would not give the same again"


class KafkaReplay:
    """The replay of one flow.

    Args:
        session: where the flow's query was evaluated.
        frame: the streaming query; `obstacle(frame)` is empty.
    """

    def __init__(self, session: SparkSession, frame: DataFrame) -> None:
        self._session = session
        self._plan = analyzed_plan(frame)
        (self._source,) = kafka_sources(frame)

    def records(self, starts: Offsets, ends: Offsets) -> DataFrame:
        """The records from `starts` up to and without `ends`, with their headers.

        A partition without a start is one that the stream met in this batch: it counts from its earliest.
        They are read once and kept by Spark as long as somebody holds the frame.
        """
        begin = {
            topic: {part: starts.get(topic, {}).get(part, EARLIEST) for part in parts}
            for topic, parts in ends.items()
        }
        wanted = {topic: sorted(int(part) for part in parts) for topic, parts in ends.items()}
        reader = self._session.read.format("kafka").options(**_kept(self._source))
        reader = reader.option("assign", json.dumps(wanted)).option("includeHeaders", "true")
        reader = reader.option("startingOffsets", json.dumps(begin))
        return reader.option("endingOffsets", json.dumps(ends)).load().localCheckpoint(eager=True)

    def query(self, records: DataFrame) -> DataFrame:
        """The flow's query over records that `records` gave, or some of them."""

        def leaf(node: JavaObject) -> JavaObject:
            return self._as(node, analyzed_plan(records)) if kind(node) == "StreamingRelationV2" else node

        return dataframe_of_plan(self._session, replace_leaves(self._session, self._plan, leaf))

    def _as(self, source: JavaObject, records: JavaObject) -> JavaObject:
        """The records under the attributes by which the plan knows its source."""
        jvm: Any = cached_packages(self._session._jvm)  # noqa: SLF001
        catalyst = jvm.org.apache.spark.sql.catalyst
        given = {str(column.name()): column for column in items(records.output())}
        nothing = scala_seq(self._session, [])
        renamed = [
            catalyst.expressions.Alias(
                given[str(column.name())],
                column.name(),
                column.exprId(),
                column.qualifier(),
                jvm.scala.Option.empty(),
                nothing,
            )
            for column in items(source.output())
        ]
        return catalyst.plans.logical.Project(scala_seq(self._session, renamed), records)


def _kept(source: KafkaSource) -> dict[str, str]:
    return {key: value for key, value in source.options.items() if key.lower() not in _NOT_OF_A_REPLAY}

"""Kafka as a streaming source, read by Spark's connector."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, SparkSession

from tautochrone.model.source import RateLimitOptions, Unsupported
from tautochrone.spark.jvm.catalyst import kind
from tautochrone.spark.sources.kafka import KafkaOptions, TopicIds
from tautochrone.spark.sources.spark_source import RecordReader, SparkSource, TopicIdReader

__all__ = ["EARLIEST", "KafkaRecords", "KafkaSource"]

EARLIEST = -2
"""Spark's number for the first offset that a partition still has."""

_OPTIONS_OF_STREAM_ONLY = (
    "subscribe", "subscribepattern", "assign", "startingoffsets", "endingoffsets", "startingtimestamp",
    "endingtimestamp", "startingoffsetsbytimestamp", "endingoffsetsbytimestamp", "maxoffsetspertrigger",
    "minoffsetspertrigger", "maxtriggerdelay", "includeheaders",
)  # fmt: skip


class KafkaSource(SparkSource):
    """Topics of one cluster, read as a stream. (Spark does not expose the options of batch reads.)"""

    label = "Kafka topics"
    limits = RateLimitOptions(("maxOffsetsPerTrigger",))

    @classmethod
    def reads(cls, leaf: JavaObject) -> bool:
        return kind(leaf) == "StreamingRelationV2" and str(leaf.sourceName()).lower() == "kafka"

    @property
    def read(self) -> KafkaOptions:
        """The options of the read."""
        return KafkaOptions(self.options())

    def input_ids(self) -> frozenset[str]:
        read = self.read
        brokers = ",".join(sorted(part.strip() for part in read.brokers.split(",")))
        topics = read.topics or {f"pattern {read.values.get('subscribePattern', '')}"}
        return frozenset(f"topic {topic} of {brokers}" for topic in topics)

    def record_reader(self, session: SparkSession) -> RecordReader | Unsupported:
        return KafkaRecords(session, self.read)

    def topic_ids(self, session: SparkSession) -> TopicIdReader | Unsupported:
        return TopicIds(session, self.read)

    def leaving_out(self, session: SparkSession) -> Mapping[str, str]:
        del session
        return {"failOnDataLoss": "false"} if self.may_lose_records() else {}

    def may_lose_records(self) -> bool:
        options = {name.lower(): value for name, value in self.options().items()}
        return options.get("failondataloss", "true").strip().lower() == "false"

    def topics(self) -> frozenset[str]:
        return self.read.topics


class KafkaRecords:
    """Reads records of a topic again.

    Args:
        session: the session in which the flow's query was evaluated.
        read: the options of the stream.
    """

    def __init__(self, session: SparkSession, read: KafkaOptions) -> None:
        self._session = session
        self._read = read

    def read(self, starts: str, ends: str) -> DataFrame:
        """See `RecordReader`. A partition without a start was first seen in this batch, so it is read from
        its earliest offset."""
        first: dict[str, dict[str, int]] = json.loads(starts)
        last: dict[str, dict[str, int]] = json.loads(ends)
        begin = {
            topic: {part: first.get(topic, {}).get(part, EARLIEST) for part in parts}
            for topic, parts in last.items()
        }
        partitions = {topic: sorted(int(part) for part in parts) for topic, parts in last.items()}
        options: dict[str, Any] = {
            key: value
            for key, value in self._read.values.items()
            if key.lower() not in _OPTIONS_OF_STREAM_ONLY
        }
        reader = self._session.read.format("kafka").options(**options)
        reader = reader.option("assign", json.dumps(partitions)).option("includeHeaders", "true")
        reader = reader.option("startingOffsets", json.dumps(begin))
        return reader.option("endingOffsets", json.dumps(last)).load().localCheckpoint(eager=True)

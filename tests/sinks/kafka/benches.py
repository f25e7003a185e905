"""A real broker as a bench of the suite of all sinks, and readers of committed records."""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from tests.sinks.benches import LosesAnswers, SparkBench

from tautochrone.model.names import TableName
from tautochrone.model.sink import Sink
from tautochrone.sinks.kafka.client import new_producer
from tautochrone.sinks.kafka.options import KafkaOptions, kafka_options
from tautochrone.sinks.kafka.sink import KafkaSink


class LossyProducer:
    """Passes everything on, except a record that the bench wants lost."""

    def __init__(self, producer: Any, bench: KafkaBench) -> None:
        self._producer = producer
        self._bench = bench

    def produce(self, *arguments: Any, **named: Any) -> None:
        if self._bench.loses_row:
            self._bench.loses_row = False
            return
        self._producer.produce(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)


class FaultySink(LosesAnswers, KafkaSink):
    """Loses an answer when its bench says so."""


def committed_messages(bootstrap: str, topic: str) -> list[Any]:
    """What a reader of committed records sees of a topic now."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        messages, open_partitions = [], set(partitions)
        deadline = time.monotonic() + 30
        while open_partitions and time.monotonic() < deadline:
            message = consumer.poll(0.2)
            if message is not None and message.error() is not None:
                open_partitions.discard(message.partition())
            elif message is not None:
                messages.append(message)
        return messages
    finally:
        consumer.close()


def net_rows(messages: Sequence[Any]) -> Counter[str]:
    """The rows that a change log leaves, as JSON, with their copies."""
    rows: Counter[str] = Counter()
    for message in messages:
        envelope = json.loads(message.value())
        for row, sign in ((envelope["before"], -1), (envelope["after"], 1)):
            if row is not None:
                rows[json.dumps(row)] += sign
    return rows


def newest_values(messages: Sequence[Any]) -> dict[str, Mapping[str, Any]]:
    """By key the newest row of a topic that has one partition."""
    rows: dict[str, Mapping[str, Any]] = {}
    for message in messages:
        if message.value() is None:
            rows.pop(message.key().decode(), None)
        else:
            rows[message.key().decode()] = json.loads(message.value())
    return rows


class KafkaBench(SparkBench):
    """Topics of its own on one broker, opened by several sinks as by several processes."""

    takes_any_columns = True

    def __init__(self, bootstrap: str, mode: str = "changelog", **options: str) -> None:
        super().__init__()
        self.prefix = uuid.uuid4().hex[:8]
        self.bootstrap = bootstrap
        given = {
            "kafka.bootstrap.servers": bootstrap,
            "topic": f"{self.prefix}.{{table}}",
            "control_topic": f"{self.prefix}.control",
            "mode": mode,
            "chunk_rows": "1",
            **options,
        }
        self.options: KafkaOptions = kafka_options("mirror", given)

    def open(self) -> Sink:
        sink: Sink = self.opened(
            FaultySink(
                "mirror",
                self.options,
                lambda options, refusals: LossyProducer(new_producer(options, refusals), self),
            )
        )
        return sink

    def messages(self, table: TableName) -> list[Any]:
        return committed_messages(self.bootstrap, self.options.topic_of(table))

    def read(self, table: TableName) -> Sequence[tuple[Any, ...]]:
        return [
            tuple(json.loads(text).get(column) for column in self.columns)
            for text in net_rows(self.messages(table)).elements()
        ]

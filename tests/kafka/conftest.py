"""A broker, and a pipeline that reads a topic of its own."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from pyspark.sql import SparkSession
from tests.support.harness import Pipeline
from tests.support.kafka import KafkaBroker, KafkaTopics

EVENTS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession, functions as sf
from pyspark.sql.avro.functions import from_avro

spark = SparkSession.active()

@dp.table
def events():
    source = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", "{bootstrap}")
        .option("startingOffsets", "earliest")
        # New partitions are noticed by the consumer's own metadata, whose default age is 5 minutes.
        .option("kafka.metadata.max.age.ms", "1000")
        {options}
        .load()
    )
    return source{query}
"""
ROWS = (
    '.select("partition", "offset", sf.from_json(sf.col("value").cast("string"), '
    '"id BIGINT, kind STRING, amount BIGINT").alias("row")).select("partition", "offset", "row.*")'
)
TOTALS = """
@dp.materialized_view
def totals():
    return spark.table("events").groupBy("kind").agg(
        sf.count("*").alias("n"), sf.sum("amount").alias("amount")
    )
"""


def events(broker: KafkaBroker, options: str, query: str) -> str:
    """Definitions of the table `events`; `options` and `query` are Python text that follows the source."""
    return EVENTS.format(bootstrap=broker.bootstrap, options=options, query=query)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with KafkaBroker(tmp_path_factory.mktemp("kafka")) as started:
        yield started


@pytest.fixture(scope="session")
def topics(broker: KafkaBroker, spark: SparkSession) -> Iterator[KafkaTopics]:
    client = KafkaTopics(spark.sparkContext._gateway, broker.bootstrap)
    yield client
    client.close()


@dataclass
class Topic:
    """A topic of three partitions that remembers what was written to it."""

    topics: KafkaTopics
    name: str
    partitions: int = 3
    written: dict[int, tuple[str, int]] = field(default_factory=dict)

    def produce(self, count: int) -> None:
        """`count` rows with new ids, dealt out to the partitions."""
        records = []
        for _ in range(count):
            number = len(self.written)
            row = {"id": number, "kind": f"k{number % 5}", "amount": number * 7 % 100}
            records.append((number % self.partitions, json.dumps(row)))
            self.written[number] = (row["kind"], row["amount"])  # type: ignore[assignment]
        self.topics.produce(self.name, records)

    def check(self, pipeline: Pipeline) -> None:
        """The tables hold exactly what was written, each row once."""
        rows = pipeline.query("SELECT id, kind, amount FROM events")
        expected = sorted((number, *row) for number, row in self.written.items())
        lost, unexpected = sorted(set(expected) - set(rows)), sorted(set(rows) - set(expected))
        assert (lost, unexpected) == ([], []), pipeline.query(
            "SELECT partition, min(offset), max(offset), count(*) FROM events GROUP BY partition"
        )
        assert rows == expected
        offsets = pipeline.query("SELECT partition, offset FROM events")
        assert len(set(offsets)) == len(offsets)
        totals: dict[str, list[int]] = {}
        for kind, amount in self.written.values():
            totals.setdefault(kind, []).append(amount)
        actual_totals = pipeline.query("SELECT kind, n, amount FROM totals")
        assert actual_totals == sorted((kind, len(each), sum(each)) for kind, each in totals.items())


@pytest.fixture
def topic(topics: KafkaTopics) -> Topic:
    new_topic = Topic(topics, f"t-{uuid.uuid4().hex[:8]}")
    topics.create(new_topic.name, new_topic.partitions)
    return new_topic


@pytest.fixture
def pipeline(pipeline: Pipeline, broker: KafkaBroker, topic: Topic) -> Pipeline:
    pipeline.write(
        "definitions/events.py", events(broker, f'.option("subscribe", "{topic.name}")', ROWS) + TOTALS
    )
    return pipeline

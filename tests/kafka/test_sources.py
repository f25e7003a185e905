"""Ways to read Kafka: several topics, patterns, chosen partitions, headers and times, JSON and Avro.

Every way to choose records is run in parts with the checkpoint folder lost in between: each record is there
once.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.avro.functions import to_avro
from tests.support.harness import Happened, Pipeline
from tests.support.kafka import KafkaBroker, KafkaTopics, Record

from .conftest import events

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

WITH_OFFSETS = '.select("topic", "partition", "offset", sf.col("value").cast("string").alias("v"))'
AVRO = json.dumps(
    {
        "type": "record",
        "name": "Reading",
        "fields": [
            {"name": "sensor", "type": "string"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "celsius", "type": ["null", "double"], "default": None},
        ],
    }
)

Reading = Callable[..., Pipeline]


@pytest.fixture
def prefix() -> str:
    return f"s{uuid.uuid4().hex[:8]}"


@pytest.fixture
def reading(tmp_path: Path, spark: SparkSession, broker: KafkaBroker) -> Iterator[Reading]:
    """Makes a pipeline that reads by the given options (Python text) and query."""
    pipeline = Pipeline(tmp_path, spark)

    def define(options: str, query: str = WITH_OFFSETS) -> Pipeline:
        pipeline.write("definitions/events.py", events(broker, options, query))
        return pipeline

    yield define
    pipeline.close()


def texts(name: str, numbers: range, partitions: int = 2) -> list[Record]:
    return [Record(f"{name}-{number}".encode(), partition=number % partitions) for number in numbers]


def good(happened: Happened) -> None:
    assert happened.state == "COMPLETED", [event.get("error") for event in happened]


def forget(pipeline: Pipeline) -> None:
    """Lose the folder in which Spark remembers where it is."""
    shutil.rmtree(Path(pipeline.settings.storage) / "_checkpoints")


def values(pipeline: Pipeline) -> list[str]:
    offsets = pipeline.query("SELECT topic, partition, offset FROM events")
    assert len(set(offsets)) == len(offsets)
    return [str(row[0]) for row in pipeline.query("SELECT v FROM events")]


@pytest.mark.quick
def test_several_topics(reading: Reading, topics: KafkaTopics, prefix: str) -> None:
    first, second = f"{prefix}-one", f"{prefix}-two"
    for topic in (first, second):
        topics.create(topic, 2)
    pipeline = reading(f'.option("subscribe", "{first},{second}")')
    topics.send(first, texts("one", range(10)))
    topics.send(second, texts("two", range(7)))
    good(pipeline.run())
    topics.send(second, texts("two", range(7, 20)))
    forget(pipeline)
    good(pipeline.run())
    expected = [f"one-{n}" for n in range(10)] + [f"two-{n}" for n in range(20)]
    assert values(pipeline) == sorted(expected)


@pytest.mark.slow
def test_a_topic_that_comes_later_under_a_pattern(reading: Reading, topics: KafkaTopics, prefix: str) -> None:
    topics.create(f"{prefix}-a", 2)
    topics.create(f"other-{prefix}")
    pipeline = reading(f'.option("subscribePattern", "{prefix}-.*")')
    topics.send(f"{prefix}-a", texts("a", range(10)))
    topics.send(f"other-{prefix}", texts("other", range(3), 1))
    good(pipeline.run())
    # What was written before the flow ever saw the topic counts too.
    topics.create(f"{prefix}-b", 2)
    topics.send(f"{prefix}-b", texts("b", range(12)))
    forget(pipeline)
    good(pipeline.run())
    expected = [f"a-{n}" for n in range(10)] + [f"b-{n}" for n in range(12)]
    assert values(pipeline) == sorted(expected)


def test_chosen_partitions(reading: Reading, topics: KafkaTopics, prefix: str) -> None:
    topics.create(prefix, 3)
    pipeline = reading(f".option('assign', '{json.dumps({prefix: [0, 2]})}')")
    topics.send(prefix, texts("v", range(9), 3))
    good(pipeline.run())
    topics.send(prefix, texts("v", range(9, 30), 3))
    forget(pipeline)
    good(pipeline.run())
    assert values(pipeline) == sorted(f"v-{n}" for n in range(30) if n % 3 != 1)


def test_keys_headers_and_times(reading: Reading, topics: KafkaTopics, prefix: str) -> None:
    topics.create(prefix)
    query = (
        '.select(sf.col("key").cast("string").alias("k"), "timestamp", "timestampType", "headers", "value")'
    )
    pipeline = reading(f'.option("subscribe", "{prefix}").option("includeHeaders", "true")', query)
    first = 1_357_000_000_123
    topics.send(
        prefix,
        [
            Record(
                None if n == 4 else b"v",
                key=f"k{n}".encode(),
                timestamp_ms=first + n,
                headers=(("trace", bytes([n, 255])), ("trace", b"again")) if n else (),
            )
            for n in range(5)
        ],
    )
    good(pipeline.run())
    rows_read = pipeline.query("SELECT k, unix_millis(timestamp), timestampType, headers, value FROM events")
    assert [(k, timestamp - first, kind) for k, timestamp, kind, *_ in rows_read] == [
        (f"k{n}", n, 0) for n in range(5)
    ]
    assert rows_read[0][3] is None
    for n in range(1, 5):
        assert [(h.key, bytes(h.value)) for h in rows_read[n][3]] == [
            ("trace", bytes([n, 255])),
            ("trace", b"again"),
        ]
    assert [row[4] for row in rows_read] == [b"v"] * 4 + [None]


def test_avro(reading: Reading, topics: KafkaTopics, prefix: str, spark: SparkSession) -> None:
    topics.create(prefix, 2)
    parsed = f".select(from_avro('value', '''{AVRO}''').alias('row')).select('row.*')"
    pipeline = reading(f'.option("subscribe", "{prefix}")', parsed)
    rows = spark.range(20).select(
        sf.concat(sf.lit("s"), "id").alias("sensor"),
        sf.timestamp_millis(sf.col("id") + 1_357_000_000_000).alias("at"),
        sf.when(sf.col("id") % 3 != 0, sf.col("id") / 4).alias("celsius"),
    )
    encoded = [
        bytes(row[0]) for row in rows.select(to_avro(sf.struct("sensor", "at", "celsius"), AVRO)).collect()
    ]
    topics.send(prefix, [Record(value) for value in encoded])
    good(pipeline.run())
    rows_read = pipeline.query("SELECT sensor, unix_millis(at), celsius FROM events")
    assert rows_read == sorted(
        (f"s{n}", 1_357_000_000_000 + n, None if n % 3 == 0 else n / 4) for n in range(20)
    )


@pytest.mark.slow
def test_json_of_several_shapes(reading: Reading, topics: KafkaTopics, prefix: str) -> None:
    """Nested fields, arrays, missing and additional ones; a broken record is NULL unless FAILFAST is said."""
    topics.create(prefix)
    schema = "id INT, at TIMESTAMP, tags ARRAY<STRING>, inner STRUCT<x: DOUBLE>"
    query = (
        f'.select(sf.from_json(sf.col("value").cast("string"), "{schema}").alias("j"))'
        '.select("j.id", "j.at", "j.tags", "j.inner.x")'
    )
    pipeline = reading(f'.option("subscribe", "{prefix}")', query)
    lines = [
        '{"id": 1, "at": "2013-01-01T05:00:00Z", "tags": ["a", "b"], "inner": {"x": 0.5}, "more": 1}',
        '{"id": 2, "tags": [], "inner": null}',
        "{broken",
    ]
    topics.send(prefix, [Record(line.encode()) for line in lines])
    good(pipeline.run())
    rows_read = pipeline.query("SELECT id, unix_seconds(at), tags, x FROM events WHERE id IS NOT NULL")
    assert rows_read == [(1, 1_357_016_400, ["a", "b"], 0.5), (2, None, [], None)]
    assert pipeline.query("SELECT count(*) FROM events") == [(3,)]


def test_one_topic_into_two_tables_is_reported(reading: Reading, prefix: str) -> None:
    # Analysed only: nobody asks the broker.
    pipeline = reading(f'.option("subscribe", "{prefix}-a")')
    first = (pipeline.folder / "definitions/events.py").read_text()
    pipeline.write("definitions/again.py", first.replace("def events", "def again"))
    with pipeline.opened() as (_, happened):
        (event,) = happened.of("source_read_twice")
    assert f"topic {prefix}-a of " in event["source"]
    assert event["datasets"] == ["lake.default.again", "lake.default.events"]
    files = [location.split(":")[0] for location in event["locations"]]
    assert files == ["definitions/again.py", "definitions/events.py"]

"""A Kafka sink that Spark's own pipelines fill, and the same one that `taut` fills."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.compatibility import taut
from tests.compatibility.construct import Construct
from tests.compatibility.suite.common import HEAD, READ_SALES, SALES
from tests.compatibility.vanilla import vanilla
from tests.support.kafka import KafkaBroker, KafkaTopics

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

SINK = """
dp.create_sink("out", "kafka", {"kafka.bootstrap.servers": "@KAFKA@", "topic": "@TOPIC@"})

@dp.append_flow(target="out")
def write():
    return read_sales().selectExpr("CAST(id AS STRING) AS key", "to_json(struct(*)) AS value")
"""


def test_a_kafka_sink_gets_the_same_records(
    broker: KafkaBroker, topics: KafkaTopics, spark: SparkSession, tmp_path: Path
) -> None:
    records = []
    with vanilla(tmp_path / "server") as server:
        for engine in ("vanilla", "taut"):
            topic = f"{engine}-{uuid.uuid4().hex[:8]}"
            topics.create(topic)
            text = SINK.replace("@KAFKA@", broker.bootstrap).replace("@TOPIC@", topic)
            files = {"definitions/a.py": HEAD + READ_SALES + text}
            construct = Construct("sink_kafka", "a Kafka sink", files, inputs=SALES)
            folder = tmp_path / engine
            by_vanilla = engine == "vanilla"
            outcome = server.run(construct, folder) if by_vanilla else taut.run(construct, folder, spark)
            assert not outcome.error
            reader = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap)
            rows = (
                reader.option("subscribe", topic).load().selectExpr("STRING(key)", "STRING(value)").collect()
            )
            records.append(sorted(map(tuple, rows)))
    assert records[0] == records[1]
    assert [key for key, _ in records[0]] == ["1", "2", "3", "4"]

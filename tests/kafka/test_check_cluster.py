"""The checks of `taut doctor` for Kafka: the cluster answers, and the topics of the flows exist."""

from __future__ import annotations

import socket

import pytest
from pyspark.sql import SparkSession
from tests.support.kafka import KafkaBroker

from tautochrone.errors import IngestError
from tautochrone.spark.sources import kafka
from tautochrone.spark.sources.kafka import KafkaOptions, KafkaSource, check_cluster
from tautochrone.spark.sources.registry import sources_of

from .conftest import Topic

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


def read_of(spark: SparkSession, brokers: str, topic: str) -> KafkaOptions:
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", brokers)
    rows = reader.option("subscribe", topic).load()
    (source,) = sources_of(rows.selectExpr("CAST(value AS STRING) AS v").where("v IS NOT NULL"))
    assert isinstance(source, KafkaSource)
    return source.read


def test_reachable_cluster(spark: SparkSession, broker: KafkaBroker, topic: Topic) -> None:
    source = read_of(spark, broker.bootstrap, topic.name)
    assert source.brokers == broker.bootstrap
    assert source.topics == {topic.name}
    assert check_cluster(spark, source) == 1


def test_missing_topic(spark: SparkSession, broker: KafkaBroker, topic: Topic) -> None:
    with pytest.raises(IngestError, match="has no topic nowhere") as caught:
        check_cluster(spark, read_of(spark, broker.bootstrap, f"{topic.name}, nowhere"))
    assert caught.value.error_class == "KAFKA_TOPIC_MISSING"


def test_unreachable_cluster(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "_TIMEOUT_MS", 500)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(IngestError, match=address) as caught:
        check_cluster(spark, read_of(spark, address, "flights"))
    assert caught.value.error_class == "KAFKA_NOT_REACHABLE"
    assert caught.value.hint


def test_other_sources_are_not_kafka(spark: SparkSession) -> None:
    (rate,) = sources_of(spark.readStream.format("rate").load())
    assert not isinstance(rate, KafkaSource)
    assert sources_of(spark.range(3)) == []

"""Which source a stream reads, and what it answers for itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tautochrone.model.source import RateLimitOptions, Unsupported
from tautochrone.spark.sources.files import FileSource
from tautochrone.spark.sources.kafka import KafkaSource
from tautochrone.spark.sources.registry import OtherSource, PythonSource, prepared_stream, sources_of
from tautochrone.spark.sources.stream_as_batch import flow_replay
from tautochrone.testing.toy_database import FORMAT, ToyStream

pytestmark = pytest.mark.spark


def test_sources_answer_for_themselves(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(ToyStream)
    options = {"kafka.bootstrap.servers": "b:1, a:1", "subscribe": "t"}
    kafka = spark.readStream.format("kafka").options(**options).load().selectExpr("CAST(value AS STRING) v")
    files = spark.readStream.schema("v STRING").option("maxFilesPerTrigger", 3).json(str(tmp_path))
    python = spark.readStream.format(FORMAT).load().selectExpr("relation AS v")
    rate = spark.readStream.format("rate").load().selectExpr("CAST(value AS STRING) v")
    sources = sources_of(kafka.union(files).union(python).union(rate))
    assert [type(source) for source in sources] == [KafkaSource, FileSource, PythonSource, OtherSource]
    assert [source.number for source in sources] == [0, 1, 2, 3]
    assert sources[0].input_ids() == {"topic t of a:1,b:1"}
    options = {"kafka.bootstrap.servers": "a:1", "assign": '{"t": [0, 2]}'}
    (partitions,) = sources_of(spark.readStream.format("kafka").options(**options).load())
    assert partitions.input_ids() == {"topic partitions of t of a:1"}
    assert sources[1].input_ids() == {f"files in {tmp_path}"}
    assert sources[2].input_ids() == sources[3].input_ids() == frozenset()
    assert [isinstance(source.supported_limits(), RateLimitOptions) for source in sources] == [
        True,
        True,
        False,
        False,
    ]
    assert [isinstance(source.topic_ids(spark), Unsupported) for source in sources] == [
        False,
        True,
        True,
        True,
    ]
    assert sources[1].takes_all_listed(f"FileStreamSource[file:{tmp_path}]") is False
    assert sources[0].takes_all_listed("KafkaV2[Subscribe[t]]") is None


def test_files_are_read_at_any_age_unless_the_reader_says_otherwise(
    spark: SparkSession, tmp_path: Path
) -> None:
    reader = spark.readStream.schema("v STRING")
    (source,) = sources_of(prepared_stream(spark, reader.json(str(tmp_path))))
    assert "maxfileage" in {option.lower() for option in source.options()}
    own = reader.option("maxFileAge", "1 day").json(str(tmp_path))
    assert prepared_stream(spark, own) is own


def test_kafka_polls_as_the_reader_says(spark: SparkSession) -> None:
    reader = (
        spark.readStream.format("kafka").option("kafka.bootstrap.servers", "a:1").option("subscribe", "t")
    )
    set_here = {"kafka.fetch.max.wait.ms": "10", "kafka.max.poll.records": "10000"}
    (source,) = sources_of(prepared_stream(spark, reader.load()))
    assert set_here.items() <= source.options().items()
    own = reader.option("kafka.Max.Poll.Records", "7").option("kafka.fetch.min.bytes", "9").load()
    (source,) = sources_of(prepared_stream(spark, own))
    assert not set_here.keys() & source.options().keys()
    assert source.options()["kafka.Max.Poll.Records"] == "7"


def test_records_of_files_cannot_be_read_again(spark: SparkSession, tmp_path: Path) -> None:
    replay = flow_replay(spark, spark.readStream.schema("v STRING").json(str(tmp_path)))
    assert isinstance(replay, Unsupported)
    assert "cannot be read again" in replay.reason

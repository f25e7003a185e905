"""A topic that is deleted and created again under its name: its first records are never skipped silently."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from tests.support.harness import Happened, Pipeline
from tests.support.kafka import KafkaBroker

from tautochrone.errors import IngestError, SettingsError
from tautochrone.iceberg.commits.metadata import decode, encode
from tautochrone.ingest.checkpoint_folder import CheckpointFolder
from tautochrone.model.names import TableName
from tautochrone.model.source_position import SparkPosition

from .conftest import ROWS, Topic, events

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

EARLIEST = '[flows.events]\non_recreated_topic = "earliest"\n'


@pytest.fixture
def pipeline(pipeline: Pipeline, broker: KafkaBroker, topic: Topic) -> Pipeline:
    """Without a table that reads `events`."""
    pipeline.write("definitions/events.py", events(broker, f'.option("subscribe", "{topic.name}")', ROWS))
    return pipeline


def recreate(topic: Topic, partitions: int = 3) -> None:
    topic.topics.delete(topic.name)
    topic.topics.create(topic.name, partitions)
    topic.partitions = partitions


def completed(pipeline: Pipeline) -> Happened:
    happened = pipeline.run()
    assert happened.state == "COMPLETED", [event.get("error") for event in happened]
    return happened


def rows(pipeline: Pipeline) -> list[int]:
    return [row[0] for row in pipeline.query("SELECT id FROM events")]


def wait_for(condition: Callable[[], object], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.05)


def test_a_recreated_topic_ends_the_flow_until_the_setting_says_earliest(
    pipeline: Pipeline, topic: Topic
) -> None:
    topic.produce(30)
    completed(pipeline)
    recreate(topic)
    # More records than the old topic had: the offsets are valid, but the first records would be skipped.
    topic.produce(40)
    happened = pipeline.run()
    assert happened.state == "FAILED"
    error = happened.failure("events")
    assert error.startswith("[KAFKA_TOPIC_RECREATED]"), error
    assert topic.name in error
    assert rows(pipeline) == list(range(30))

    pipeline.write("tautochrone.toml", EARLIEST)
    happened = completed(pipeline)
    (event,) = happened.of("kafka_topic_recreated")
    assert (event["flow"], event["topics"]) == ("events", [topic.name])
    assert rows(pipeline) == list(range(70))


@pytest.mark.slow
def test_recreated_topic_with_as_many_records_and_fewer_partitions(pipeline: Pipeline, topic: Topic) -> None:
    topic.produce(30)
    completed(pipeline)
    recreate(topic, partitions=2)
    pipeline.write("tautochrone.toml", EARLIEST)
    # Without a record, too.
    completed(pipeline)
    topic.produce(20)
    completed(pipeline)
    assert rows(pipeline) == list(range(50))


@pytest.mark.slow
def test_full_refresh_accepts_the_new_topic(pipeline: Pipeline, topic: Topic) -> None:
    topic.produce(6)
    completed(pipeline)
    recreate(topic)
    topic.produce(6)
    assert pipeline.run().state == "FAILED"
    assert pipeline.run(full=["events"]).state == "COMPLETED"
    assert rows(pipeline) == list(range(6, 12))


@pytest.mark.slow
def test_one_of_several_topics_by_pattern(pipeline: Pipeline, topic: Topic, broker: KafkaBroker) -> None:
    other_topic = Topic(topic.topics, f"{topic.name}-b", 2)
    topic.topics.create(other_topic.name, 2)
    pipeline.write(
        "definitions/events.py", events(broker, f'.option("subscribePattern", "{topic.name}.*")', ROWS)
    )
    pipeline.write("tautochrone.toml", EARLIEST)
    topic.produce(9)
    other_topic.produce(4)
    completed(pipeline)
    recreate(other_topic, 3)
    other_topic.produce(6)
    topic.topics.add_partitions(topic.name, 5)
    topic.produce(3)
    happened = completed(pipeline)
    assert [event["topics"] for event in happened.of("kafka_topic_recreated")] == [[other_topic.name]]
    assert rows(pipeline) == sorted([*range(12), *range(10)])


def test_recreated_between_two_batches_of_a_continuous_run(pipeline: Pipeline, topic: Topic) -> None:
    pipeline.write("tautochrone.toml", EARLIEST)
    topic.produce(30)
    with pipeline.running() as happened:
        wait_for(lambda: sum(event["rows"] for event in happened.of("batch")) == 30)
        recreate(topic)
        # As many as before: no batch of Spark's would come.
        topic.produce(30)
        wait_for(lambda: sum(event["rows"] for event in happened.of("batch")) == 60)
        wait_for(lambda: happened.of("flow_recovered"))
    assert rows(pipeline) == list(range(60))
    assert len(happened.of("kafka_topic_recreated")) == 1


@pytest.mark.slow
def test_a_batch_that_read_the_new_topic_is_not_committed(
    pipeline: Pipeline, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic goes between the look at its end and the commit of the batch."""
    from tautochrone.ingest.flow import FlowQuery

    topic.produce(30)
    completed(pipeline)
    topic.produce(3)
    stage = FlowQuery._stage

    def staged(self: FlowQuery, *batch: object) -> object:
        taken = stage(self, *batch)  # type: ignore[arg-type]
        recreate(topic)
        return taken

    with monkeypatch.context() as patched:
        patched.setattr(FlowQuery, "_stage", staged)
        happened = pipeline.run()
    assert happened.state == "FAILED"
    assert happened.failure("events").startswith("[KAFKA_TOPIC_RECREATED]")
    assert rows(pipeline) == list(range(30))


@pytest.mark.slow
def test_crash_between_the_new_position_and_the_folder(
    pipeline: Pipeline, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table says where the new topic begins, the folder still stands in the old one."""
    topic.produce(30)
    completed(pipeline)
    recreate(topic)
    topic.produce(40)
    pipeline.write("tautochrone.toml", EARLIEST)

    rewrite, calls = CheckpointFolder.rewrite, count()

    def dies(self: CheckpointFolder, position: SparkPosition) -> None:
        # The first time a new owner's folder is made.
        if next(calls):
            raise IngestError("FLOW_FAILED", "died")
        rewrite(self, position)

    with monkeypatch.context() as patched:
        patched.setattr(CheckpointFolder, "rewrite", dies)
        happened = pipeline.run()
    assert happened.state == "FAILED"
    assert len(happened.of("kafka_topic_recreated")) == 1
    happened = completed(pipeline)
    assert happened.of("kafka_topic_recreated") == []
    assert [event["action"] for event in happened.of("flow_folder")] == ["rewrite"]
    assert rows(pipeline) == list(range(70))


@pytest.mark.slow
def test_positions_without_ids_take_them_in(pipeline: Pipeline, topic: Topic) -> None:
    """As a release wrote them that knew no ids."""
    topic.produce(6)
    completed(pipeline)
    with pipeline.opened() as (job, _):
        table = job.lake.load(TableName("lake", ("default",), "events"))
        commit_metadata = table.fork().commit_metadata
        assert commit_metadata is not None
        assert [*commit_metadata.positions["events"].topics["0"]] == [topic.name]
        old = json.loads(encode(commit_metadata))
        del old["positions"]["events"]["topics"]
        known = decode(json.dumps(old))
        assert known is not None
        table.commit_metadata_only(table.fork(), known)
    topic.produce(3)
    completed(pipeline)
    assert rows(pipeline) == list(range(9))
    recreate(topic)
    topic.produce(30)
    assert pipeline.run().state == "FAILED"


@pytest.mark.slow
def test_refused_ids_are_reported_once(
    pipeline: Pipeline, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tautochrone.spark.sources.kafka import TopicIds, TopicIdsRefusedError

    def refused(self: TopicIds, topics: object) -> object:
        raise TopicIdsRefusedError("KAFKA_TOPIC_IDS_REFUSED", "not authorized")

    monkeypatch.setattr(TopicIds, "of", refused)
    topic.produce(30)
    pipeline.write("tautochrone.toml", "[flows.events]\nmax_offsets_per_trigger = 10\n")
    happened = completed(pipeline)
    assert len(happened.of("batch")) > 1
    (event,) = happened.of("kafka_topic_ids_unknown")
    assert "not authorized" in event["reason"]
    assert rows(pipeline) == list(range(30))


def test_the_setting_needs_a_topic(pipeline: Pipeline, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pipeline.write(
        "definitions/events.py",
        f"""
        from pyspark import pipelines as dp

        @dp.table
        def events():
            return spark.readStream.text({str(tmp_path / "in")!r})
        """,
    )
    pipeline.write("tautochrone.toml", EARLIEST)
    with pytest.raises(SettingsError) as caught:
        pipeline.run()
    assert caught.value.error_class == "RECREATED_TOPIC_WITHOUT_KAFKA"

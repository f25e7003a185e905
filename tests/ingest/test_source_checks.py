"""The pure parts of the checks of sources: which files are skipped, and where a recreated topic begins."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace

import pytest

from tautochrone.errors import IngestError
from tautochrone.ingest.source_checks import KafkaTopics, RowsLeftOut, restart_topics
from tautochrone.ingest.source_files import skipped_files
from tautochrone.model.source import RecreatedTopic, SkipReason
from tautochrone.model.source_position import SparkPosition
from tautochrone.spark.sources.kafka import TopicIdsRefusedError

OFFSETS = 'v1\n{"batchWatermarkMs":0}\n{"a":{"0":7,"1":5},"b":{"0":3}}\n-\n{"logOffset":4}'


@pytest.mark.parametrize(
    ("listed", "seen", "oldest_ms", "by_name", "expected"),
    [
        ({"f/a": 9}, {}, -1, False, {}),
        ({"f/a": 9}, {"f/a": 9}, 50, False, {}),
        ({"f/a": 9}, {"f/a": 8, "f/gone": 1}, 0, False, {SkipReason.REPLACED: ["f/a"]}),
        ({"f/a": 9, "f/b": 10}, {}, 10, False, {SkipReason.TOO_OLD: ["f/a"]}),
        ({"g/a": 9}, {"f/a": 8}, 0, False, {}),
        ({"g/a": 9}, {"f/a": 8}, 0, True, {SkipReason.SAME_NAME: ["g/a"]}),
    ],
)
def test_skipped_files(
    listed: dict[str, int], seen: dict[str, int], oldest_ms: int, by_name: bool, expected: object
) -> None:
    assert skipped_files(listed, seen, oldest_ms, by_name=by_name) == expected


def test_recreated_topic_restarts_at_its_earliest_offset() -> None:
    position = SparkPosition(query_id="q", batch_id=3, offsets=OFFSETS, commit="v1\n{}")
    moved = restart_topics(position, {"0": {"a": {"0": 2}}}, {"0": {"a": "new", "b": "id"}})
    assert json.loads(moved.offsets.splitlines()[2]) == {"a": {"0": 2}, "b": {"0": 3}}
    assert moved.offsets.splitlines()[:2] == OFFSETS.splitlines()[:2]
    assert moved.offsets.splitlines()[3:] == ["-", '{"logOffset":4}']
    assert moved.topics == {"0": {"a": "new", "b": "id"}}


class Cluster:
    """Topics and their ids."""

    def __init__(self, **ids: str) -> None:
        self.ids, self.calls, self.refuses = dict(ids), 0, False

    def of(self, topics: Collection[str]) -> dict[str, str]:
        self.calls += 1
        if self.refuses:
            raise TopicIdsRefusedError("KAFKA_TOPIC_IDS_REFUSED", "no")
        return {topic: self.ids[topic] for topic in topics if topic in self.ids}

    def earliest(self, topics: Collection[str]) -> dict[str, dict[str, int]]:
        if self.refuses:
            raise TopicIdsRefusedError("KAFKA_TOPIC_IDS_REFUSED", "no")
        return {topic: {"0": 9, "1": 4} for topic in topics}


def test_records_that_are_gone_are_counted_in_each_batch() -> None:
    events: list[str] = []
    cluster = Cluster()
    check = RowsLeftOut("f", "lake.db.t", lambda event: events.append(event.json_fields()["reason"]))
    check._readers = {0: cluster}  # type: ignore[dict-item]
    first = SparkPosition(query_id="q", batch_id=3, offsets=OFFSETS, commit="v1\n{}")
    last = replace(first, offsets=OFFSETS.replace('"0":7', '"0":8').replace('"0":3', '"0":20'), batch_id=4)
    assert check.after_batch(None, first) is first
    assert events == []
    assert check.after_batch(first, last) is last
    # Of the first topic the batch itself had one record, of the second all up to the earliest are gone.
    assert [event.split(" went")[0] for event in events] == [
        "up to 1 record of partition a-0",
        "up to 6 records of partition b-0",
    ]
    cluster.refuses = True
    check.after_batch(first, last)
    check.after_batch(first, last)
    assert len(events) == 3


def flow(cluster: Cluster, events: list[str]) -> KafkaTopics:
    topics = KafkaTopics("f", "lake.db.t", RecreatedTopic.FAIL, lambda event: events.append(event.name))
    topics._readers = {0: cluster}  # type: ignore[dict-item]
    return topics


def test_ids_cover_the_topics_in_the_offsets() -> None:
    cluster = Cluster(a="1", b="2", c="3")
    topics = flow(cluster, [])
    assert topics.ids_after(0, OFFSETS) == {"0": {"a": "1", "b": "2"}}
    # A topic that is deleted keeps its id as long as its offsets are there.
    del cluster.ids["b"]
    assert topics.ids_after(1, OFFSETS) == {"0": {"a": "1", "b": "2"}}
    cluster.ids["b"] = "4"
    with pytest.raises(IngestError, match="topic b was deleted"):
        topics.ids_after(2, OFFSETS)


def test_one_request_per_batch_and_idle_trigger() -> None:
    cluster = Cluster(a="1", b="2")
    topics = flow(cluster, [])
    topics.ids_after(4, OFFSETS)
    topics.idle({"batchId": 4, "timestamp": "t1"})
    assert cluster.calls == 1
    for _ in range(3):
        topics.idle({"batchId": 5, "timestamp": "t2"})
    assert cluster.calls == 2
    cluster.ids["a"] = "9"
    with pytest.raises(IngestError, match="topic a was deleted"):
        topics.idle({"batchId": 5, "timestamp": "t3"})


def test_refused_ids_are_reported_once_and_old_ids_kept() -> None:
    events: list[str] = []
    cluster = Cluster(a="1", b="2")
    topics = flow(cluster, events)
    topics.ids_after(0, OFFSETS)
    cluster.refuses = True
    assert topics.ids_after(1, OFFSETS) == topics.ids_after(2, OFFSETS) == {"0": {"a": "1", "b": "2"}}
    assert events == ["kafka_topic_ids_unknown"]

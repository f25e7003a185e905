"""Whether the topics of a flow are the ones that its position speaks of, for sources that give them ids.

Kafka gives a topic an id when it is created. Offsets count in one topic; under the same name another one
begins anew, and what it holds below the old offsets would never be read. Ids are never reused: when
the id is still the known one after a batch was read, the whole batch came from the known topic.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame, SparkSession

from tautochrone.errors import IngestError
from tautochrone.ingest.folder_decision import source_offsets
from tautochrone.ingest.source_checks import SourceCheck
from tautochrone.model import events
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.source import RecreatedTopic, Unsupported
from tautochrone.model.source_position import SparkPosition
from tautochrone.spark.sources.kafka import TopicIdsRefusedError
from tautochrone.spark.sources.registry import sources_of
from tautochrone.spark.sources.spark_source import TopicIdReader

__all__ = ["KafkaTopics", "restart_topics"]

TopicIdsBySource = dict[str, dict[str, str]]


def restart_topics(
    position: SparkPosition, earliest: Mapping[str, Mapping[str, Mapping[str, int]]], ids: TopicIdsBySource
) -> SparkPosition:
    """The position with other offsets for some topics.

    Args:
        position: where the flow stands.
        earliest: number of the source → topic → partition → offset from which it goes on.
        ids: the ids of all topics in the offsets, by number of the source.
    """
    lines = position.offsets.strip().splitlines()
    for number, topics in earliest.items():
        line = len(lines) - len(source_offsets(position.offsets)) + int(number)
        lines[line] = json.dumps({**json.loads(lines[line]), **topics}, separators=(",", ":"))
    return replace(position, offsets="\n".join(lines), topics=ids)


@dataclass(slots=True)
class KafkaTopics(SourceCheck):
    """The check of one flow's topics.

    Args:
        policy: what a start does with a topic that was recreated.
    """

    flow: str
    dataset: str
    policy: RecreatedTopic
    emit: events.Emit
    _readers: dict[int, TopicIdReader] = field(default_factory=dict)
    _ids: TopicIdsBySource = field(default_factory=dict)
    _reported: set[str] = field(default_factory=set)
    _batch: int | None = None
    _progress: tuple[object, object] | None = None

    def begin(
        self, session: SparkSession, rows: DataFrame, position: SparkPosition | None
    ) -> SparkPosition | None:
        """See `SourceCheck`: reads the ids that count from here on.

        Returns:
            Where the flow must begin instead of `position`, when a topic was recreated and that is allowed.

        Raises:
            IngestError: `KAFKA_TOPIC_RECREATED`, `KAFKA_NOT_REACHABLE`.
        """
        self.close()
        self._batch = None
        sources = {source.number: source for source in sources_of(rows)}
        readers = {number: source.topic_ids(session) for number, source in sources.items()}
        self._readers = {n: reader for n, reader in readers.items() if not isinstance(reader, Unsupported)}
        taken = {} if position is None else self._topics_in(position.offsets)
        now = self._read_ids({n: sources[n].topics() | taken.get(n, frozenset()) for n in self._readers})
        before: TopicIdsBySource = (
            {} if position is None else {n: dict(ids) for n, ids in position.topics.items()}
        )
        changed = _changed_topics(before, now)
        self._ids = {number: {**before.get(number, {}), **now.get(number, {})} for number in {*before, *now}}
        if not changed or position is None:
            return None
        if self.policy is RecreatedTopic.FAIL:
            raise self._recreated_error(changed)
        earliest = {number: self._readers[int(number)].earliest(topics) for number, topics in changed.items()}
        self.emit(
            events.KafkaTopicRecreated(
                flow=self.flow,
                dataset=self.dataset,
                topics=sorted({topic for topics in changed.values() for topic in topics}),
                reason=Reason.of(ReasonCode.TOPIC_RECREATED),
            )
        )
        return restart_topics(position, earliest, self._ids_in(position.offsets))

    def after_batch(self, previous: SparkPosition | None, position: SparkPosition) -> SparkPosition:
        """See `SourceCheck`: adds the ids of the batch's topics. Raises as `ids_after`."""
        del previous
        return replace(position, topics=self.ids_after(position.batch_id, position.offsets))

    def ids_after(self, batch_id: int, offsets: str) -> TopicIdsBySource:
        """After a batch up to `offsets` was read, before it is committed: the ids of its topics.

        Raises:
            IngestError: `KAFKA_TOPIC_RECREATED`, `KAFKA_NOT_REACHABLE`.
        """
        if not self._readers:
            return {}
        self._require_same_ids(self._read_ids(self._topics_in(offsets)))
        self._batch = batch_id
        return self._ids_in(offsets)

    def idle(self, progress: Mapping[str, object] | None) -> None:
        """A trigger ended, maybe without a batch: a new topic with as many records looks like the old one.
        One request for each trigger without a batch that Spark reports. Raises as `ids_after`.
        """
        if not self._readers or progress is None or progress["batchId"] == self._batch:
            return
        trigger = (progress["batchId"], progress["timestamp"])
        if trigger != self._progress:
            self._require_same_ids(self._read_ids({int(n): frozenset(ids) for n, ids in self._ids.items()}))
            self._progress = trigger

    def close(self) -> None:
        """Close the connections; repeatable."""
        for reader in self._readers.values():
            reader.close()

    def _read_ids(self, topics: Mapping[int, frozenset[str]]) -> TopicIdsBySource:
        ids: TopicIdsBySource = {}
        for number, reader in self._readers.items():
            try:
                ids[str(number)] = reader.of(topics.get(number, frozenset()))
            except TopicIdsRefusedError as error:
                if error.message not in self._reported:
                    self._reported.add(error.message)
                    self.emit(
                        events.KafkaTopicIdsUnknown(
                            flow=self.flow,
                            dataset=self.dataset,
                            reason=Reason.of(ReasonCode.TOPIC_IDS_REFUSED, text=error.message),
                        )
                    )
        return ids

    def _require_same_ids(self, now: TopicIdsBySource) -> None:
        changed = _changed_topics(self._ids, now)
        if changed:
            raise self._recreated_error(changed)
        for number, ids in now.items():
            self._ids.setdefault(number, {}).update(ids)

    def _topics_in(self, offsets: str) -> dict[int, frozenset[str]]:
        lines = source_offsets(offsets)
        return {n: frozenset(_line(lines, n)) for n in self._readers}

    def _ids_in(self, offsets: str) -> TopicIdsBySource:
        ids_by_source = {
            str(number): {
                topic: self._ids[str(number)][topic]
                for topic in sorted(topics)
                if topic in self._ids.get(str(number), {})
            }
            for number, topics in self._topics_in(offsets).items()
        }
        return {number: ids for number, ids in ids_by_source.items() if ids}

    def _recreated_error(self, changed: Mapping[str, Sequence[str]]) -> IngestError:
        names = ", ".join(sorted({topic for topics in changed.values() for topic in topics}))
        hint = (
            f'set on_recreated_topic = "earliest" below [flows.{self.flow}] to keep its rows and take in the '
        )
        hint += f"new topic from its beginning, or start over with --full-refresh {self.dataset}"
        if self.policy is RecreatedTopic.EARLIEST:
            hint = "the next start takes in the new topic from its beginning"
        return IngestError(
            "KAFKA_TOPIC_RECREATED",
            f"Flow {self.flow}: topic {names} was deleted and created again since {self.dataset} took in its "
            "records",
            hint=hint,
            retryable=self.policy is RecreatedTopic.EARLIEST,
        )


def _changed_topics(before: Mapping[str, Mapping[str, str]], now: TopicIdsBySource) -> dict[str, list[str]]:
    """By number of the source the topics that have another id now than before."""
    changed = {
        number: [topic for topic, new in sorted(ids.items()) if before.get(number, {}).get(topic, new) != new]
        for number, ids in now.items()
    }
    return {number: topics for number, topics in changed.items() if topics}


def _line(lines: Sequence[str], number: int) -> Mapping[str, object]:
    if number >= len(lines) or not lines[number].strip().startswith("{"):
        return {}
    offsets: Mapping[str, object] = json.loads(lines[number])
    return offsets

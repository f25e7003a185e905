"""Whether the topics of a flow are the ones that its position speaks of, for sources that give them ids.

Kafka gives a topic an id when it is created. Offsets count in one topic; under the same name another one
begins anew, and what it holds below the old offsets would never be read. An id never comes back: when it is
the known one after a batch was read, all that the batch read came from the known topic.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame, SparkSession

from tautochrone.errors import IngestError
from tautochrone.ingest.folder_decision import source_offsets
from tautochrone.ingest.source_checks import SourceCheck
from tautochrone.model.events import Emit
from tautochrone.model.source import Unsupported
from tautochrone.model.source_position import SparkPosition
from tautochrone.model.sources import RecreatedTopic
from tautochrone.spark.sources.kafka import TopicIdsRefusedError
from tautochrone.spark.sources.registry import sources_of
from tautochrone.spark.sources.spark_source import TopicIdReader

__all__ = ["KafkaTopics", "begin_again"]

Ids = dict[str, dict[str, str]]


def begin_again(
    position: SparkPosition, earliest: Mapping[str, Mapping[str, Mapping[str, int]]], ids: Ids
) -> SparkPosition:
    """The position with other offsets for some topics.

    Args:
        position: where the flow stands.
        earliest: number of the source → topic → partition → offset from which it goes on.
        ids: the ids of all topics in the offsets, by number of the source.
    """
    lines = position.offsets.strip().splitlines()
    for number, topics in earliest.items():
        at = len(lines) - len(source_offsets(position.offsets)) + int(number)
        lines[at] = json.dumps({**json.loads(lines[at]), **topics}, separators=(",", ":"))
    return replace(position, offsets="\n".join(lines), topics=ids)


@dataclass(slots=True)
class KafkaTopics(SourceCheck):
    """The topics of one flow. One for all starts of the flow.

    `policy` says what a start does with a topic that was recreated.
    """

    flow: str
    dataset: str
    policy: RecreatedTopic
    emit: Emit
    _asked: dict[int, TopicIdReader] = field(default_factory=dict)
    _known: Ids = field(default_factory=dict)
    _told: set[str] = field(default_factory=set)
    _batch: int | None = None
    _progress: tuple[object, object] | None = None

    def begin(
        self, session: SparkSession, rows: DataFrame, position: SparkPosition | None
    ) -> SparkPosition | None:
        """Before a query over `rows` starts: the ids that count from here on.

        Returns:
            Where the flow must begin instead of `position`, when a topic was recreated and that is allowed.

        Raises:
            IngestError: `KAFKA_TOPIC_RECREATED`, `KAFKA_NOT_REACHABLE`.
        """
        self.close()
        self._batch = None
        sources = {source.number: source for source in sources_of(rows)}
        readers = {number: source.topic_ids(session) for number, source in sources.items()}
        self._asked = {n: reader for n, reader in readers.items() if not isinstance(reader, Unsupported)}
        taken = {} if position is None else self._topics_in(position.offsets)
        now = self._ask({n: sources[n].topics() | taken.get(n, frozenset()) for n in self._asked})
        before: Ids = {} if position is None else {n: dict(ids) for n, ids in position.topics.items()}
        others = _others(before, now)
        self._known = {
            number: {**before.get(number, {}), **now.get(number, {})} for number in {*before, *now}
        }
        if not others or position is None:
            return None
        if self.policy is RecreatedTopic.FAIL:
            raise self._recreated(others)
        earliest = {number: self._asked[int(number)].earliest(topics) for number, topics in others.items()}
        self.emit(
            "kafka_topic_recreated",
            flow=self.flow,
            dataset=self.dataset,
            topics=sorted({topic for topics in others.values() for topic in topics}),
            reason="Kafka gives another id; the new topic is taken in from its beginning, the rows of "
            "the old one stay",
        )
        return begin_again(position, earliest, self._ids_in(position.offsets))

    def after_batch(self, after: SparkPosition | None, position: SparkPosition) -> SparkPosition:
        """See `SourceCheck`: adds the ids of the batch's topics. Raises as `ids_after`."""
        del after
        return replace(position, topics=self.ids_after(position.batch_id, position.offsets))

    def ids_after(self, batch_id: int, offsets: str) -> Ids:
        """After a batch up to `offsets` was read, before it is committed: the ids of its topics.

        Raises:
            IngestError: `KAFKA_TOPIC_RECREATED`, `KAFKA_NOT_REACHABLE`.
        """
        if not self._asked:
            return {}
        self._compare(self._ask(self._topics_in(offsets)))
        self._batch = batch_id
        return self._ids_in(offsets)

    def idle(self, progress: Mapping[str, object] | None) -> None:
        """A trigger ended, maybe without a batch: a new topic with as many records looks like the old one.
        One question for each trigger without a batch that Spark tells of. Raises as `ids_after`.
        """
        if not self._asked or progress is None or progress["batchId"] == self._batch:
            return
        trigger = (progress["batchId"], progress["timestamp"])
        if trigger != self._progress:
            self._compare(self._ask({int(n): frozenset(ids) for n, ids in self._known.items()}))
            self._progress = trigger

    def close(self) -> None:
        """Let go of the connections; repeatable."""
        for asked in self._asked.values():
            asked.close()

    def _ask(self, topics: Mapping[int, frozenset[str]]) -> Ids:
        found: Ids = {}
        for number, asked in self._asked.items():
            try:
                found[str(number)] = asked.of(topics.get(number, frozenset()))
            except TopicIdsRefusedError as error:
                if error.message not in self._told:
                    self._told.add(error.message)
                    self.emit(
                        "kafka_topic_ids_unknown",
                        flow=self.flow,
                        dataset=self.dataset,
                        reason=f"{error.message}; a topic that is deleted and created again goes unnoticed",
                    )
        return found

    def _compare(self, now: Ids) -> None:
        others = _others(self._known, now)
        if others:
            raise self._recreated(others)
        for number, ids in now.items():
            self._known.setdefault(number, {}).update(ids)

    def _topics_in(self, offsets: str) -> dict[int, frozenset[str]]:
        lines = source_offsets(offsets)
        return {n: frozenset(_line(lines, n)) for n in self._asked}

    def _ids_in(self, offsets: str) -> Ids:
        found = {
            str(number): {
                topic: self._known[str(number)][topic]
                for topic in sorted(topics)
                if topic in self._known.get(str(number), {})
            }
            for number, topics in self._topics_in(offsets).items()
        }
        return {number: ids for number, ids in found.items() if ids}

    def _recreated(self, others: Mapping[str, Sequence[str]]) -> IngestError:
        names = ", ".join(sorted({topic for topics in others.values() for topic in topics}))
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


def _others(known: Mapping[str, Mapping[str, str]], now: Ids) -> dict[str, list[str]]:
    """By number of the source the topics whose id is another one."""
    found = {
        number: [topic for topic, at in sorted(ids.items()) if known.get(number, {}).get(topic, at) != at]
        for number, ids in now.items()
    }
    return {number: topics for number, topics in found.items() if topics}


def _line(lines: Sequence[str], number: int) -> Mapping[str, object]:
    if number >= len(lines) or not lines[number].strip().startswith("{"):
        return {}
    found: Mapping[str, object] = json.loads(lines[number])
    return found

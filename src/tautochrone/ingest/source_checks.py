"""What a flow asks of its sources around each batch, so that none of their rows is left out silently.

Each check is about one thing that a source may be able to tell; it asks the flow's sources whether they can,
and does nothing for those that cannot. A flow that reads nothing from outside has no checks. The check of
files is in `ingest.source_files`.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tautochrone.errors import IngestError, SourceUnreachableError
from tautochrone.ingest.checkpoint_folder import CheckpointFolder
from tautochrone.ingest.folder_decision import source_offsets
from tautochrone.model import events
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.source import RecreatedTopic, Unsupported
from tautochrone.model.source_position import SparkPosition
from tautochrone.spark.sources.kafka import TopicIdsRefusedError
from tautochrone.spark.sources.registry import prepared_stream, sources_of
from tautochrone.spark.sources.spark_source import TopicIdReader

__all__ = [
    "KafkaTopics",
    "RowsLeftOut",
    "SourceCheck",
    "SourceChecks",
    "SourceOrder",
    "lost_records",
    "moved_source",
    "restart_topics",
]


class SourceCheck:
    """One check of one flow, for all its starts. By itself it does nothing."""

    def begin(
        self, session: SparkSession, rows: DataFrame, position: SparkPosition | None
    ) -> SparkPosition | None:
        """Before a query over `rows` starts.

        Returns:
            Where the flow must begin instead of `position`; None: there.
        """
        del session, rows, position
        return None

    def started(
        self, session: SparkSession, rows: DataFrame, query: StreamingQuery, folder: CheckpointFolder
    ) -> None:
        """`query` runs over `rows` and keeps its logs in `folder`."""

    def before_batch(self, batch_id: int, previous: SparkPosition | None) -> None:
        """A batch is about to be read, behind the position `previous`."""

    def after_batch(self, previous: SparkPosition | None, position: SparkPosition) -> SparkPosition:
        """A batch was read and is about to be committed with `position`: that, with what the check adds."""
        del previous
        return position

    def idle(self, progress: Mapping[str, Any] | None) -> None:
        """A trigger ended; None: none did yet."""
        del progress

    def inspect(self, *, at_once: bool = False) -> None:
        """From time to time, or `at_once`."""

    def close(self) -> None:
        """Close connections; repeatable."""


@dataclass(slots=True)
class SourceChecks:
    """All checks of one flow. `problem` is why the sources are not those of before."""

    checks: Sequence[SourceCheck] = ()
    problem: IngestError | None = None
    _started: threading.Event = field(default_factory=threading.Event)

    def begin(
        self, session: SparkSession, rows: DataFrame, position: SparkPosition | None
    ) -> tuple[DataFrame, SparkPosition | None]:
        """Before a query over `rows` starts.

        Returns:
            The rows to query, and where the flow must begin instead of `position`, or None.

        Raises:
            IngestError: a source is not the one of before, or does not answer.
        """
        self.problem = None
        self._started.clear()
        if self.checks:
            rows = prepared_stream(session, rows)
        moved: SparkPosition | None = None
        for check in self.checks:
            moved = check.begin(session, rows, moved or position) or moved
        return rows, moved

    def started(
        self, session: SparkSession, rows: DataFrame, query: StreamingQuery, folder: CheckpointFolder
    ) -> None:
        """`query` runs over `rows` and keeps its logs in `folder`."""
        try:
            for check in self.checks:
                check.started(session, rows, query, folder)
        finally:
            self._started.set()

    def await_start(self) -> None:
        """Until the query's start has returned: its first batch may run before that."""
        self._started.wait()

    def before_batch(self, batch_id: int, previous: SparkPosition | None) -> None:
        """A batch is about to be read, behind the position `previous`.

        Raises:
            IngestError: a part of the batch is gone.
        """
        if self.checks:
            self.await_start()
        for check in self.checks:
            check.before_batch(batch_id, previous)

    def after_batch(self, previous: SparkPosition | None, position: SparkPosition) -> SparkPosition:
        """A batch was read and is about to be committed with `position`: that, with what the checks add.

        Raises:
            IngestError: a source is not the one of before, or does not answer.
        """
        for check in self.checks:
            position = check.after_batch(previous, position)
        return position

    def trigger_ended(self, progress: Mapping[str, Any] | None) -> bool:
        """A trigger ended: ask the sources whether it looked at those that the position speaks of. One that
        is not the one of before is the `problem` from now on.

        Returns:
            Whether it did. Without an answer it does not count, and the next one asks again.
        """
        if self.problem is None:
            try:
                for check in self.checks:
                    check.idle(progress)
            except IngestError as error:
                if not isinstance(error, SourceUnreachableError):
                    self.problem = error
                return False
        return self.problem is None

    def inspect(self, *, at_once: bool = False) -> None:
        """Report what the sources skip; see `SkippedFilesCheck.inspect`."""
        for check in self.checks:
            check.inspect(at_once=at_once)

    def close(self) -> None:
        """Close connections; repeatable."""
        for check in self.checks:
            check.close()


def moved_source(before: Mapping[str, str], now: Mapping[str, str]) -> str | None:
    """A source that has another number than before; None: there is none.

    Args:
        before, now: by number (as text) a hash of what each source reads.

    Returns:
        Its number now.

    >>> moved_source({"0": "a", "1": "b"}, {"0": "b", "1": "a"})
    '0'
    >>> moved_source({"0": "a", "1": "b"}, {"0": "c", "1": "b"})
    """
    for number, source in sorted(now.items()):
        former = [other for other, text in before.items() if text == source]
        if former and number not in former and any(now.get(other) != source for other in former):
            return number
    return None


@dataclass(slots=True)
class SourceOrder(SourceCheck):
    """Whether each source of a flow still has the number under which its position is kept.

    Spark keeps the positions of a query's sources by their order in the query. Two streams of files that
    change places would each get the files that the other one has read: all of them would come again.
    """

    flow: str
    _sources: dict[str, str] = field(default_factory=dict)

    def begin(
        self, session: SparkSession, rows: DataFrame, position: SparkPosition | None
    ) -> SparkPosition | None:
        """See `SourceCheck`.

        Returns:
            Behind an empty batch, when a source of a flow that took one batch was replaced.

        Raises:
            IngestError: `FLOW_SOURCES_REORDERED`.
        """
        del session
        ids = {str(source.number): source.input_ids() for source in sources_of(rows)}
        texts = {number: ", ".join(sorted(names)) for number, names in ids.items() if names}
        # Hashes, because a copy of a project must not name the folders of its original.
        self._sources = {number: _hash(text) for number, text in texts.items()}
        moved = None if position is None else moved_source(position.sources, self._sources)
        if moved is not None:
            raise IngestError(
                "FLOW_SOURCES_REORDERED",
                f"The streams of {self.flow} are in another order: {texts[moved]} would go on where another "
                f"stream stood",
                hint="keep the streams of a flow in their order, or give each one a flow of its own "
                "(@dp.append_flow, CREATE FLOW); --full-refresh of the table reads all of them again",
            )
        if position is None or position.stateful or position.batch_id > 0:
            return None
        replaced = any(self._sources.get(number, was) != was for number, was in position.sources.items())
        # Spark plans the newest batch once more, and refuses its files where a stream has another folder now.
        # Behind the first batch that batch is empty, because its folder says that the one before ended there.
        return replace(position, batch_id=1, sources=self._sources) if replaced else None

    def after_batch(self, previous: SparkPosition | None, position: SparkPosition) -> SparkPosition:
        """See `SourceCheck`: adds what each source reads."""
        del previous
        return replace(position, sources=self._sources)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


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
    """Whether the topics of a flow are the ones that its position speaks of, for sources that give them ids.

    Kafka gives a topic an id when it is created. Offsets count in one topic; under the same name another one
    begins anew, and what it holds below the old offsets would never be read. Ids are never reused: when the
    id is still the known one after a batch was read, the whole batch came from the known topic.

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
        return {number: frozenset(_kafka_offsets(offsets, number)) for number in self._readers}

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


_Offsets = Mapping[str, Mapping[str, int]]
"""Topic → partition → offset."""


def lost_records(start: _Offsets, end: _Offsets, earliest: _Offsets) -> dict[str, int]:
    """How many offsets of a batch are before the first one that each partition still has.

    >>> lost_records({"t": {"0": 3, "1": 5}}, {"t": {"0": 9, "1": 9}}, {"t": {"0": 7, "1": 2}})
    {'t-0': 4}
    """
    lost = {}
    for topic, partitions in start.items():
        for partition, offset in partitions.items():
            last = end.get(topic, {}).get(partition, offset)
            first = min(earliest.get(topic, {}).get(partition, offset), last)
            if first > offset:
                lost[f"{topic}-{partition}"] = first - offset
    return lost


@dataclass(slots=True)
class RowsLeftOut(SourceCheck):
    """Reports rows that the readers' own options leave out without an error; they stay left out.

    An option is reported once in each run. Of Kafka's records that went away before they were read it is
    also reported how many. How many rows of a file are left out no option of Spark tells.
    """

    flow: str
    dataset: str
    emit: events.Emit
    _reported: set[Reason] = field(default_factory=set)
    _readers: dict[int, TopicIdReader] = field(default_factory=dict)

    def begin(
        self, session: SparkSession, rows: DataFrame, position: SparkPosition | None
    ) -> SparkPosition | None:
        """See `SourceCheck`: says what the readers' options leave out."""
        del position
        self.close()
        self._readers = {}
        for source in sources_of(rows):
            for option, value in sorted(source.leaving_out(session).items()):
                code = ReasonCode.READER_LEAVES_OUT_ROWS
                self._report(Reason.of(code, input=source.label, option=option, value=value))
            if source.may_lose_records():
                reader = source.topic_ids(session)
                if not isinstance(reader, Unsupported):
                    self._readers[source.number] = reader
        return None

    def after_batch(self, previous: SparkPosition | None, position: SparkPosition) -> SparkPosition:
        """See `SourceCheck`: says which records of the batch went away before it was read, or at the latest
        while it was.

        Raises:
            IngestError: `KAFKA_NOT_REACHABLE`.
        """
        if previous is not None:
            for number, reader in self._readers.items():
                for partition, records in self._lost(number, reader, previous, position):
                    reason = Reason.of(ReasonCode.RECORDS_GONE, partition=partition, records=records)
                    self._emit(reason)
        return position

    def _lost(
        self, number: int, reader: TopicIdReader, previous: SparkPosition, position: SparkPosition
    ) -> Iterator[tuple[str, int]]:
        start, end = (_kafka_offsets(each.offsets, number) for each in (previous, position))
        try:
            yield from lost_records(start, end, reader.earliest(frozenset(start))).items()
        except TopicIdsRefusedError as error:
            # The option itself was said.
            self._report(Reason.of(ReasonCode.TOPIC_IDS_REFUSED, text=error.message))

    def _report(self, reason: Reason) -> None:
        if reason not in self._reported:
            self._reported.add(reason)
            self._emit(reason)

    def _emit(self, reason: Reason) -> None:
        self.emit(events.SourceRowsLeftOut(flow=self.flow, dataset=self.dataset, reason=reason))

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()


def _kafka_offsets(text: str, number: int) -> _Offsets:
    """The offsets of one source in an offsets file; none for a source that has none there."""
    lines = source_offsets(text)
    if number >= len(lines) or not lines[number].strip().startswith("{"):
        return {}
    offsets: _Offsets = json.loads(lines[number])
    return offsets

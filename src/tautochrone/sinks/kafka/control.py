"""The control topic of a sink: who owns it, which checkpoint its readers see, which topics are its own.

A compacted topic of one partition. Its records are written in Kafka transactions of the sink, the pointer
in the same one as the rows of its checkpoint: a reader of committed records that finds the pointer finds the
rows.

| key | value |
|---|---|
| `owner` | `{"sink": name, "lake": identity}` |
| `fence` | `{"fence": n}` |
| `pointer` | the transaction, its versions, its number `publication`; `topic_ids`, `ends` and `totals` |
| `publication:SLOT` | the same of one of the last `HISTORY` commits |
| `topic:TABLE` | a `Claim` |

Each record has the id of the control topic in a header. A topic that was deleted and created again has
another id: so records of an older one, which somebody copied back, are not taken for its own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tautochrone.errors import SinkError
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.sink import Published, TransactionId
from tautochrone.sinks.common.steps import require_fence
from tautochrone.sinks.json_rows import to_text
from tautochrone.sinks.kafka.client import (
    Client,
    LoginRefusals,
    ProducerLostError,
    ProducerSession,
    TopicInfo,
)
from tautochrone.sinks.kafka.options import KafkaOptions

__all__ = [
    "HISTORY",
    "Claim",
    "ControlTopic",
    "Owners",
    "Pointer",
    "TopicRecord",
]

_OWNER, _FENCE, _POINTER, _CLAIM, _PUBLICATION = "owner", "fence", "pointer", "topic:", "publication:"
_SINK_HEADER, _CONTROL_HEADER = "taut-sink", "taut-control"
"""Headers of each record of a sink: its transactional id, and the id of its control topic."""
HISTORY = 2_000
"""How many commits the control topic tells of. Its size is bounded, because their keys repeat."""
_CONFIG = {"cleanup.policy": "compact", "segment.bytes": str(1 << 20)}
"""Small segments: a control topic has few records, and only closed segments are compacted."""
_ASK_AGAIN, _PAUSE_S = 5, 0.1


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose mirror the topics are."""

    sink: str
    lake: str

    def as_json(self) -> dict[str, str]:
        return {"sink": self.sink, "lake": self.lake}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord:
    """What the topic of a table must be.

    Attributes:
        ends: by partition the offset behind the last record of the sink.
        totals: by partition how many records the sink committed, from the first one on.
    """

    topic_id: str
    ends: Mapping[int, int] = field(default_factory=dict)
    totals: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointer:
    """What readers see.

    Attributes:
        publication: counts the commits of the sink, from 1. Each record has the number of its commit in a
            header.
        topics: by the name of a topic.
    """

    transaction: TransactionId
    versions: Mapping[str, str]
    publication: int
    topics: Mapping[str, TopicRecord] = field(default_factory=dict)

    def published(self) -> Published:
        versions = {TableName.parse(name): Version(version) for name, version in self.versions.items()}
        return Published(transaction=self.transaction, versions=versions)

    def records(self) -> list[tuple[str, Mapping[str, Any]]]:
        """The pointer's record, and the one by which it is still known when it is not the newest."""
        value = {
            "transaction": self.transaction.as_json(),
            "versions": dict(self.versions),
            "publication": self.publication,
            "topic_ids": {topic: record.topic_id for topic, record in self.topics.items()},
            "ends": {topic: _with_texts(record.ends) for topic, record in self.topics.items()},
            "totals": {topic: _with_texts(record.totals) for topic, record in self.topics.items()},
        }
        return [(_POINTER, value), (f"{_PUBLICATION}{self.publication % HISTORY}", value)]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Pointer:
        return cls(
            transaction=TransactionId.from_json(value["transaction"]),
            versions=value["versions"],
            publication=value["publication"],
            topics={
                topic: TopicRecord(
                    topic_id=topic_id,
                    ends=_with_numbers(value["ends"][topic]),
                    totals=_with_numbers(value["totals"][topic]),
                )
                for topic, topic_id in value["topic_ids"].items()
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The topic of one table.

    Attributes:
        starts: by partition the offset at which the sink begins.
        schema: of the table, as Spark's JSON.
        value_format: how values are written.
    """

    topic: str
    topic_id: str
    mode: str
    key: tuple[str, ...]
    starts: Mapping[int, int]
    schema: Mapping[str, Any]
    value_format: str

    def record(self, table: TableName) -> tuple[str, Mapping[str, Any]]:
        return f"{_CLAIM}{table}", {
            "topic": self.topic,
            "topic_id": self.topic_id,
            "mode": self.mode,
            "key": list(self.key),
            "starts": _with_texts(self.starts),
            "schema": self.schema,
            "value_format": self.value_format,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Claim:
        return cls(
            topic=value["topic"],
            topic_id=value["topic_id"],
            mode=value["mode"],
            key=tuple(value["key"]),
            starts=_with_numbers(value["starts"]),
            schema=value["schema"],
            value_format=value["value_format"],
        )


class ControlTopic:
    """What the control topic says, as of the last `refresh`."""

    def __init__(self, sink: str, client: Client, options: KafkaOptions) -> None:
        self._sink = sink
        self._client = client
        self._transactional_id = options.transactional_id
        self.name = options.control_topic
        self._info: TopicInfo | None = None
        self._forget()

    def _forget(self) -> None:
        self._offset = 0
        self.owner: Owner | None = None
        self.fence = Fence(0)
        self.pointer: Pointer | None = None
        self.claims: dict[TableName, Claim] = {}
        self._history: dict[str, Pointer] = {}

    @property
    def publication(self) -> int:
        """The number of the newest commit; 0: there is none."""
        return 0 if self.pointer is None else self.pointer.publication

    def pointer_at(self, checkpoint: CheckpointNumber) -> Pointer | None:
        """The newest commit of this number: a store that was restored gives a number again."""
        known = (self.pointer, *self._history.values())
        commits = [each for each in known if each and each.transaction.checkpoint == checkpoint]
        return max(commits, key=lambda commit: commit.publication, default=None)

    def headers(self) -> list[tuple[str, bytes]]:
        """Those of each record of the sink."""
        topic_id = "" if self._info is None else self._info.topic_id
        return [(_SINK_HEADER, self._transactional_id.encode()), (_CONTROL_HEADER, topic_id.encode())]

    def is_own(self, message: Any) -> bool:
        """Whether the sink wrote a record, since it has this control topic."""
        headers = dict(message.headers() or [])
        return all(headers.get(name) == value for name, value in self.headers())

    def create(self) -> None:
        """Create the topic if it is missing.

        Raises:
            SinkError: as `require_kept` and `refresh`.
        """
        if self._info is None:
            self._client.create(self.name, 1, _CONFIG)
            self.refresh()
        self.require_kept()

    def require_kept(self) -> None:
        """Refuse settings by which the topic loses records.

        Raises:
            SinkError: `SINK_TOPIC_RETENTION`.
        """
        policy = self._client.settings([self.name])[self.name]["cleanup.policy"]
        if policy != "compact":
            raise SinkError(
                "SINK_TOPIC_RETENTION",
                f"Sink {self._sink}: the control topic {self.name} has cleanup.policy={policy}, which "
                "deletes records that say what was committed",
                hint="Set cleanup.policy=compact on it.",
                parameters={"sink": self._sink, "topic": self.name},
                sqlstate="55000",
            )

    def refresh(self) -> None:
        """Read what was committed since the last time; all of it if the topic was created again.

        Raises:
            SinkError: `SINK_TOPIC_CHANGED`, it lost records, or has other partitions; `SINK_NAME_TAKEN`, it
                has records of somebody else.
        """
        info = self._described_topic()
        if info is None:
            return
        if info.partitions != 1:
            raise self._topic_changed_error(f"has {info.partitions} partitions, not 1")
        low, end = self._client.offset_range(self.name, 0)
        if low > 0 or end < self._offset:
            raise self._topic_changed_error("lost records")
        if end == self._offset:
            return
        for message in self._client.read(self.name, {0: self._offset}):
            if not self.is_own(message):
                raise SinkError(
                    "SINK_NAME_TAKEN",
                    f"Sink {self._sink}: somebody else wrote the record at offset {message.offset()} of "
                    f"the control topic {self.name}",
                    hint=f"Give the sink another control topic (option control_topic). If it is the sink's "
                    f"own, stop the other writer; {self._remedy()}",
                    parameters={"sink": self._sink, "topic": self.name},
                    sqlstate="42P07",
                )
            self._apply_record(message.key().decode(), json.loads(message.value()))
        newest = max((commit.publication for commit in self._history.values()), default=0)
        if newest > self.publication:
            raise self._topic_changed_error(
                f"says of commit {self.publication} that it is the newest, and knows {newest}"
            )
        self._offset = end

    def _described_topic(self) -> TopicInfo | None:
        """The topic now; what is known of another one is dropped."""
        before, info = self._info, self._client.topic(self.name)
        for _ in range(_ASK_AGAIN):
            if info is not None or before is None:
                break
            # One broker of several may not know yet what the others know.
            time.sleep(_PAUSE_S)
            info = self._client.topic(self.name)
        if before is not None and (info is None or info.topic_id != before.topic_id):
            self._forget()
            self._client.forget()
        self._info = info
        return info

    def _topic_changed_error(self, problem: str) -> SinkError:
        return SinkError(
            "SINK_TOPIC_CHANGED",
            f"Sink {self._sink}: the control topic {self.name} {problem}",
            hint=f"If it is the topic of another program, set the option control_topic. If not, "
            f"{self._remedy()}",
            parameters={"sink": self._sink, "topic": self.name},
            sqlstate="55000",
        )

    def _remedy(self) -> str:
        return "delete it and the topics of the tables: the next run creates them, and delivers all rows."

    def _apply_record(self, key: str, value: Mapping[str, Any]) -> None:
        if key == _OWNER:
            self.owner = Owner(value["sink"], value["lake"])
        elif key == _FENCE:
            self.fence = max(self.fence, Fence(value["fence"]))
        elif key == _POINTER:
            self.pointer = Pointer.from_json(value)
        elif key.startswith(_PUBLICATION):
            self._history[key] = Pointer.from_json(value)
        elif key.startswith(_CLAIM):
            self.claims[TableName.parse(key.removeprefix(_CLAIM))] = Claim.from_json(value)


def _with_texts(numbers: Mapping[int, int]) -> dict[str, int]:
    """Partitions as JSON has them."""
    return {str(partition): number for partition, number in numbers.items()}


def _with_numbers(texts: Mapping[str, int]) -> dict[int, int]:
    return {int(partition): number for partition, number in texts.items()}


_Record = tuple[str, Mapping[str, Any]]


class Owners:
    """Who delivers to a sink: whose control topic it is, the fence, and the producer of the newest owner.

    An owner commits only with a producer that it opened before it read in the control topic that no newer
    owner is there. A newer one must open a producer before it writes its fence, which ends that producer.

    Attributes:
        session: the open producer.
        sent: whose records its open transaction has.
    """

    def __init__(
        self,
        sink: str,
        client: Client,
        control: ControlTopic,
        options: KafkaOptions,
        refusals: LoginRefusals,
        make_producer: Callable[[KafkaOptions, LoginRefusals], Any],
    ) -> None:
        self._sink = sink
        self._client = client
        self._control = control
        self._options = options
        self._refusals = refusals
        self._make_producer = make_producer
        self._claimed: Owner | None = None
        self._session_fence = Fence(0)
        self.session: ProducerSession | None = None
        self.sent: TransactionId | None = None

    def claim(self, lake: str) -> None:
        """See `model.sink.Sink.claim`."""
        self._claimed = Owner(self._sink, lake)
        self._refresh()
        if self._control.owner is None:
            self._open_producer(self._control.fence)
            self.close_producer()

    def require(self, fence: Fence) -> None:
        """Refuse an owner that is not the newest, and a control topic of somebody else.

        Raises:
            SinkFencedError; SinkError: `SINK_DATABASE_TAKEN`.
        """
        try:
            self._refresh()
            require_fence(self._sink, fence, self._control.fence)
        except SinkError:
            self.close_producer()
            raise

    def fence(self, fence: Fence) -> None:
        """See `model.sink.Sink.fence`."""
        self.require(fence)
        is_recorded = self._control.fence == fence and self._claimed in (None, self._control.owner)
        if self.session is None or self._session_fence != fence or not is_recorded:
            self.close_producer()
            self._open_producer(fence)

    def session_for(self, fence: Fence) -> ProducerSession:
        """A producer that no newer owner has ended yet, as far as is known."""
        self.fence(fence)
        assert self.session is not None
        return self.session

    def has_sent(self, transaction: TransactionId, fence: Fence) -> bool:
        """Whether the open transaction of the producer has the records of this one."""
        return self.session is not None and self._session_fence == fence and self.sent == transaction

    def close_producer(self) -> None:
        session, self.session, self.sent = self.session, None, None
        if session is not None:
            session.close()

    def abort_open(self) -> None:
        """Drop what the open Kafka transaction has, by force if its producer does not answer."""
        session, self.sent = self.session, None
        if session is not None:
            try:
                self.abort(session)
            except (SinkError, ProducerLostError):
                self.close_producer()

    def abort(self, session: ProducerSession) -> None:
        """Drop what the open transaction has, and wait until the partitions know."""
        if session.is_open:
            session.abort()
            self._client.await_decided(session.ends)

    @contextmanager
    def errors(self, fence: Fence) -> Iterator[None]:
        """After any failure the next operation opens a new producer, which ends what this one began."""
        try:
            yield
        except ProducerLostError as error:
            self.close_producer()
            self.require(fence)
            raise SinkError(
                "SINK_SESSION_LOST",
                f"Sink {self._sink}: Kafka ended the transaction or its producer ({error})",
                hint="A transaction may take kafka.transaction.timeout.ms; brokers allow at most their "
                "transaction.max.timeout.ms. The next try sends it again.",
                retryable=True,
                parameters={"sink": self._sink},
            ) from error
        except BaseException:
            self.close_producer()
            raise

    def commit_records(self, session: ProducerSession, records: Sequence[_Record]) -> None:
        """Commit records of the control topic in a Kafka transaction of their own."""
        self.abort(session)
        self.sent = None
        session.begin_transaction()
        self.send_records(session, records)
        session.commit()
        self._client.await_decided(session.ends)
        self._control.refresh()

    def send_records(self, session: ProducerSession, records: Sequence[_Record]) -> None:
        headers = self._control.headers()
        for key, value in records:
            session.send(self._control.name, key.encode(), to_text(value).encode(), headers)

    def _open_producer(self, fence: Fence) -> None:
        """Open a producer, and write whose the control topic is."""
        self._control.create()
        with self.errors(fence):
            producer = self._make_producer(self._options, self._refusals)
            self.session = ProducerSession(self._sink, producer, self._refusals)
            # Somebody else may have come between the first look and the producer.
            self.require(fence)
            self._session_fence = fence
            records: list[_Record] = []
            if self._control.owner is None and self._claimed is not None:
                records.append((_OWNER, self._claimed.as_json()))
            if self._control.fence < fence:
                records.append((_FENCE, {"fence": int(fence)}))
            if records:
                self.commit_records(self.session, records)

    def _refresh(self) -> None:
        self._control.refresh()
        owner, claimed = self._control.owner, self._claimed
        if owner is None or claimed is None or owner == claimed:
            return
        whose = (
            f"sink {owner.sink} of this lake"
            if owner.lake == claimed.lake
            else f"sink {owner.sink} of another lake ({owner.lake})"
        )
        raise SinkError(
            "SINK_DATABASE_TAKEN",
            f"Sink {self._sink}: the control topic {self._control.name} belongs to {whose}",
            hint="Give the sink other topics by the options control_topic and topic. If nothing delivers to "
            "these any more, also after a sink was renamed or the lake got another catalog, delete the "
            "control topic and the topics of the tables: the next run creates them, and delivers all rows.",
            parameters={"sink": self._sink, "owner": owner.sink, "lake": owner.lake},
            sqlstate="55000",
        )

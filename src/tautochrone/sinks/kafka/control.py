"""The control topic of a sink: who owns it, which checkpoint its readers see, which topics are its own.

A compacted topic of one partition. Its records are written in Kafka transactions of the sink, the pointer
in the same one as the rows of its checkpoint: a reader of committed records that finds the pointer finds the
rows.

| key | value |
|---|---|
| `fence` | `{"fence": n}` |
| `pointer` | the transaction, its versions, its number `publication`, `ends` and `totals` of each topic |
| `publication:SLOT` | the same of one of the last `HISTORY` commits |
| `topic:TABLE` | a `Claim` |
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tautochrone.errors import SinkError
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.sink import Published, TransactionId
from tautochrone.sinks.kafka.client import Client, TopicInfo
from tautochrone.sinks.kafka.options import KafkaOptions

__all__ = ["HISTORY", "Claim", "ControlTopic", "Pointer"]

FENCE, POINTER, _CLAIM, _PUBLICATION = "fence", "pointer", "topic:", "publication:"
HISTORY = 2_000
"""How many commits the control topic tells of. Its size is bounded, because their keys repeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointer:
    """What readers see.

    Attributes:
        publication: counts the commits of the sink, from 1. Each record has the number of its commit in a
            header.
        ends: by topic and partition the offset behind the last record of the sink.
        totals: by topic and partition how many records the sink committed, from the first one on. A topic
            that an older release wrote to has none.
    """

    transaction: TransactionId
    versions: Mapping[str, str]
    publication: int
    ends: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    totals: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    def published(self) -> Published:
        versions = {TableName.parse(name): Version(version) for name, version in self.versions.items()}
        return Published(transaction=self.transaction, versions=versions)

    def records(self) -> list[tuple[str, Mapping[str, Any]]]:
        """The pointer's record, and the one by which it is still known when it is not the newest."""
        value = {
            "transaction": self.transaction.as_json(),
            "versions": dict(self.versions),
            "publication": self.publication,
            "ends": _with_texts(self.ends),
            "totals": _with_texts(self.totals),
        }
        return [(POINTER, value), (f"{_PUBLICATION}{self.publication % HISTORY}", value)]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Pointer:
        return cls(
            transaction=TransactionId.from_json(value["transaction"]),
            versions=value["versions"],
            publication=value["publication"],
            ends=_with_numbers(value["ends"]),
            # Pointers of versions that kept no history do not have it.
            totals=_with_numbers(value.get("totals", {})),
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
    value_format: str = "json"

    def record(self, table: TableName) -> tuple[str, Mapping[str, Any]]:
        return f"{_CLAIM}{table}", {
            "topic": self.topic,
            "topic_id": self.topic_id,
            "mode": self.mode,
            "key": list(self.key),
            "starts": {str(partition): offset for partition, offset in self.starts.items()},
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
            starts={int(partition): offset for partition, offset in value["starts"].items()},
            schema=value["schema"],
            # Claims of versions without Avro do not name it.
            value_format=value.get("value_format", "json"),
        )


class ControlTopic:
    """What the control topic says, as of the last `refresh`."""

    def __init__(self, sink: str, client: Client, options: KafkaOptions) -> None:
        self._sink = sink
        self._client = client
        self._name = options.control_topic
        self._info: TopicInfo | None = None
        self._offset = 0
        self.fence = Fence(0)
        self.pointer: Pointer | None = None
        self.claims: dict[TableName, Claim] = {}
        self._history: dict[str, Pointer] = {}

    def at(self, checkpoint: CheckpointNumber) -> Pointer | None:
        """The newest commit of this number: a store that was restored gives a number again."""
        known = (self.pointer, *self._history.values())
        commits = [each for each in known if each and each.transaction.checkpoint == checkpoint]
        return max(commits, key=lambda commit: commit.publication, default=None)

    def create(self) -> None:
        """Create the topic if it is missing.

        Raises:
            SinkError: `SINK_TOPIC_RETENTION`, it does not keep its records; `SINK_NAME_TAKEN`, it has other
                partitions.
        """
        if self._info is not None:
            return
        # Small segments: a control topic has few records, and only closed segments are compacted.
        config = {"cleanup.policy": "compact", "segment.bytes": str(1 << 20)}
        info = self._client.topic(self._name) or self._client.create(self._name, 1, config)
        if info.partitions != 1:
            raise SinkError(
                "SINK_NAME_TAKEN",
                f"Sink {self._sink}: the control topic {self._name} has {info.partitions} partitions, not 1",
                hint="Give the sink another control topic (option control_topic), or delete this one.",
                sqlstate="42P07",
            )
        policy = self._client.setting(self._name, "cleanup.policy")
        if policy != "compact":
            raise SinkError(
                "SINK_TOPIC_RETENTION",
                f"Sink {self._sink}: the control topic {self._name} has cleanup.policy={policy}, which "
                "deletes records that say what was committed",
                hint="Set cleanup.policy=compact on it, or delete it before anything was delivered.",
                sqlstate="55000",
            )
        self._info = info

    def refresh(self) -> None:
        """Read what was committed since the last time.

        Raises:
            SinkError: `SINK_TOPIC_CHANGED`, the topic was deleted and created again.
        """
        if self._info is None:
            self._info = self._client.topic(self._name)
            if self._info is None:
                return
        _, end = self._client.range(self._name, 0)
        if end < self._offset:
            raise SinkError(
                "SINK_TOPIC_CHANGED",
                f"Sink {self._sink}: the control topic {self._name} lost records while the sink was used",
                hint="Delete the topics of the sink, run "
                f"`taut sinks --forget {self._sink}`: the next run delivers all rows.",
                sqlstate="55000",
            )
        if end == self._offset:
            return
        for message in self._client.read(self._name, {0: self._offset}):
            self._apply(message.key().decode(), json.loads(message.value()))
        self._offset = end

    def _apply(self, key: str, value: Mapping[str, Any]) -> None:
        if key == FENCE:
            self.fence = Fence(value["fence"])
        elif key == POINTER:
            self.pointer = Pointer.from_json(value)
        elif key.startswith(_PUBLICATION):
            self._history[key] = Pointer.from_json(value)
        elif key.startswith(_CLAIM):
            self.claims[TableName.parse(key.removeprefix(_CLAIM))] = Claim.from_json(value)


def _with_texts(numbers: Mapping[str, Mapping[int, int]]) -> dict[str, dict[str, int]]:
    """Partitions as JSON has them."""
    return {topic: {str(part): number for part, number in parts.items()} for topic, parts in numbers.items()}


def _with_numbers(texts: Mapping[str, Mapping[str, int]]) -> dict[str, dict[int, int]]:
    return {topic: {int(part): number for part, number in parts.items()} for topic, parts in texts.items()}

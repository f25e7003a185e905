"""The topics of a sink: which topic a table has, whether it is still the same one, and what is in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.types import StructType

from tautochrone.errors import SinkError
from tautochrone.model.names import TableName
from tautochrone.sinks.json_rows import JsonRows, comparable, row_number
from tautochrone.sinks.kafka.client import Client, TopicInfo
from tautochrone.sinks.kafka.control import Claim, ControlTopic, Pointer
from tautochrone.sinks.kafka.options import KafkaOptions, Mode, ValueFormat
from tautochrone.sinks.kafka.parts import PartOf, part_of
from tautochrone.sinks.kafka.values import SchemaRegistry, Values, check_avro, values_of

__all__ = ["PUBLICATION_HEADER", "SINK_HEADER", "Topics"]

SINK_HEADER, PUBLICATION_HEADER = "taut-sink", "taut-publication"
"""Headers of each record: the sink's transactional id, and the number of the commit."""


class Topics:
    """See the module docstring."""

    def __init__(self, sink: str, client: Client, options: KafkaOptions, control: ControlTopic) -> None:
        self._sink = sink
        self._client = client
        self._options = options
        self._control = control
        self._encoders: dict[TableName, tuple[Claim, JsonRows]] = {}
        self._values: dict[TableName, tuple[Claim, Values]] = {}
        self._registry: SchemaRegistry | None = None
        if options.value_format is ValueFormat.AVRO:
            self._registry = SchemaRegistry(sink, options)

    # -- claims -----------------------------------------------------------------------------------

    def claim(self, table: TableName, schema: Any, key: Sequence[str]) -> Claim:
        """The claim of a table; its topic is created if it is missing.

        Raises:
            SinkError: `SINK_NAME_TAKEN`, the topic has records of somebody else; `SINK_TOPIC_CHANGED`,
                `SINK_TOPIC_RETENTION`; `SINK_OPTION_INVALID`; `SINK_TYPE_UNSUPPORTED`.
        """
        JsonRows(self._sink, table, schema, key)
        check_avro(self._sink, table, schema, self._options)
        topic = self._options.topic_of(table)
        claim = self._control.claims.get(table)
        starts: Mapping[int, int]
        if claim is None:
            starts, topic_id = self._new_topic(table, topic)
        else:
            self._require_same(table, claim, key)
            starts, topic_id, topic = claim.starts, claim.topic_id, claim.topic
        return Claim(
            topic=topic,
            topic_id=topic_id,
            mode=str(self._options.mode),
            key=tuple(key),
            starts=starts,
            schema=schema.jsonValue(),
            value_format=str(self._options.value_format),
        )

    def encoder(self, table: TableName) -> JsonRows:
        """How rows of a claimed table are written."""
        claim = self._control.claims[table]
        known = self._encoders.get(table)
        if known is None or known[0] != claim:
            schema = StructType.fromJson(dict(claim.schema))
            known = self._encoders[table] = (claim, JsonRows(self._sink, table, schema, claim.key))
        return known[1]

    def values(self, table: TableName) -> Values:
        """How the values of a claimed table's topic are written."""
        claim = self._control.claims[table]
        known = self._values.get(table)
        if known is None or known[0] != claim:
            known = self._values[table] = (claim, values_of(self._sink, table, claim, self._registry))
        return known[1]

    def close(self) -> None:
        if self._registry is not None:
            self._registry.close()

    def _new_topic(self, table: TableName, topic: str) -> tuple[dict[int, int], str]:
        for other, claim in self._control.claims.items():
            if claim.topic == topic:
                raise SinkError(
                    "SINK_OPTION_INVALID",
                    f"Sink {self._sink} would write {other} and {table} into the one topic {topic}",
                    hint="Write {table} in the option topic, or declare a sink for each table.",
                    sqlstate="22023",
                )
        info = self._client.topic(topic)
        if info is None:
            is_upsert = self._options.mode is Mode.UPSERT
            config = {"cleanup.policy": "compact"} if is_upsert else {"retention.ms": "-1"}
            info = self._client.create(topic, self._options.partitions, config)
        self._require_keeps_keys(topic)
        ranges = self._client.ranges(topic, info.partitions)
        if any(low != high for low, high in ranges.values()):
            raise SinkError(
                "SINK_NAME_TAKEN",
                f"Sink {self._sink}: {table} goes to the topic {topic}, which has records that this sink did "
                "not write, or whose control topic is gone",
                hint="Give the sink another topic (option topic), or delete this one: the next run delivers "
                "all rows.",
                parameters={"sink": self._sink, "table": str(table)},
                sqlstate="42P07",
            )
        return {partition: high for partition, (_, high) in ranges.items()}, info.topic_id

    def _require_keeps_keys(self, topic: str) -> None:
        policy = self._client.setting(topic, "cleanup.policy")
        keeps = policy == "compact" or (
            policy == "delete"
            and self._client.setting(topic, "retention.ms") == "-1"
            and self._client.setting(topic, "retention.bytes") == "-1"
        )
        if self._options.mode is Mode.UPSERT and not keeps:
            raise SinkError(
                "SINK_TOPIC_RETENTION",
                f"Sink {self._sink}: the topic {topic} has cleanup.policy={policy}, which deletes rows that "
                "the table still has",
                hint="Set cleanup.policy=compact on the topic.",
                sqlstate="55000",
            )

    def _require_same(self, table: TableName, claim: Claim, key: Sequence[str]) -> None:
        options = self._options
        before = (claim.topic, claim.mode, claim.key, claim.value_format)
        after = (options.topic_of(table), str(options.mode), tuple(key), str(options.value_format))
        if before != after:
            raise SinkError(
                "SINK_OPTION_INVALID",
                f"Sink {self._sink}: {table} was delivered with topic, mode, key and format {before}, "
                f"and now has {after}",
                hint="Set them back, or give the sink another topic and another control_topic, and run "
                f"`taut sinks --forget {self._sink}`.",
                sqlstate="22023",
            )
        self.require_there(table, claim)

    def require_there(self, table: TableName, claim: Claim) -> TopicInfo:
        """Refuse a topic that is not the one that was claimed.

        Raises:
            SinkError: `SINK_TOPIC_CHANGED`
        """
        info = self._client.topic(claim.topic)
        if info is None:
            problem = "is gone"
        elif info.topic_id != claim.topic_id:
            problem = "was deleted and created again"
        elif claim.mode == Mode.UPSERT and info.partitions != len(claim.starts):
            # The same key would be in two partitions.
            problem = f"has {info.partitions} partitions instead of {len(claim.starts)}"
        else:
            return info
        raise SinkError(
            "SINK_TOPIC_CHANGED",
            f"Sink {self._sink}: the topic {claim.topic} of {table} {problem}",
            hint=f"Delete all topics of the sink with its control topic {self._options.control_topic}, run "
            f"`taut sinks --forget {self._sink}`: the next run delivers all rows.",
            parameters={"sink": self._sink, "table": str(table)},
            sqlstate="55000",
        )

    def require_no_other_writer(self) -> None:
        """Refuse topics into which somebody else wrote since the pointer.

        Raises:
            SinkError: `SINK_NAME_TAKEN`, `SINK_TOPIC_CHANGED`
        """
        pointer = self._control.pointer
        for table, claim in self._control.claims.items():
            info = self.require_there(table, claim)
            ends = {} if pointer is None else pointer.ends.get(claim.topic, {})
            starts = {
                partition: ends.get(partition, claim.starts.get(partition, 0))
                for partition in range(info.partitions)
            }
            for message in self._client.read(claim.topic, starts):
                self._publication(claim, message)

    # -- content ----------------------------------------------------------------------------------

    def part_of(self, table: TableName) -> PartOf:
        """How an audit assigns rows of the table to parts of its topic."""
        claim = self._control.claims[table]
        partitions = self.require_there(table, claim).partitions
        return part_of(self._options.client, claim.key, len(claim.starts), partitions)

    def lost_records(self, table: TableName, pointer: Pointer) -> dict[int, int]:
        """By partition how many records Kafka has removed of those up to a commit, without partitions that
        lack none; -1: an older release wrote to the topic and did not count."""
        claim = self._control.claims[table]
        partitions = range(self.require_there(table, claim).partitions)
        if claim.topic not in pointer.totals:
            return dict.fromkeys(partitions, -1) if claim.topic in pointer.ends else {}
        totals = pointer.totals[claim.topic]
        counts = Counter(message.partition() for _, message in self._messages(table, pointer.publication))
        lost = {partition: totals.get(partition, 0) - counts[partition] for partition in partitions}
        return {partition: number for partition, number in lost.items() if number > 0}

    def keys(self, table: TableName, publication: int) -> dict[str, tuple[int, int]]:
        """Of a topic of newest values the hash of each key's row, and its partition."""
        decode = self.values(table).decode
        newest: dict[str, tuple[int, int | None, int]] = {}
        for written, message in self._messages(table, publication):
            key, value = message.key().decode(), message.value()
            number = None if value is None else row_number(comparable(decode(value)))
            if written >= newest.get(key, (0, None, 0))[0]:
                newest[key] = (written, number, message.partition())
        return {
            key: (number, partition) for key, (_, number, partition) in newest.items() if number is not None
        }

    def changes(self, table: TableName, publication: int) -> Iterator[tuple[Mapping[str, Any], int, int]]:
        """Of a change log each row that came (1) or went (-1), and the partition."""
        decode = self.values(table).decode
        for _, message in self._messages(table, publication):
            envelope = decode(message.value())
            for row, sign in ((envelope["before"], -1), (envelope["after"], 1)):
                if row is not None:
                    yield row, sign, message.partition()

    def rows(self, table: TableName, publication: int) -> tuple[Counter[str], dict[str, Mapping[str, Any]]]:
        """The rows of a topic: copies by text, and the row by text. All of them are in memory."""
        copies: Counter[str] = Counter()
        rows: dict[str, Mapping[str, Any]] = {}
        if self._control.claims[table].mode == Mode.CHANGELOG:
            for row, sign, _ in self.changes(table, publication):
                text = comparable(row)
                copies[text] += sign
                rows[text] = row
        else:
            decode = self.values(table).decode
            newest: dict[str, tuple[int, Mapping[str, Any] | None]] = {}
            for written, message in self._messages(table, publication):
                key, value = message.key().decode(), message.value()
                if written >= newest.get(key, (0, None))[0]:
                    newest[key] = (written, None if value is None else decode(value))
            rows = {comparable(row): row for _, row in newest.values() if row is not None}
            copies.update(rows.keys())
        return Counter({text: count for text, count in copies.items() if count}), rows

    def _messages(self, table: TableName, publication: int) -> Iterator[tuple[int, Any]]:
        claim = self._control.claims[table]
        info = self.require_there(table, claim)
        ranges = self._client.ranges(claim.topic, info.partitions)
        for partition, (low, _) in ranges.items():
            if low > claim.starts.get(partition, 0):
                raise SinkError(
                    "SINK_TOPIC_RETENTION",
                    f"Sink {self._sink}: records of {table} before offset {low} were deleted from partition "
                    f"{partition} of {claim.topic}, so its rows cannot be told from the topic",
                    hint="Set retention.ms=-1 on the topic to audit it. To get all rows again, delete all "
                    f"topics of the sink and run `taut sinks --forget {self._sink}`.",
                    parameters={"sink": self._sink, "table": str(table)},
                    sqlstate="55000",
                )
        starts = {partition: low for partition, (low, _) in ranges.items()}
        for message in self._client.read(claim.topic, starts):
            written = self._publication(claim, message)
            if written <= publication:
                yield written, message

    def _publication(self, claim: Claim, message: Any) -> int:
        headers = dict(message.headers() or [])
        if headers.get(SINK_HEADER) != self._options.transactional_id.encode():
            raise SinkError(
                "SINK_NAME_TAKEN",
                f"Sink {self._sink}: somebody else wrote the record at offset {message.offset()} of "
                f"partition {message.partition()} of {claim.topic}",
                hint="Stop the other writer. Then delete all topics of the sink with its control topic "
                f"{self._options.control_topic}, run `taut sinks --forget {self._sink}`: the next run "
                "delivers all rows.",
                parameters={"sink": self._sink, "topic": claim.topic},
                sqlstate="42P07",
            )
        return int(headers[PUBLICATION_HEADER])

"""The topics of a sink: which topic a table has, how its rows are written, and what is against a topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql.types import StructType

from tautochrone.errors import SinkError
from tautochrone.model.names import TableName
from tautochrone.sinks.json_rows import JsonRows
from tautochrone.sinks.kafka.client import Client, TopicInfo
from tautochrone.sinks.kafka.control import Claim, ControlTopic
from tautochrone.sinks.kafka.options import (
    KafkaOptions,
    Mode,
    ValueFormat,
    kafka_options,
    topic_names_collide,
)
from tautochrone.sinks.kafka.values import SchemaRegistry, Values, check_avro, values_of

__all__ = [
    "Topics",
    "check_table",
    "foreign_record_error",
    "records_lost_error",
    "require_kept",
    "row_too_large_error",
    "topic_changed_error",
]

_COMPACTED = {"cleanup.policy": "compact"}
_ENDLESS = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
_CLIENT_BYTES = 1_000_000
"""The default of `message.max.bytes` in Kafka's client."""
_OVERHEAD_BYTES = 512
"""More than what Kafka adds to key and value of a record: its batch, and the headers."""


class Topics:
    """See the module docstring."""

    def __init__(self, sink: str, client: Client, options: KafkaOptions, control: ControlTopic) -> None:
        self._sink = sink
        self._client = client
        self._options = options
        self._control = control
        self._encoders: dict[TableName, tuple[Claim, JsonRows]] = {}
        self._values: dict[TableName, tuple[Claim, Values]] = {}
        self._largest: dict[TableName, int] = {}
        self._registry: SchemaRegistry | None = None
        if options.value_format is ValueFormat.AVRO:
            self._registry = SchemaRegistry(sink, options)

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
        if claim is None:
            self._require_free(table, topic)
        else:
            self._require_same(table, claim, key)
        info = self._client.topic(topic)
        if info is None:
            config = _COMPACTED if self._options.mode is Mode.UPSERT else _ENDLESS
            info = self._client.create(topic, self._options.partitions, config)
        settings = self._client.settings([topic])[topic]
        require_kept(self._sink, topic, self._options.mode, settings)
        self._largest[table] = self._largest_row(settings)
        if claim is None or info.topic_id != claim.topic_id:
            starts: Mapping[int, int] = self._starts_of_empty(table, topic, info)
        else:
            starts = claim.starts
            self.offset_ranges(table, claim, info)
        return Claim(
            topic=topic,
            topic_id=info.topic_id,
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

    def largest_row(self, table: TableName) -> int | None:
        """How many bytes key and value of a record may have, as of `claim`; None: not known."""
        return self._largest.get(table)

    def require_topic(self, table: TableName, claim: Claim) -> TopicInfo:
        """Refuse a topic that is not the one that was claimed.

        Raises:
            SinkError: `SINK_TOPIC_CHANGED`
        """
        info = self._client.topic(claim.topic)
        if info is None:
            raise topic_changed_error(self._sink, table, claim.topic, "is gone")
        if info.topic_id != claim.topic_id:
            raise topic_changed_error(self._sink, table, claim.topic, "was deleted and created again")
        return info

    def offset_ranges(self, table: TableName, claim: Claim, info: TopicInfo) -> dict[int, tuple[int, int]]:
        """By partition where the records begin, and the end of what is decided.

        Raises:
            SinkError: `SINK_TOPIC_CHANGED`, it has other partitions; `SINK_TOPIC_RETENTION`, records that
                tell rows were deleted. Sending the rows again would not help readers that know older ones:
                they would not hear of a row that goes and is not in the topic.
        """
        if claim.mode == Mode.UPSERT and info.partitions != len(claim.starts):
            # The same key would be in two partitions.
            problem = f"has {info.partitions} partitions instead of {len(claim.starts)}"
            raise topic_changed_error(self._sink, table, claim.topic, problem)
        ranges = self._client.offset_ranges(claim.topic, info.partitions)
        for partition, (low, _) in ranges.items():
            if low > claim.starts.get(partition, 0):
                problem = f"lacks its records before offset {low}"
                raise records_lost_error(self._sink, table, claim.topic, partition, problem)
        return ranges

    def close(self) -> None:
        if self._registry is not None:
            self._registry.close()

    # -- claims -----------------------------------------------------------------------------------

    def _require_free(self, table: TableName, topic: str) -> None:
        claimed = {str(other): claim.topic for other, claim in self._control.claims.items()}
        for other, name in {**claimed, "its own records": self._control.name}.items():
            if topic_names_collide(topic, name):
                raise SinkError(
                    "SINK_OPTION_INVALID",
                    f"Sink {self._sink} would write {table} into the topic {topic}, and {other} into {name}: "
                    "Kafka takes dots and underscores in names of topics for the same",
                    hint="Write {table} in the option topic, or declare a sink for each table, with topics "
                    "and a control topic of its own.",
                    sqlstate="22023",
                )

    def _starts_of_empty(self, table: TableName, topic: str, info: TopicInfo) -> dict[int, int]:
        ranges = self._client.offset_ranges(topic, info.partitions)
        if any(low != high for low, high in ranges.values()):
            raise _topic_taken_error(self._sink, table, topic)
        return {partition: high for partition, (_, high) in ranges.items()}

    def _largest_row(self, settings: Mapping[str, str]) -> int:
        client = self._options.client
        largest = int(client.get("message.max.bytes", _CLIENT_BYTES))
        if client.get("compression.type", client.get("compression.codec", "none")) == "none":
            largest = min(largest, int(settings["max.message.bytes"]))
        return largest - _OVERHEAD_BYTES

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


def topic_changed_error(sink: str, table: TableName, topic: str, problem: str) -> SinkError:
    """The refusal of a topic that is not what the sink left; `problem` follows its name."""
    return SinkError(
        "SINK_TOPIC_CHANGED",
        f"Sink {sink}: the topic {topic} of {table} {problem}",
        hint=_delete(topic),
        parameters={"sink": sink, "table": str(table)},
        sqlstate="55000",
    )


def records_lost_error(sink: str, table: TableName, topic: str, partition: int, problem: str) -> SinkError:
    """The refusal to tell the rows of a table from a topic that lacks records."""
    return SinkError(
        "SINK_TOPIC_RETENTION",
        f"Sink {sink}: partition {partition} of {topic} {problem}, so the rows of {table} cannot be told "
        "from it",
        hint=_delete(topic),
        parameters={"sink": sink, "table": str(table)},
        sqlstate="55000",
    )


def _topic_taken_error(sink: str, table: TableName, topic: str) -> SinkError:
    """The refusal of a topic with records that the sink does not know."""
    return SinkError(
        "SINK_NAME_TAKEN",
        f"Sink {sink}: {table} goes to the topic {topic}, which has records that this sink did not write, or "
        "whose control topic is gone",
        hint=f"Give the sink another topic (option topic). If nobody else needs it, {_delete(topic)}",
        parameters={"sink": sink, "table": str(table)},
        sqlstate="42P07",
    )


def foreign_record_error(sink: str, table: TableName, topic: str, partition: int, offset: int) -> SinkError:
    """The refusal of a topic into which somebody else writes."""
    return SinkError(
        "SINK_NAME_TAKEN",
        f"Sink {sink}: somebody else wrote the record at offset {offset} of partition {partition} of {topic}",
        hint=f"Stop the other writer. Then {_delete(topic)}",
        parameters={"sink": sink, "table": str(table), "topic": topic},
        sqlstate="42P07",
    )


def row_too_large_error(sink: str, table: TableName, row: str, size_bytes: int) -> SinkError:
    """The refusal of a row that no record of the topic can have; nothing of the delivery was sent."""
    return SinkError(
        "SINK_VALUE_UNSUPPORTED",
        f"Sink {sink}: the row {row} of {table} needs a record of {size_bytes} bytes, which is more than the "
        "topic or the client takes",
        hint="Raise max.message.bytes of the topic, and the sink's option kafka.message.max.bytes, whose "
        "default is 1000000. Or shorten such values in the query of the dataset.",
        parameters={"sink": sink, "table": str(table)},
        sqlstate="22000",
    )


def require_kept(sink: str, topic: str, mode: Mode, settings: Mapping[str, str]) -> None:
    """Refuse settings by which a topic loses rows that its table has.

    Raises:
        SinkError: `SINK_TOPIC_RETENTION`.
    """
    policy = settings["cleanup.policy"]
    is_endless = policy == "delete" and settings["retention.ms"] == settings["retention.bytes"] == "-1"
    if is_endless or (policy == "compact" and mode is Mode.UPSERT):
        return
    endless = "cleanup.policy=delete, retention.ms=-1 and retention.bytes=-1"
    raise SinkError(
        "SINK_TOPIC_RETENTION",
        f"Sink {sink}: the topic {topic} has cleanup.policy={policy}, retention.ms="
        f"{settings['retention.ms']} and retention.bytes={settings['retention.bytes']}: it deletes rows that "
        "the table still has",
        hint=f"Set {'cleanup.policy=compact' if mode is Mode.UPSERT else endless} on the topic.",
        parameters={"sink": sink, "topic": topic},
        sqlstate="55000",
    )


def _delete(topic: str) -> str:
    return f"delete the topic {topic}: the next run creates it, and delivers all rows of the table."


def check_table(
    name: str, options: Mapping[str, str], table: TableName, schema: Any, key: Sequence[str]
) -> str:
    """What a table is called in a sink of these options; see `adapters.check_mirrored_table`.

    Raises:
        SinkError: as `Topics.claim`, as far as it needs no server.
    """
    read_options = kafka_options(name, options)
    JsonRows(name, table, schema, key)
    check_avro(name, table, schema, read_options)
    return read_options.topic_of(table)

"""The options of a sink of the format `kafka-transactional`, the names of its topics, and how it is opened.

Two tables of a sink never share a topic, by construction. A plain name is the database and the table with `.`
between them, without the database `default`. It is unique as long as no part has a `.` in it or `_` at its
end. Every other name (also one that is too long or has characters that Kafka does not take) ends in a hash of
the table's whole name and `_`, at which no plain name ends.

Kafka takes `.` and `_` in names of topics for the same: it refuses a topic `a.b` beside `a_b`. See
`topic_names_collide`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlsplit

from tautochrone.model.names import TableName
from tautochrone.model.sink import Sink
from tautochrone.sinks.common.options import (
    invalid_option_error,
    needs_package,
    positive_number,
    require_known,
    require_option,
)

__all__ = [
    "DEFAULT_PARTITIONER",
    "KafkaOptions",
    "Mode",
    "ValueFormat",
    "examine_kafka_sink",
    "is_topic_name",
    "kafka_options",
    "open_kafka_sink",
    "topic_name",
    "topic_names_collide",
]

DEFAULT_PARTITIONER = "murmur2_random"
"""That of Kafka's Java client: programs that write or join by key agree with it."""
_PREFIX = "kafka."
_NAMES = frozenset(
    {
        "topic",
        "control_topic",
        "mode",
        "partitions",
        "replication_factor",
        "chunk_rows",
        "key",
        "value.format",
        "schema.registry.url",
        "schema.registry.user",
        "schema.registry.password",
    }
)
_OWN_PROPERTIES = frozenset(
    {
        "acks", "auto.offset.reset", "enable.auto.commit", "enable.idempotence", "enable.partition.eof",
        "group.id", "isolation.level", "request.required.acks", "transactional.id",
    }
)  # fmt: skip
"""Properties of Kafka's client on which exactly once depends."""


class Mode(StrEnum):
    """What the records of a topic say."""

    UPSERT = "upsert"
    CHANGELOG = "changelog"


class ValueFormat(StrEnum):
    """How values are written."""

    JSON = "json"
    AVRO = "avro"


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaOptions:
    """Options with their types.

    Attributes:
        client: properties of Kafka's client, for producers, consumers and the administration.
        topic: the name of a table's topic; `{sink}` and `{table}` stand for their names.
        control_topic: has the fence, the pointer and the claimed topics of this sink.
        partitions: of topics that the sink creates.
        replication_factor: of the same; -1 is the default of the cluster.
        registry_url: of the schema registry, which Avro needs.
    """

    client: Mapping[str, str] = field(repr=False)
    topic: str
    control_topic: str
    mode: Mode = Mode.UPSERT
    partitions: int = 1
    replication_factor: int = -1
    chunk_rows: int = 100_000
    value_format: ValueFormat = ValueFormat.JSON
    registry_url: str = ""
    registry_user: str = ""
    registry_password: str = field(default="", repr=False)

    def topic_of(self, table: TableName) -> str:
        return topic_name(self.topic, table)

    @property
    def needs_key(self) -> bool:
        """Whether columns must identify a row."""
        return self.mode is Mode.UPSERT

    @property
    def transactional_id(self) -> str:
        """Names this sink in the cluster: a control topic has one owner, so no two sinks have the same."""
        return f"taut.{self.control_topic}"


def kafka_options(name: str, options: Mapping[str, str]) -> KafkaOptions:
    """Read the options of a sink.

    Raises:
        SinkError: `SINK_OPTION_MISSING`, `SINK_OPTION_INVALID`.

    Example:
        >>> options = {"kafka.bootstrap.servers": "broker:9092", "topic": "shop.{table}"}
        >>> kafka_options("mirror", options).control_topic
        'mirror.taut-control'
    """
    hint = "Write host:port of one or more brokers, with commas between."
    require_option(name, "kafka-transactional", options, f"{_PREFIX}bootstrap.servers", hint)
    require_known(name, options, _NAMES, (_PREFIX,), "; properties of Kafka's client begin with kafka.")
    client = {
        option.removeprefix(_PREFIX): value for option, value in options.items() if option.startswith(_PREFIX)
    }
    for property_name in sorted(_OWN_PROPERTIES & client.keys()):
        hint = "Leave it out: the sink sets it itself."
        raise invalid_option_error(name, f"cannot take kafka.{property_name}", hint)
    mode = options.get("mode", Mode.UPSERT)
    if mode not in tuple(Mode):
        raise invalid_option_error(name, f"has mode = {mode}", "Write upsert or changelog.")
    topic = options.get("topic", "{sink}.{table}").replace("{sink}", name)
    control_topic = options.get("control_topic", "{sink}.taut-control").replace("{sink}", name)
    for option, text in (("topic", topic), ("control_topic", control_topic)):
        # The longest stand-in is the hash of a name with some letters of it.
        if not is_topic_name(text.replace(_TABLE, "t" * 40) if option == "topic" else text):
            raise invalid_option_error(
                name,
                f"has {option} = {text}, which is no name of a topic",
                "Kafka takes letters of ASCII, digits, dots, underscores and dashes, at most 249; {table} "
                "needs 40 of them.",
            )
    return KafkaOptions(
        client=client,
        topic=topic,
        control_topic=control_topic,
        mode=Mode(mode),
        partitions=positive_number(name, options, "partitions", 1),
        replication_factor=positive_number(name, options, "replication_factor", -1),
        chunk_rows=positive_number(name, options, "chunk_rows", 100_000),
        value_format=_value_format(name, options),
        registry_url=options.get("schema.registry.url", ""),
        registry_user=options.get("schema.registry.user", ""),
        registry_password=options.get("schema.registry.password", ""),
    )


def _value_format(name: str, options: Mapping[str, str]) -> ValueFormat:
    text = options.get("value.format", ValueFormat.JSON)
    if text not in tuple(ValueFormat):
        raise invalid_option_error(name, f"has value.format = {text}", "Write json or avro.")
    if text == ValueFormat.AVRO:
        hint = "Write the address of the schema registry, http://host:8081."
        url = urlsplit(require_option(name, "value.format = avro", options, "schema.registry.url", hint))
        if url.scheme not in ("http", "https") or not url.hostname:
            raise invalid_option_error(
                name, f"cannot read the url {url.scheme}://… of its schema registry", hint
            )
        if url.password:
            raise invalid_option_error(
                name,
                "has a password in its url",
                f'Write [sinks.{name}.options] "schema.registry.password" = {{ env = "…" }} in '
                "tautochrone.toml.",
            )
    return ValueFormat(text)


_TABLE = "{table}"
"""What stands for the name of a table in the option `topic`."""

_LONGEST = 249
_HASH_DIGITS = 16
_REFUSED = re.compile(r"[^a-zA-Z0-9._-]")


def is_topic_name(name: str) -> bool:
    """Whether Kafka takes it."""
    return 0 < len(name) <= _LONGEST and not _REFUSED.search(name) and name not in (".", "..")


def topic_names_collide(name: str, other: str) -> bool:
    """Whether Kafka refuses one of these topics beside the other, or they are one."""
    return name.replace(".", "_") == other.replace(".", "_")


def topic_name(template: str, table: TableName) -> str:
    """The name of a table's topic.

    Args:
        template: the option `topic`, in which `{table}` has room for 40 characters at least.

    Example:
        >>> topic_name("shop.{table}", TableName("lake", ("sales",), "orders"))
        'shop.sales.orders'
        >>> topic_name("shop.{table}", TableName("lake", ("default",), "sales.orders"))
        'shop.sales_orders_c7f4ebf765476f54_'
    """
    parts = [*(() if table.namespace == ("default",) else table.namespace), table.table]
    plain = ".".join(parts)
    name = template.replace(_TABLE, plain)
    if is_topic_name(name) and not any("." in part or part.endswith("_") for part in parts):
        return name
    whole_name = "\n".join((*table.namespace, table.table))
    suffix = f"_{hashlib.sha256(whole_name.encode()).hexdigest()[:_HASH_DIGITS]}_"
    stem = re.sub(r"[^a-zA-Z0-9_-]", "_", plain)
    while not is_topic_name(template.replace(_TABLE, stem + suffix)) and stem:
        stem = stem[:-1]
    return template.replace(_TABLE, stem + suffix)


def open_kafka_sink(name: str, options: Mapping[str, str]) -> Sink:
    """Open a sink. Nothing is written to the cluster.

    Raises:
        SinkError: what is wrong with the options, `SINK_PACKAGE_MISSING`, or `SINK_NOT_REACHABLE`.
    """
    parsed = kafka_options(name, options)
    with needs_package(name, "confluent-kafka", "kafka"):
        from tautochrone.sinks.kafka.sink import KafkaSink
    return KafkaSink(name, parsed)


def examine_kafka_sink(name: str, options: Mapping[str, str]) -> str:
    """Log in, and write nothing; a sentence about what answers.

    Raises:
        SinkError: as `open_kafka_sink`, and `SINK_LOGIN_REFUSED`.
    """
    parsed = kafka_options(name, options)
    with needs_package(name, "confluent-kafka", "kafka"):
        from tautochrone.sinks.kafka.client import Client, LoginRefusals
    client = Client(name, parsed, LoginRefusals())
    try:
        control = client.topic(parsed.control_topic)
    finally:
        client.close()
    exists = "is there" if control is not None else "is made by the first run"
    return f"the brokers answer; the topic {parsed.control_topic} {exists}"

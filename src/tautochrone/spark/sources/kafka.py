"""Kafka as a streaming source, read by Spark's connector, and what the connector's client library asks a
cluster about its brokers and topics."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from tautochrone.errors import IngestError, SourceUnreachableError
from tautochrone.model.source import RateLimitOptions, Unsupported
from tautochrone.spark.jvm.catalyst import kind
from tautochrone.spark.sources.batch_shares import cutting_table
from tautochrone.spark.sources.spark_source import RecordReader, SparkSource, TopicIdReader, with_field

__all__ = [
    "EARLIEST",
    "KafkaOptions",
    "KafkaRecords",
    "KafkaSource",
    "TopicIds",
    "TopicIdsRefusedError",
    "check_cluster",
]

_TIMEOUT_MS = 5_000
_CLIENT_PREFIX = "kafka."
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""The id that brokers before 2.8 return for every topic."""
_REFUSED = ("TopicAuthorizationException", "ClusterAuthorizationException", "UnsupportedVersionException")


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """The options of a read from Kafka, as Spark has them. They may contain secrets and must not be shown."""

    values: Mapping[str, str]

    @property
    def brokers(self) -> str:
        """`host:port`, several with commas."""
        return self.values.get("kafka.bootstrap.servers", "")

    @property
    def topics(self) -> frozenset[str]:
        """The topics that must exist. A pattern has none, because it may match topics later."""
        named = self.values.get("subscribe", "").split(",")
        assigned = json.loads(self.values.get("assign", "{}"))
        return frozenset(topic.strip() for topic in [*named, *assigned] if topic.strip())


def check_cluster(session: SparkSession, options: KafkaOptions) -> int:
    """Check that the cluster answers and has the topics; returns the number of its brokers.

    Each of two requests takes at most five seconds.

    Raises:
        IngestError: `KAFKA_NOT_REACHABLE`, `KAFKA_TOPIC_MISSING`.
    """
    jvm: Any = session._jvm  # noqa: SLF001
    try:
        admin = _admin(session, options)
        try:
            brokers = int(admin.describeCluster().nodes().get().size())
            existing = {str(name) for name in admin.listTopics().names().get()}
        finally:
            admin.close(jvm.java.time.Duration.ofMillis(0))
    except Py4JJavaError as error:
        raise _unreachable_error(options, error) from error
    missing = sorted(options.topics - existing)
    if missing:
        raise IngestError(
            "KAFKA_TOPIC_MISSING",
            f"Kafka at {options.brokers} has no topic {', '.join(missing)}",
            hint="create it, or correct the option `subscribe`; without the right to describe a topic "
            "it is invisible too",
        )
    return brokers


class TopicIdsRefusedError(IngestError):
    """The cluster does not return topic ids: describing them is not allowed, or it is older than 2.8."""


class TopicIds:
    """Reads the ids of a cluster's topics (KIP-516) with one client that stays open.

    Args:
        session: the client runs in its JVM.
        options: the options of a read from the cluster.
    """

    def __init__(self, session: SparkSession, options: KafkaOptions) -> None:
        self._session, self._options = session, options
        self._jvm: Any = session._jvm  # noqa: SLF001
        self._client: Any = None

    def of(self, topics: Collection[str]) -> dict[str, str]:
        """Id by topic, without topics that do not exist. One request to the cluster.

        Raises:
            TopicIdsRefusedError: `KAFKA_TOPIC_IDS_REFUSED`.
            IngestError: `KAFKA_NOT_REACHABLE` (retryable).
        """
        ids = {topic: str(description.topicId()) for topic, description in self._described(topics).items()}
        if _NO_ID in ids.values():
            raise TopicIdsRefusedError(
                "KAFKA_TOPIC_IDS_REFUSED",
                f"Kafka at {self._options.brokers} gives its topics no ids: brokers do from 2.8 on",
            )
        return ids

    def earliest(self, topics: Collection[str]) -> dict[str, dict[str, int]]:
        """Topic → partition → the first offset that the partition still has. Raises the errors of `of`."""
        admin = self._jvm.org.apache.kafka.clients.admin
        partition = self._jvm.org.apache.kafka.common.TopicPartition
        requested = self._jvm.java.util.HashMap()
        for topic, description in self._described(topics).items():
            for partition_info in description.partitions():
                requested.put(partition(topic, partition_info.partition()), admin.OffsetSpec.earliest())
        try:
            result = self._admin().listOffsets(requested).all().get()
        except Py4JJavaError as error:
            raise self._kafka_error(error) from error
        offsets: dict[str, dict[str, int]] = {}
        for topic_partition in result:
            offsets.setdefault(str(topic_partition.topic()), {})[str(topic_partition.partition())] = int(
                result[topic_partition].offset()
            )
        return offsets

    def close(self) -> None:
        """Close the client; may be called again. The next request opens a new one."""
        if self._client is not None:
            self._client.close(self._jvm.java.time.Duration.ofMillis(0))
            self._client = None

    def _described(self, topics: Collection[str]) -> dict[str, JavaObject]:
        if not topics:
            return {}
        names = self._jvm.java.util.ArrayList()
        for topic in sorted(topics):
            names.add(topic)
        descriptions = {}
        try:
            futures = self._admin().describeTopics(names).topicNameValues()
        except Py4JJavaError as error:
            raise self._kafka_error(error) from error
        for topic in sorted(topics):
            try:
                descriptions[topic] = futures[topic].get()
            except Py4JJavaError as error:
                if _cause(error) != "UnknownTopicOrPartitionException":
                    raise self._kafka_error(error) from error
        return descriptions

    def _admin(self) -> JavaObject:
        if self._client is None:
            self._client = _admin(self._session, self._options)
        return self._client

    def _kafka_error(self, error: Py4JJavaError) -> IngestError:
        if _cause(error) not in _REFUSED:
            return _unreachable_error(self._options, error)
        return TopicIdsRefusedError(
            "KAFKA_TOPIC_IDS_REFUSED",
            f"Kafka at {self._options.brokers} refuses to describe topics: "
            f"{_innermost(error.java_exception)}",
        )


def _admin(session: SparkSession, options: KafkaOptions) -> JavaObject:
    """A client that waits at most `_TIMEOUT_MS` for an answer. The caller closes it."""
    jvm: Any = session._jvm  # noqa: SLF001
    settings = jvm.java.util.Properties()
    for key, value in options.values.items():
        if key.startswith(_CLIENT_PREFIX):
            settings.setProperty(key.removeprefix(_CLIENT_PREFIX), value)
    settings.setProperty("default.api.timeout.ms", str(_TIMEOUT_MS))
    settings.setProperty("request.timeout.ms", str(_TIMEOUT_MS))
    return jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)


def _unreachable_error(options: KafkaOptions, error: Py4JJavaError) -> SourceUnreachableError:
    return SourceUnreachableError(
        "KAFKA_NOT_REACHABLE",
        f"No answer from Kafka at {options.brokers}: {_innermost(error.java_exception)}",
        hint="is the broker up, and does it advertise an address that this machine reaches "
        "(advertised.listeners)? Secured ones need kafka.security.protocol and its kin as options",
        retryable=True,
    )


def _cause(error: Py4JJavaError) -> str:
    exception = error.java_exception
    while exception.getCause() is not None:
        exception = exception.getCause()
    return str(exception.getClass().getSimpleName())


def _innermost(exception: JavaObject) -> str:
    while exception.getCause() is not None:
        exception = exception.getCause()
    return " ".join(str(exception.getMessage() or exception.getClass().getSimpleName()).split())


# -- the source ------------------------------------------------------------------------------------


EARLIEST = -2
"""Spark's number for the first offset that a partition still has."""

_OPTIONS_OF_STREAM_ONLY = (
    "subscribe", "subscribepattern", "assign", "startingoffsets", "endingoffsets", "startingtimestamp",
    "endingtimestamp", "startingoffsetsbytimestamp", "endingoffsetsbytimestamp", "maxoffsetspertrigger",
    "minoffsetspertrigger", "maxtriggerdelay", "includeheaders",
)  # fmt: skip

_OPTIONS_OF_TASKS = ("minpartitions", "maxrecordsperpartition")
"""By these the user decides which tasks read a batch."""
_FETCH_OPTIONS = ("kafka.fetch.max.wait.ms", "kafka.fetch.min.bytes")
_FETCH_WAIT_MS = "10"
"""After each fetch the consumer asks for what follows, and Spark for the partition's ends. A broker answers a
connection in order: at the end of a partition, where nothing follows yet, the second question would wait for
the first, by default for 500 ms in each partition of each batch."""
_POLL_OPTION = "kafka.max.poll.records"
_POLL_RECORDS = "10000"
"""Spark asks for the partition's ends after each poll: two requests, by default for each 500 records. A poll
gives no more than was fetched, 1 MB by default, so large records do not take more memory."""


class KafkaSource(SparkSource):
    """Topics of one cluster, read as a stream. (Spark does not expose the options of batch reads.)"""

    label = "Kafka topics"
    limits = RateLimitOptions(("maxOffsetsPerTrigger",))

    @classmethod
    def reads(cls, leaf: JavaObject) -> bool:
        return kind(leaf) == "StreamingRelationV2" and str(leaf.sourceName()).lower() == "kafka"

    @property
    def read(self) -> KafkaOptions:
        """The options of the read."""
        return KafkaOptions(self.options())

    def input_ids(self) -> frozenset[str]:
        read = self.read
        brokers = ",".join(sorted(part.strip() for part in read.brokers.split(",")))
        topics = read.topics or {f"pattern {read.values.get('subscribePattern', '')}"}
        part = "partitions of " if "assign" in read.values else ""
        return frozenset(f"topic {part}{topic} of {brokers}" for topic in topics)

    def record_reader(self, session: SparkSession) -> RecordReader | Unsupported:
        return KafkaRecords(session, self.read)

    def topic_ids(self, session: SparkSession) -> TopicIdReader | Unsupported:
        return TopicIds(session, self.read)

    def leaving_out(self, session: SparkSession) -> Mapping[str, str]:
        del session
        return {"failOnDataLoss": "false"} if self.may_lose_records() else {}

    def may_lose_records(self) -> bool:
        options = {name.lower(): value for name, value in self.options().items()}
        return options.get("failondataloss", "true").strip().lower() == "false"

    def topics(self) -> frozenset[str]:
        return self.read.topics

    def shares_batches(self) -> bool:
        return not self._given(_OPTIONS_OF_TASKS)

    def prepared(self, session: SparkSession) -> JavaObject:
        """The leaf whose consumers don't wait at the end of a partition and take many records at a time, and
        whose batches are shared among tasks, unless the reader's options say otherwise."""
        leaf = self.leaf
        options = {} if self._given(_FETCH_OPTIONS) else {_FETCH_OPTIONS[0]: _FETCH_WAIT_MS}
        if not self._given((_POLL_OPTION,)):
            options[_POLL_OPTION] = _POLL_RECORDS
        if options:
            leaf = self.with_options(session, options, ())
        if self.shares_batches():
            leaf = leaf.copy(*with_field(leaf, "table", cutting_table(leaf.table())))
        return leaf

    def _given(self, options: Collection[str]) -> bool:
        return any(name.lower() in options for name in self.options())


class KafkaRecords:
    """Reads records of a topic again.

    Args:
        session: the session in which the flow's query was evaluated.
        read: the options of the stream.
    """

    def __init__(self, session: SparkSession, read: KafkaOptions) -> None:
        self._session = session
        self._read = read

    def read(self, starts: str, ends: str) -> DataFrame:
        """See `RecordReader`. A partition without a start was first seen in this batch, so it is read from
        its earliest offset."""
        first: dict[str, dict[str, int]] = json.loads(starts)
        last: dict[str, dict[str, int]] = json.loads(ends)
        begin = {
            topic: {part: first.get(topic, {}).get(part, EARLIEST) for part in parts}
            for topic, parts in last.items()
        }
        partitions = {topic: sorted(int(part) for part in parts) for topic, parts in last.items()}
        options: dict[str, Any] = {
            key: value
            for key, value in self._read.values.items()
            if key.lower() not in _OPTIONS_OF_STREAM_ONLY
        }
        reader = self._session.read.format("kafka").options(**options)
        reader = reader.option("assign", json.dumps(partitions)).option("includeHeaders", "true")
        reader = reader.option("startingOffsets", json.dumps(begin))
        return reader.option("endingOffsets", json.dumps(last)).load().localCheckpoint(eager=True)

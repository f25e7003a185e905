"""Kafka's client as the sink uses it: errors as `SinkError`, a transactional producer, topics, reading."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from tautochrone.errors import SinkError
from tautochrone.sinks.common.errors import login_refused_error, rights_missing_error
from tautochrone.sinks.kafka.options import DEFAULT_PARTITIONER, KafkaOptions

__all__ = [
    "Client",
    "LoginRefusals",
    "ProducerLostError",
    "ProducerSession",
    "TopicInfo",
    "kafka_errors",
    "new_producer",
]

_log = logging.getLogger(__name__)
_TIMEOUT_S = 30.0
_READ_TIMEOUT_S = 60.0
_LOST = frozenset(
    {
        KafkaError._FENCED,  # noqa: SLF001
        KafkaError._FATAL,  # noqa: SLF001
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
    }
)
_UNREACHABLE = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
        KafkaError._TRANSPORT,  # noqa: SLF001
        KafkaError._RESOLVE,  # noqa: SLF001
        KafkaError._TIMED_OUT,  # noqa: SLF001
    }
)
_LOGIN_REFUSED = frozenset(
    {
        KafkaError._AUTHENTICATION,  # noqa: SLF001
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
    }
)
_RIGHTS_MISSING = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
_HINTS = {
    KafkaError.MSG_SIZE_TOO_LARGE: "Raise max.message.bytes of the topic, or lower the option "
    "kafka.batch.size below it: records are sent in batches.",
    KafkaError.TOPIC_EXCEPTION: "Kafka refuses a topic whose name differs from that of another one in dots "
    "and underscores only. Set the options topic and control_topic.",
}
_CUT = ("Local: ", "Disconnected", "Connection closed")
"""In the text of a log-in that failed because the connection was cut, as by a broker that restarts."""
_REPORT_AGAIN_S = 60.0


class _OncePerMinute(logging.Filter):
    """The client logs each attempt to connect, ten in a second; the error of the delivery says the same.
    What it tries again by itself, such as a coordinator that is still loading, is no news at all."""

    def __init__(self) -> None:
        super().__init__()
        self._reported: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage().partition(" (after ")[0]
        if text.endswith(": retrying"):
            return False
        now = time.monotonic()
        reported = {t: at for t, at in self._reported.items() if now - at < _REPORT_AGAIN_S}
        is_new = text not in reported
        self._reported = {**reported, text: now} if is_new else reported
        return is_new


_log.addFilter(_OncePerMinute())


class ProducerLostError(Exception):
    """The producer can do nothing more: another one has its transactional id, or the broker forgot it."""


class LoginRefusals:
    """The property `error_cb` of all clients of a sink: only there they say that a broker refuses their user
    or password. The client itself goes on trying, and what it was asked for ends in a timeout."""

    def __init__(self) -> None:
        self._text = ""
        self._refused_at = -float("inf")

    def __call__(self, error: KafkaError) -> None:
        if _is_login_refused(error):
            self._text, self._refused_at = error.str(), time.monotonic()

    def since(self, monotonic_s: float) -> str:
        """What a broker answered to a log-in after that time; empty: it refused none."""
        return self._text if self._refused_at >= monotonic_s else ""


def _is_login_refused(error: KafkaError) -> bool:
    return error.code() in _LOGIN_REFUSED and not any(text in error.str() for text in _CUT)


@contextmanager
def kafka_errors(
    sink: str, refusals: LoginRefusals | None = None, serve: Callable[[], object] = lambda: None
) -> Iterator[None]:
    """Raise errors of Kafka's client as errors of the sink.

    Args:
        refusals: of the same client.
        serve: lets the client call it.

    Raises:
        ProducerLostError, SinkError
    """
    started = time.monotonic()
    try:
        yield
    except SystemError as error:
        # A fatal error is raised within a callback; the client can lose it when it logs right after, and then
        # returns from its call without a result and without an exception.
        raise ProducerLostError("the client lost its fatal error; the log has it") from error
    except KafkaException as error:
        cause = error.args[0]
        if not isinstance(cause, KafkaError):
            raise
        refused = cause.str() if _is_login_refused(cause) else ""
        if cause.code() in _UNREACHABLE and refusals is not None:
            serve()
            refused = refusals.since(started)
        raise _error_of(sink, cause, refused) from error


def _error_of(sink: str, cause: KafkaError, refused: str) -> Exception:
    """
    Args:
        refused: what a broker answered to a log-in; empty: it refused none.
    """
    if cause.code() in _RIGHTS_MISSING:
        return rights_missing_error(
            f"Sink {sink}",
            "Kafka",
            cause.str(),
            needed="The user needs rights on the topics, the transactional id and the group of the sink.",
        )
    if refused:
        settings = "the options kafka.security.protocol and kafka.sasl.*"
        return login_refused_error(f"Sink {sink}", "Kafka", refused, settings=settings)
    if cause.code() in _LOST or cause.fatal():
        return ProducerLostError(cause.str())
    if cause.code() in _UNREACHABLE or cause.code() in _LOGIN_REFUSED:
        return SinkError(
            "SINK_NOT_REACHABLE",
            f"Sink {sink}: no broker answers ({cause.str()})",
            hint="See the options kafka.bootstrap.servers and kafka.security.protocol.",
            retryable=True,
        )
    return SinkError(
        "SINK_KAFKA_FAILED",
        f"Sink {sink}: Kafka answers {cause.name()}: {cause.str()}",
        hint=_HINTS.get(cause.code(), "The name of the error is in Kafka's documentation of its protocol."),
        # Also where Kafka says no: that is about this producer, and the next try has a new one.
        retryable=True,
        parameters={"sink": sink},
    )


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """What a topic is: the id changes when it is deleted and created again."""

    topic_id: str
    partitions: int


def new_producer(options: KafkaOptions, refusals: LoginRefusals) -> Any:
    """A producer of which nothing was asked yet."""
    return Producer(
        {
            # As the clients in Java choose partitions.
            "partitioner": DEFAULT_PARTITIONER,
            "linger.ms": "5",
            "transaction.timeout.ms": "300000",
            **options.client,
            "error_cb": refusals,
            "acks": "all",
            "enable.idempotence": "true",
            "transactional.id": options.transactional_id,
        },
        logger=_log,
    )


class Client:
    """Reads topics and creates them. Readers see committed records only."""

    def __init__(self, sink: str, options: KafkaOptions, refusals: LoginRefusals) -> None:
        self._sink = sink
        self._options = options
        self._refusals = refusals
        self._admin = AdminClient({**options.client, "error_cb": refusals}, logger=_log)
        self._consumer = self._new_consumer()

    def _new_consumer(self) -> Any:
        return Consumer(
            {
                **self._options.client,
                "error_cb": self._refusals,
                # A consumer must have a group; partitions are assigned by hand, and no offset is stored.
                "group.id": self._options.transactional_id,
                "enable.auto.commit": "false",
                "enable.partition.eof": "true",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": "20",
                "fetch.error.backoff.ms": "20",
            },
            logger=_log,
        )

    def _errors(self) -> AbstractContextManager[None]:
        return kafka_errors(self._sink, self._refusals, lambda: self._admin.poll(0))

    # -- topics -----------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicInfo | None:
        """The topic of this name, or None."""
        return self.topics([name])[name]

    def topics(self, names: Collection[str]) -> dict[str, TopicInfo | None]:
        """The topics of these names; None: there is none."""
        infos: dict[str, TopicInfo | None] = {}
        if not names:
            return infos
        with self._errors():
            futures = self._admin.describe_topics(TopicCollection(list(names)), request_timeout=_TIMEOUT_S)
            for name, future in futures.items():
                try:
                    described = future.result()
                except KafkaException as error:
                    if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                        raise
                    infos[name] = None
                else:
                    infos[name] = TopicInfo(str(described.topic_id), len(described.partitions))
        return infos

    def create(self, name: str, partitions: int, config: Mapping[str, str]) -> TopicInfo:
        """Create a topic, and wait until it can be written. One that is there already is fine."""
        new_topic = NewTopic(
            name,
            num_partitions=partitions,
            replication_factor=self._options.replication_factor,
            config=dict(config),
        )
        with self._errors():
            try:
                self._admin.create_topics([new_topic], request_timeout=_TIMEOUT_S)[name].result()
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
        deadline = time.monotonic() + _TIMEOUT_S
        while time.monotonic() < deadline:
            info = self.topic(name)
            if info is not None and self._has_leaders(name, info.partitions):
                return info
            time.sleep(0.02)
        raise SinkError(
            "SINK_NOT_REACHABLE",
            f"Sink {self._sink}: the new topic {name} has no leader",
            hint="See the state of the brokers.",
            retryable=True,
        )

    def _has_leaders(self, name: str, partitions: int) -> bool:
        try:
            for partition in range(partitions):
                self.offset_range(name, partition)
        except SinkError:
            return False
        return True

    def settings(self, names: Collection[str]) -> dict[str, dict[str, str]]:
        """The settings of topics, which must be there."""
        resources = {name: ConfigResource(ResourceType.TOPIC, name) for name in names}
        if not resources:
            return {}
        with self._errors():
            futures = self._admin.describe_configs(list(resources.values()), request_timeout=_TIMEOUT_S)
            return {
                name: {key: str(entry.value) for key, entry in futures[resource].result().items()}
                for name, resource in resources.items()
            }

    # -- reading ----------------------------------------------------------------------------------

    def offset_range(self, topic: str, partition: int) -> tuple[int, int]:
        """The first offset that is still stored, and the last stable offset: later ones may be open."""
        with self._errors():
            answer = self._consumer.get_watermark_offsets(
                TopicPartition(topic, partition), timeout=_TIMEOUT_S
            )
        if answer is None:
            raise SinkError(
                "SINK_NOT_REACHABLE",
                f"Sink {self._sink}: no answer about partition {partition} of {topic}",
                hint="See the options kafka.bootstrap.servers and kafka.security.protocol.",
                retryable=True,
            )
        low, high = answer
        return low, high

    def offset_ranges(self, topic: str, partitions: int) -> dict[int, tuple[int, int]]:
        return {partition: self.offset_range(topic, partition) for partition in range(partitions)}

    def read(self, topic: str, starts: Mapping[int, int]) -> Generator[Any, None, None]:
        """Committed messages from these offsets of partitions up to what is decided now."""
        ends = {partition: self.offset_range(topic, partition)[1] for partition in starts}
        open_partitions = {partition for partition, end in ends.items() if starts[partition] < end}
        if not open_partitions:
            return
        consumer = self._consumer
        positions = [TopicPartition(topic, part, starts[part]) for part in sorted(open_partitions)]
        with self._errors():
            consumer.assign(positions)
        try:
            deadline = time.monotonic() + _READ_TIMEOUT_S
            while open_partitions:
                with self._errors():
                    message = consumer.poll(1.0)
                    if message is not None and message.error() is not None:
                        if message.error().code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                            if message.offset() >= ends[message.partition()]:
                                open_partitions.discard(message.partition())
                            continue
                        raise KafkaException(message.error())
                if message is None:
                    if time.monotonic() > deadline:
                        raise SinkError(
                            "SINK_NOT_REACHABLE",
                            f"Sink {self._sink}: the end of {topic} cannot be read",
                            hint="See the state of the brokers.",
                            retryable=True,
                        )
                    continue
                deadline = time.monotonic() + _READ_TIMEOUT_S
                if message.offset() < ends[message.partition()]:
                    yield message
                else:
                    open_partitions.discard(message.partition())
        finally:
            # A fetch that waits for records would hold up the next question to the same broker.
            consumer.unassign()

    def await_decided(self, ends: Mapping[str, Mapping[int, int]]) -> None:
        """Wait until records before these offsets are decided: a commit is answered before its markers are
        in the partitions."""
        deadline = time.monotonic() + _TIMEOUT_S
        for topic, offsets in ends.items():
            for partition, end in offsets.items():
                while self.offset_range(topic, partition)[1] < end and time.monotonic() < deadline:
                    time.sleep(0.003)

    def forget(self) -> None:
        """Forget what is known of topics: one was deleted, and another one may have its name."""
        self._consumer.close()
        self._consumer = self._new_consumer()

    def close(self) -> None:
        self._consumer.close()


class ProducerSession:
    """A transactional producer; whoever opens the next one of the same id ends this one.

    Attributes:
        starts: by topic and partition the offset of the first record of the open transaction.
        ends: by topic and partition the offset behind its last one.
        counts: by topic and partition the number of its records.
    """

    def __init__(self, sink: str, producer: Any, refusals: LoginRefusals) -> None:
        self._sink = sink
        self._producer = producer
        self._refusals = refusals
        self._error: KafkaError | None = None
        self.is_open = False
        self.starts: dict[str, dict[int, int]] = {}
        self.ends: dict[str, dict[int, int]] = {}
        self.counts: dict[str, Counter[int]] = {}
        with self._errors():
            producer.init_transactions(_TIMEOUT_S)

    def _errors(self) -> AbstractContextManager[None]:
        return kafka_errors(self._sink, self._refusals, lambda: self._producer.poll(0))

    def begin_transaction(self) -> None:
        self._error = None
        self.starts = {}
        self.ends = {}
        self.counts = {}
        with self._errors():
            self._producer.begin_transaction()
        self.is_open = True

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes]] = (),
        delivered: Callable[[bytes | None, bytes | None], None] | None = None,
    ) -> None:
        """Send a record; `delivered` gets key and value of it when the broker has it."""

        def report(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                self._error = self._error or error
                return
            partition, offset = message.partition(), message.offset()
            starts, ends = self.starts.setdefault(topic, {}), self.ends.setdefault(topic, {})
            starts[partition] = min(starts.get(partition, offset), offset)
            ends[partition] = max(ends.get(partition, 0), offset + 1)
            self.counts.setdefault(topic, Counter())[partition] += 1
            if delivered is not None:
                delivered(message.key(), message.value())

        with self._errors():
            while True:
                try:
                    self._producer.produce(
                        topic, key=key, value=value, headers=list(headers), on_delivery=report
                    )
                    break
                except BufferError:
                    self._producer.poll(0.1)
            self._producer.poll(0)

    def flush(self) -> None:
        """Wait for the broker's answer to everything that was sent."""
        with self._errors():
            left = self._producer.flush(_READ_TIMEOUT_S)
            if self._error is not None:
                raise KafkaException(self._error)
        if left:
            raise SinkError(
                "SINK_NOT_REACHABLE",
                f"Sink {self._sink}: no answer about {left} records",
                hint="See the state of the brokers.",
                retryable=True,
            )

    def commit(self) -> None:
        self.flush()
        with self._errors():
            self._producer.commit_transaction(_TIMEOUT_S)
        self.is_open = False

    def abort(self) -> None:
        """Drop what the open transaction sent."""
        if self.is_open:
            with self._errors():
                self._producer.abort_transaction(_TIMEOUT_S)
            self.is_open = False

    def close(self) -> None:
        """End the open transaction too: it would delay readers until its time is over."""
        try:
            self.abort()
        except (SinkError, ProducerLostError) as error:
            _log.debug("%s: the open transaction is left to its timeout: %s", self._sink, error)
        # Its own close would end the transaction a second time, and warn of a producer that is fenced.
        self._producer = None

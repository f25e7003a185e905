"""How far topics go, asked without Spark and without a login."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from tautochrone.errors import EnvironmentProblemError, SourceUnreachableError

__all__ = ["end_offsets", "topic_names"]

_log = logging.getLogger(__name__)
_TIMEOUT_S = 2.0
_INTERNAL = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Topics of the brokers themselves, which no pattern matches."""


def end_offsets(brokers: str, topics: Collection[str]) -> dict[str, dict[str, int]]:
    """Topic → partition (as text) → the offset of the next record that is written. Topics that are not there
    are left out.

    Args:
        brokers: `host:port`, several with commas.
        topics: their names.

    Raises:
        SourceUnreachableError: `KAFKA_NOT_ASKED`, also by brokers that want a login.
        EnvironmentProblemError: `KAFKA_CLIENT_MISSING`.

    >>> end_offsets("kafka:9092", ["orders"])  # doctest: +SKIP
    {'orders': {'0': 1200, '1': 1187}}
    """
    if not topics:
        return {}
    with _asked(brokers) as admin:
        from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        # A broker that creates topics does so for whom `list_topics` names one, and not for this question.
        futures = admin.describe_topics(TopicCollection(sorted(topics)), request_timeout=_TIMEOUT_S)
        requested: dict[Any, Any] = {}
        for topic, described in futures.items():
            try:
                partitions = described.result().partitions
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
                continue
            requested |= {TopicPartition(topic, each.id): OffsetSpec.latest() for each in partitions}
        ends: dict[str, dict[str, int]] = {}
        if requested:
            for partition, future in admin.list_offsets(requested, request_timeout=_TIMEOUT_S).items():
                ends.setdefault(partition.topic, {})[str(partition.partition)] = future.result().offset
        return ends


def topic_names(brokers: str) -> list[str]:
    """The topics of a cluster that a pattern of names may match.

    Raises:
        SourceUnreachableError, EnvironmentProblemError: as `end_offsets`.

    >>> topic_names("kafka:9092")  # doctest: +SKIP
    ['orders', 'returns']
    """
    with _asked(brokers) as admin:
        return sorted(set(admin.list_topics(timeout=_TIMEOUT_S).topics) - _INTERNAL)


@contextmanager
def _asked(brokers: str) -> Iterator[Any]:
    """An AdminClient of confluent-kafka, whose errors become ours."""
    try:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient
    except ImportError as error:
        raise EnvironmentProblemError(
            "KAFKA_CLIENT_MISSING",
            "Topics cannot be asked without Spark: confluent-kafka is not installed",
            hint="pip install 'tautochrone[kafka]'",
        ) from error
    settings = {"bootstrap.servers": brokers, "socket.timeout.ms": int(_TIMEOUT_S * 1000)}
    try:
        yield AdminClient({**settings, "error_cb": lambda _error: None}, logger=_log)
    except KafkaException as error:
        raise SourceUnreachableError(
            "KAFKA_NOT_ASKED",
            f"Kafka at {brokers} does not answer without a login: {error.args[0].str()}",
            hint="is the broker up? `taut run` asks with the options of the flow",
            retryable=True,
        ) from error

"""Asking a Kafka cluster whether it is there, by the client that Spark's connector uses itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from tautochrone.errors import IngestError
from tautochrone.spark.catalyst import kind, nodes
from tautochrone.spark.plans import analysed

__all__ = ["KafkaSource", "ask", "kafka_sources"]

_TIMEOUT_MS = 5_000
_CLIENT_PREFIX = "kafka."


@dataclass(frozen=True, slots=True)
class KafkaSource:
    """A read from Kafka. `options` are Spark's; those of the client may hold secrets: never show them."""

    options: Mapping[str, str]

    @property
    def brokers(self) -> str:
        """`host:port`, several with commas."""
        return self.options.get("kafka.bootstrap.servers", "")

    @property
    def topics(self) -> frozenset[str]:
        """The topics that must be there; none for a pattern, which may match later."""
        named = self.options.get("subscribe", "").split(",")
        assigned = json.loads(self.options.get("assign", "{}"))
        return frozenset(topic.strip() for topic in [*named, *assigned] if topic.strip())


def kafka_sources(frame: DataFrame) -> Iterator[KafkaSource]:
    """What a query reads from Kafka as a stream. (Spark hides the options of reads that are no streams.)"""
    for node in nodes(analysed(frame)):
        if kind(node) == "StreamingRelationV2" and str(node.sourceName()).lower() == "kafka":
            yield KafkaSource(_options(node.extraOptions()))


def _options(options: JavaObject) -> dict[str, str]:
    return {str(key): str(value) for key, value in options.asCaseSensitiveMap().items()}


def ask(session: SparkSession, source: KafkaSource) -> int:
    """The number of brokers that the cluster has. Takes five seconds at most for each of two questions.

    Raises:
        IngestError: `KAFKA_NOT_REACHABLE`, `KAFKA_TOPIC_MISSING`.
    """
    jvm: Any = session._jvm  # noqa: SLF001
    settings = jvm.java.util.Properties()
    for key, value in source.options.items():
        if key.startswith(_CLIENT_PREFIX):
            settings.setProperty(key.removeprefix(_CLIENT_PREFIX), value)
    settings.setProperty("default.api.timeout.ms", str(_TIMEOUT_MS))
    settings.setProperty("request.timeout.ms", str(_TIMEOUT_MS))
    try:
        admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
        try:
            brokers = int(admin.describeCluster().nodes().get().size())
            known = {str(name) for name in admin.listTopics().names().get()}
        finally:
            admin.close(jvm.java.time.Duration.ofMillis(0))
    except Py4JJavaError as error:
        raise IngestError(
            "KAFKA_NOT_REACHABLE",
            f"No answer from Kafka at {source.brokers}: {_innermost(error.java_exception)}",
            hint="is the broker up, and does it advertise an address that this machine reaches "
            "(advertised.listeners)? Secured ones need kafka.security.protocol and its kin as options",
            retryable=True,
        ) from error
    missing = sorted(source.topics - known)
    if missing:
        raise IngestError(
            "KAFKA_TOPIC_MISSING",
            f"Kafka at {source.brokers} has no topic {', '.join(missing)}",
            hint="create it, or correct the option `subscribe`; without the right to describe a topic "
            "it is invisible too",
        )
    return brokers


def _innermost(exception: JavaObject) -> str:
    while exception.getCause() is not None:
        exception = exception.getCause()
    return " ".join(str(exception.getMessage() or exception.getClass().getSimpleName()).split())

"""The factory of the format `kafka-transactional`."""

from __future__ import annotations

from collections.abc import Mapping

from tautochrone.model.sink import Sink
from tautochrone.sinks.common.options import needs_package
from tautochrone.sinks.kafka.options import kafka_options

__all__ = ["examine_kafka_sink", "open_kafka_sink"]


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

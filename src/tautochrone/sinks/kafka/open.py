"""The factory of the format `kafka-transactional`."""

from __future__ import annotations

from collections.abc import Mapping

from tautochrone.model.sink import Sink
from tautochrone.sinks.common.packages import needs_package
from tautochrone.sinks.kafka.options import kafka_options

__all__ = ["open_kafka_sink"]


def open_kafka_sink(name: str, options: Mapping[str, str]) -> Sink:
    """Open a sink. Nothing is written to the cluster.

    Raises:
        SinkError: what is wrong with the options, `SINK_PACKAGE_MISSING`, or `SINK_NOT_REACHABLE`.
    """
    parsed = kafka_options(name, options)
    with needs_package(name, "confluent-kafka", "kafka"):
        from tautochrone.sinks.kafka.sink import KafkaSink
    return KafkaSink(name, parsed)

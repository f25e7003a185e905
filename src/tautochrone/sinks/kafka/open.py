"""The factory of the format `kafka-transactional`."""

from __future__ import annotations

from collections.abc import Mapping

from tautochrone.errors import SinkError
from tautochrone.model.sink import Sink
from tautochrone.sinks.kafka.options import kafka_options

__all__ = ["open_kafka_sink"]


def open_kafka_sink(name: str, options: Mapping[str, str]) -> Sink:
    """Open a sink. Nothing is written to the cluster.

    Raises:
        SinkError: what is wrong with the options, `SINK_PACKAGE_MISSING`, or `SINK_NOT_REACHABLE`.
    """
    parsed = kafka_options(name, options)
    try:
        from tautochrone.sinks.kafka.sink import KafkaSink
    except ImportError as error:
        raise SinkError(
            "SINK_PACKAGE_MISSING",
            f"Sink {name}: the Python package confluent-kafka is not installed",
            hint="pip install 'tautochrone[kafka]'",
        ) from error
    return KafkaSink(name, parsed)

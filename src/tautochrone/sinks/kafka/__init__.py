"""The format `kafka-transactional`: mirrors tables in topics, one Kafka transaction per checkpoint."""

from __future__ import annotations

from tautochrone.sinks.kafka.options import open_kafka_sink

__all__ = ["open_kafka_sink"]

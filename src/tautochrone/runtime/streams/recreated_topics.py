"""What flows do with recreated topics: refused before anything runs where there is no topic."""

from __future__ import annotations

from collections.abc import Mapping

from tautochrone.errors import SettingsError
from tautochrone.project.graph import Graph
from tautochrone.project.settings import FlowRecreatedTopic
from tautochrone.runtime.streams.rate_limits import from_outside, known_flow
from tautochrone.spark.sources.kafka import kafka_by_number

__all__ = ["check_recreated_topics"]


def check_recreated_topics(wanted: Mapping[str, FlowRecreatedTopic], graph: Graph) -> None:
    """Refuse the setting for flows that read no topic into a streaming table.

    Raises:
        SettingsError: `UNKNOWN_FLOW`, `RECREATED_TOPIC_WITHOUT_KAFKA`; with the place of the setting.
    """
    for name, said in wanted.items():
        resolved = known_flow(graph, name, said.origin)
        assert graph.scratch is not None
        if not (from_outside(graph, resolved) and kafka_by_number(resolved.flow.evaluate(graph.scratch))):
            raise SettingsError(
                "RECREATED_TOPIC_WITHOUT_KAFKA",
                f"Flow {name} reads no Kafka topic into a streaming table",
                location=said.origin,
                hint="on_recreated_topic is for flows over Kafka; remove it",
            )

"""What flows do with recreated topics: refused before anything runs where there is no topic."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession

from tautochrone.errors import SettingsError
from tautochrone.model.source import Unsupported
from tautochrone.project.graph import Graph, ResolvedFlow
from tautochrone.project.settings import FlowRecreatedTopic
from tautochrone.runtime.streams.rate_limits import from_outside, known_flow
from tautochrone.spark.sources.registry import sources_of

__all__ = ["check_recreated_topics"]


def check_recreated_topics(settings: Mapping[str, FlowRecreatedTopic], graph: Graph) -> None:
    """Refuse the setting for flows that read no topic into a streaming table.

    Raises:
        SettingsError: `UNKNOWN_FLOW`, `RECREATED_TOPIC_WITHOUT_KAFKA`; with the place of the setting.
    """
    for name, setting in settings.items():
        resolved = known_flow(graph, name, setting.origin)
        assert graph.analysis_session is not None
        if not (from_outside(graph, resolved) and _has_topic_ids(graph.analysis_session, resolved)):
            raise SettingsError(
                "RECREATED_TOPIC_WITHOUT_KAFKA",
                f"Flow {name} reads no Kafka topic into a streaming table",
                location=setting.origin,
                hint="on_recreated_topic is for flows over Kafka; remove it",
            )


def _has_topic_ids(session: SparkSession, resolved: ResolvedFlow) -> bool:
    """Whether one of the flow's sources tells a recreated topic from the one of before."""
    sources = sources_of(resolved.flow.evaluate(session))
    return any(not isinstance(source.topic_ids(session), Unsupported) for source in sources)

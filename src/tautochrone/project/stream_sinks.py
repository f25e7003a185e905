"""Sinks of `create_sink` whose format has no adapter: their flows run as Spark's streaming queries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tautochrone.errors import DefinitionError
from tautochrone.model.names import TableName
from tautochrone.model.sink import DeliveryPolicy
from tautochrone.project.definitions import Definitions, Sink
from tautochrone.project.graph import Graph, ResolvedFlow
from tautochrone.project.sink_settings import SinkSettings

__all__ = ["StreamSink", "stream_sinks"]

_FILE_FORMATS = frozenset({"avro", "csv", "json", "orc", "parquet", "text", "xml"})
_FUNCTION_FORMATS = frozenset({"foreach", "foreachbatch"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSink:
    """A sink that Spark itself writes.

    Attributes:
        target: the sink's name as flows resolve it.
        options: of Spark's data source; they may hold secrets.
        flows: each runs as a query of its own; none when no flow writes the sink.
    """

    name: str
    target: TableName
    format: str
    options: Mapping[str, str] = field(repr=False)
    flows: tuple[ResolvedFlow, ...]
    location: str

    @property
    def inputs(self) -> frozenset[TableName]:
        """Lake tables that the flows read."""
        return frozenset[TableName]().union(*(flow.inputs.tables for flow in self.flows))


def stream_sinks(
    definitions: Definitions,
    graph: Graph,
    settings: Mapping[str, SinkSettings],
    has_adapter: Callable[[str], bool],
) -> tuple[StreamSink, ...]:
    """All of them, by name.

    Raises:
        DefinitionError: `SINK_FORMAT_NEEDS_FUNCTION`, `SINK_FILES_TAKE_ONE_FLOW`,
            `SINK_POLICY_NEEDS_ADAPTER`, `SINK_DECLARED_TWICE`.
    """
    return tuple(
        _stream_sink(sink, graph, settings.get(sink.name.table, SinkSettings()))
        for _, sink in sorted(definitions.sinks.items())
        if not has_adapter(sink.format)
    )


def _stream_sink(sink: Sink, graph: Graph, settings: SinkSettings) -> StreamSink:
    name, flows = sink.name.table, graph.flows_of(sink.name)
    if sink.format.lower() in _FUNCTION_FORMATS:
        raise DefinitionError(
            "SINK_FORMAT_NEEDS_FUNCTION",
            f"The sink {name} has the format {sink.format}, and create_sink takes no function",
            location=str(sink.location),
            hint="Write a Python data source with a streamWriter, register it with "
            "spark.dataSource.register, and give its name as the format.",
            sqlstate="0A000",
        )
    if len(flows) > 1 and sink.format.lower() in _FILE_FORMATS:
        raise DefinitionError(
            "SINK_FILES_TAKE_ONE_FLOW",
            f"The sink {name} writes {sink.format} files and has the flows "
            + ", ".join(flow.flow.name for flow in flows)
            + "; Spark keeps one log of batches in the folder and would skip the batches of all but one",
            location=str(flows[1].flow.location),
            hint="Give each flow a sink with a path of its own, or unite their queries in one flow.",
            sqlstate="0A000",
        )
    if settings.policy is not DeliveryPolicy.RETRY:
        raise DefinitionError(
            "SINK_POLICY_NEEDS_ADAPTER",
            f"The sink {name} has the policy {settings.policy}, but the format {sink.format} is written by "
            "Spark's own streaming queries",
            location=settings.origin,
            hint="Leave the policy out; only formats with an adapter have one.",
            sqlstate="0A000",
        )
    if settings.format is not None and settings.format.lower() != sink.format.lower():
        raise DefinitionError(
            "SINK_DECLARED_TWICE",
            f"The sink {name} is created with the format {sink.format} and set to {settings.format} at "
            f"{settings.origin}",
            location=str(sink.location),
            hint="Leave the format out of one of the two.",
        )
    return StreamSink(
        name=name,
        target=sink.name,
        format=sink.format,
        options={**sink.options, **settings.options},
        flows=flows,
        location=str(sink.location),
    )

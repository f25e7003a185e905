"""Which sinks this job writes, and what sinks read."""

from __future__ import annotations

from collections.abc import Mapping

from tautochrone.model.names import TableName
from tautochrone.model.sink import SinkDeclaration
from tautochrone.project.settings import SinkSettings
from tautochrone.project.sinks import StreamSink, sink_declarations, stream_sinks
from tautochrone.runtime.job.topology import JobTopology
from tautochrone.sinks import has_adapter

__all__ = ["declared_sinks", "project_tables", "streamed_sinks", "tables_of_sinks"]


def declared_sinks(
    topology: JobTopology, settings: Mapping[str, SinkSettings]
) -> tuple[SinkDeclaration, ...]:
    """Of all sinks with an adapter those whose first table this job writes: each sink has one deliverer.

    Raises:
        DefinitionError: see `project.sinks.sink_declarations`.
    """
    declared = sink_declarations(topology.definitions, topology.graph, settings, has_adapter)
    return tuple(sink for sink in declared if sink.tables[0] in topology.graph.order)


def streamed_sinks(topology: JobTopology, settings: Mapping[str, SinkSettings]) -> tuple[StreamSink, ...]:
    """Of all sinks that Spark writes those whose first dataset this job writes. One that reads no dataset
    belongs to the job that writes the project's first table.

    Raises:
        DefinitionError: see `project.sinks.stream_sinks`.
    """
    sinks = stream_sinks(topology.definitions, topology.graph, settings, has_adapter)
    tables = project_tables(topology)
    own = set(topology.graph.order)
    return tuple(sink for sink in sinks if not tables or min(sink.inputs & tables or tables) in own)


def tables_of_sinks(
    topology: JobTopology, settings: Mapping[str, SinkSettings]
) -> dict[str, frozenset[TableName]]:
    """What each sink of the project reads, whichever job writes it, by name.

    Raises:
        DefinitionError: as `declared_sinks` and `streamed_sinks`.
    """
    definitions, graph = topology.definitions, topology.graph
    declared = sink_declarations(definitions, graph, settings, has_adapter)
    streamed = stream_sinks(definitions, graph, settings, has_adapter)
    return {sink.name: frozenset(sink.tables) for sink in declared} | {
        sink.name: sink.inputs for sink in streamed
    }


def project_tables(topology: JobTopology) -> frozenset[TableName]:
    """The tables of the project that its jobs write."""
    return frozenset(topology.graph.order) | topology.sibling_tables

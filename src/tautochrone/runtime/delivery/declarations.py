"""The sinks that this job delivers to."""

from __future__ import annotations

from collections.abc import Mapping

from tautochrone.model.delivery import SinkDeclaration
from tautochrone.project.sink_settings import SinkSettings
from tautochrone.project.sinks import sink_declarations
from tautochrone.runtime.job.topology import JobTopology
from tautochrone.sinks import has_adapter

__all__ = ["declared_sinks"]


def declared_sinks(
    topology: JobTopology, settings: Mapping[str, SinkSettings]
) -> tuple[SinkDeclaration, ...]:
    """Of all sinks of the project those whose first table this job writes: each sink has one deliverer.

    Raises:
        DefinitionError: see `project.sinks.sink_declarations`.
    """
    declared = sink_declarations(topology.definitions, topology.graph, settings, has_adapter)
    return tuple(sink for sink in declared if sink.tables[0] in topology.graph.order)

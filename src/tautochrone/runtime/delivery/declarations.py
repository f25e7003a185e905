"""The sinks that this job delivers to."""

from __future__ import annotations

from tautochrone.model.delivery import SinkDeclaration
from tautochrone.project.sinks import sink_declarations
from tautochrone.runtime.job.job import Job
from tautochrone.sinks import has_adapter

__all__ = ["declared_sinks"]


def declared_sinks(job: Job) -> tuple[SinkDeclaration, ...]:
    """Of all sinks of the project those whose first table this job writes: each sink has one deliverer.

    Raises:
        DefinitionError: see `project.sinks.sink_declarations`.
    """
    declared = sink_declarations(job.definitions, job.graph, job.settings.sinks, has_adapter)
    return tuple(sink for sink in declared if sink.tables[0] in job.graph.order)

"""Sources that several streaming tables read, each by a query of its own.

Every flow is a stream that determines the end of its source at its own moment. A cut takes what
each has committed, so in one checkpoint the tables are at different positions of the source.
"""

from __future__ import annotations

from dataclasses import dataclass

from tautochrone.model.definitions import DatasetKind
from tautochrone.model.names import TableName
from tautochrone.project.graph import Graph

__all__ = ["SharedSource", "shared_sources"]


@dataclass(frozen=True, slots=True)
class SharedSource:
    """A source with the tables that read it and the locations of their flows."""

    source: str
    tables: tuple[TableName, ...]
    locations: tuple[str, ...]

    @property
    def reason(self) -> str:
        return (
            f"each of their flows reads the {self.source} on its own, up to its own position: in one "
            "checkpoint they are not consistent with each other"
        )

    @property
    def hint(self) -> str:
        return "read it once into one streaming table, and make the others from that"


def shared_sources(graph: Graph) -> list[SharedSource]:
    """The sources that flows into different streaming tables of the graph read. Several flows into one table
    are no problem, whatever their positions."""
    readers: dict[str, dict[TableName, list[str]]] = {}
    for resolved in graph.flows.values():
        flow = resolved.flow
        dataset = graph.definitions.datasets.get(flow.target)
        if dataset is None or dataset.kind is not DatasetKind.STREAMING_TABLE:
            continue
        for source in resolved.sources:
            readers.setdefault(source, {}).setdefault(flow.target, []).append(str(flow.location))
    return [
        SharedSource(
            source, tuple(tables), tuple(location for locations in tables.values() for location in locations)
        )
        for source, tables in sorted(readers.items())
        if len(tables) > 1
    ]

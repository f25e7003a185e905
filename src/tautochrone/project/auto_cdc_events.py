"""The tables that hold the events of AUTO CDC flows whose source is no lake table.

A merge follows from two versions of a lake table. Where a flow reads a topic or files, or joins, its events
are written into a table of their own first, and the flow merges that table.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tautochrone.errors import DefinitionError
from tautochrone.model.definitions import Dataset, DatasetKind
from tautochrone.model.names import TableName
from tautochrone.project.definitions import Definitions, Flow
from tautochrone.project.graph import ResolvedFlow
from tautochrone.project.queries import SqlQuery

__all__ = ["EventTable", "event_table", "needs_event_table"]


@dataclass(frozen=True, slots=True)
class EventTable:
    """The definitions with the table, its name, and the flow that merges it."""

    definitions: Definitions
    name: TableName
    merging: Flow


def needs_event_table(flow: ResolvedFlow) -> bool:
    """Whether the flow is not row by row over one lake table that it reads as a stream."""
    inputs = flow.inputs
    return (
        flow.stateful
        or inputs.external_streams
        or len(inputs.stream) != 1
        or bool(inputs.batch or inputs.unversioned or inputs.clocks)
    )


def event_table(definitions: Definitions, flow: Flow) -> EventTable:
    """The definitions in which `flow` appends its events to a table, and another flow merges them.

    Raises:
        DefinitionError: `AUTO_CDC_EVENTS_NAME_TAKEN`.
    """
    target = definitions.datasets[flow.target]
    own_name = flow.name if flow.name != target.name.without_catalog else target.name.table
    name = TableName(target.name.catalog, target.name.namespace, f"{own_name}__events")
    taken = definitions.datasets.get(name)
    if taken is not None:
        raise DefinitionError(
            "AUTO_CDC_EVENTS_NAME_TAKEN",
            f"The events of the AUTO CDC flow {flow.name} go into {name}, and a dataset is called so",
            sqlstate="42P07",
            location=str(taken.location),
            hint="rename that dataset, or give the flow another name",
        )
    assert flow.auto_cdc is not None
    events = Dataset(
        name=name,
        kind=DatasetKind.STREAMING_TABLE,
        location=flow.location,
        comment=f"Events that AUTO CDC merges into {target.name.table}",
        events_of=target.name,
    )
    text = f"SELECT * FROM STREAM {name.sql}"
    query = SqlQuery(text, f"{text} {flow.auto_cdc.text}", flow.location, flow.scope)
    merging = replace(flow, name=f"{flow.name}__merge", query=query)
    flows = [merging if other.name == flow.name else other for other in definitions.flows]
    datasets = {
        # Records on which the flow fails are those of the table of its events.
        other: replace(dataset, bad_records_of=name) if dataset.bad_records_of == target.name else dataset
        for other, dataset in definitions.datasets.items()
    }
    changed = replace(
        definitions,
        datasets={**datasets, name: events},
        flows=(*flows, replace(flow, target=name, auto_cdc=None)),
    )
    return EventTable(changed, name, merging)

"""The tables that hold the events, or the snapshots, of AUTO CDC flows whose source is no lake table.

A merge follows from two versions of a lake table. Where a flow reads a topic or files, or joins, its events
are written into a table of their own first, and the flow merges that table. Where a flow takes the snapshots
of a view, the view's rows are a materialized view first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tautochrone.errors import DefinitionError
from tautochrone.model.definitions import Dataset, DatasetKind
from tautochrone.model.names import TableName, quoted
from tautochrone.project.auto_cdc_query import AutoCdcQuery
from tautochrone.project.definitions import Definitions, Flow, is_view
from tautochrone.project.graph import ResolvedFlow
from tautochrone.project.queries import SqlQuery

__all__ = ["EventTable", "event_table", "event_table_name", "over_event_tables", "over_snapshot_table"]


@dataclass(frozen=True, slots=True)
class EventTable:
    """The definitions with the table, its name, and the flow that merges it."""

    definitions: Definitions
    name: TableName
    merging: Flow


def over_event_tables(flows: Sequence[ResolvedFlow]) -> list[int]:
    """The numbers of a table's AUTO CDC flows that cannot merge what they read.

    Of flows over one table none can: how far it is merged is remembered by table, and a flow that is added
    would begin there.
    """
    merging = [number for number, flow in enumerate(flows) if flow.flow.auto_cdc is not None]
    direct = [number for number in merging if not _needs_event_table(flows[number])]
    readers = Counter(table for number in direct for table in flows[number].inputs.stream)
    shared = {number for number in direct if any(readers[table] > 1 for table in flows[number].inputs.stream)}
    return [number for number in merging if number not in direct or number in shared]


def _needs_event_table(flow: ResolvedFlow) -> bool:
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
    name = _own_name(definitions, flow, "events")
    assert flow.auto_cdc is not None
    events = Dataset(
        name=name,
        kind=DatasetKind.STREAMING_TABLE,
        location=flow.location,
        comment=f"Events that AUTO CDC merges into {target.name.table}",
        events_of=target.name,
    )
    text = f"SELECT * FROM STREAM {name.sql}"
    query = SqlQuery(text, flow.location, flow.scope)
    merging = replace(flow, name=f"{flow.name}__merge", query=query, snapshots=None)
    flows = [merging if other.name == flow.name else other for other in definitions.flows]
    datasets = {
        # Records on which the flow fails are those of the table of its events.
        other: replace(dataset, bad_records_of=name) if dataset.bad_records_of == target.name else dataset
        for other, dataset in definitions.datasets.items()
    }
    changed = replace(
        definitions,
        datasets={**datasets, name: events},
        # Expectations are those of the rows that the merge writes: all events are kept.
        flows=(*flows, replace(flow, target=name, auto_cdc=None, expectations=())),
    )
    return EventTable(changed, name, merging)


def over_snapshot_table(definitions: Definitions, flow: Flow) -> Definitions:
    """The definitions in which `flow` takes the snapshots of a materialized view, if its source is a view.

    Raises:
        DefinitionError: `AUTO_CDC_EVENTS_NAME_TAKEN`.
    """
    source = flow.auto_cdc.snapshots_of if flow.auto_cdc is not None else None
    view = definitions.dataset_named(source, flow.scope) if source else None
    if source is None or view is None or not is_view(definitions.datasets[view]):
        return definitions
    name = _own_name(definitions, flow, "snapshot")
    snapshot = Dataset(
        name=name,
        kind=DatasetKind.MATERIALIZED_VIEW,
        location=flow.location,
        comment=f"Snapshots that AUTO CDC merges into {flow.target.table}",
        events_of=flow.target,
    )
    text, merged_text = f"SELECT * FROM {quoted(*source)}", f"SELECT * FROM STREAM {name.sql}"
    reading = replace(
        flow,
        name=f"{flow.name}__snapshot",
        target=name,
        query=SqlQuery(text, flow.location, flow.scope),
        auto_cdc=None,
    )
    query = SqlQuery(merged_text, flow.location, flow.scope)
    assert flow.auto_cdc is not None
    merging = replace(flow, query=AutoCdcQuery(query, flow.auto_cdc, str(flow.location)))
    flows = [merging if other.name == flow.name else other for other in definitions.flows]
    return replace(definitions, datasets={**definitions.datasets, name: snapshot}, flows=(*flows, reading))


def event_table_name(flow: Flow) -> TableName:
    """The name of the table that holds the events of a flow."""
    return _table_name(flow, "events")


def _table_name(flow: Flow, suffix: str) -> TableName:
    target = flow.target
    # A flow without a name of its own has that of its target, with a database such as LIVE.
    own_name = target.table if "." in flow.name else flow.name
    return TableName(target.catalog, target.namespace, f"{own_name}__{suffix}")


def _own_name(definitions: Definitions, flow: Flow, suffix: str) -> TableName:
    """The name of a table that stands between a flow and its source.

    Raises:
        DefinitionError: `AUTO_CDC_EVENTS_NAME_TAKEN`.
    """
    name = _table_name(flow, suffix)
    taken = definitions.datasets.get(name)
    if taken is not None:
        raise DefinitionError(
            "AUTO_CDC_EVENTS_NAME_TAKEN",
            f"The {suffix} of the AUTO CDC flow {flow.name} would be {name}, and a dataset is called so",
            sqlstate="42P07",
            location=str(taken.location),
            hint="rename that dataset, or give the flow another name",
        )
    return name

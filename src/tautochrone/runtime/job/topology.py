"""Which tables and sinks a job writes and what they read, and which of them a run ingests and rebuilds.

All of it follows from the project's definitions and settings: no store, no lake.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tautochrone.errors import DefinitionError
from tautochrone.model.definitions import DatasetKind
from tautochrone.model.lake import TableDefinition
from tautochrone.model.names import TableName, is_clock
from tautochrone.model.near_names import near_names_hint
from tautochrone.model.project_build import INVARIANT_PREFIX
from tautochrone.model.sink import SinkDeclaration
from tautochrone.project.definitions import Definitions
from tautochrone.project.graph import Graph, ResolvedFlow
from tautochrone.project.settings import SinkSettings
from tautochrone.project.sinks import StreamSink, sink_declarations, stream_sinks
from tautochrone.sinks import has_adapter

__all__ = [
    "JobTopology",
    "Selection",
    "declared_sinks",
    "find_all",
    "project_tables",
    "select",
    "streamed_sinks",
    "tables_of_sinks",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTopology:
    """The tables of one job of a project.

    Attributes:
        definitions: of the whole project.
        graph: of the whole project; its `order` has the job's own tables only.
        sibling_tables: tables of the project that its other jobs write.
    """

    definitions: Definitions
    graph: Graph
    sibling_tables: frozenset[TableName] = frozenset()

    @property
    def root_tables(self) -> list[TableName]:
        """The job's tables that only ingestion writes: a cut takes their last reported version."""
        return [name for name in self.graph.order if not self.is_view(name) and not self.derived_flows(name)]

    @property
    def derived_tables(self) -> list[TableName]:
        """The job's tables that are refreshed for each checkpoint, in topological order."""
        roots = set(self.root_tables)
        return [name for name in self.graph.order if name not in roots]

    @property
    def clocks(self) -> frozenset[TableName]:
        """The clocks that the job reads."""
        return frozenset(filter(is_clock, self._upstream))

    @property
    def upstream_tables(self) -> frozenset[TableName]:
        """Lake tables that the job's flows and invariants read and the job does not write."""
        return frozenset(name for name in self._upstream if not is_clock(name))

    @property
    def _upstream(self) -> frozenset[TableName]:
        read = frozenset[TableName]().union(
            *(self.inputs(name) for name in self.graph.order),
            *(invariant.tables for invariant in self.graph.invariants),
        )
        return read - set(self.graph.order)

    def is_view(self, name: TableName) -> bool:
        """Whether the table is a materialized view; otherwise it is a streaming table."""
        return self.definitions.datasets[name].kind is DatasetKind.MATERIALIZED_VIEW

    def flows(self, name: TableName) -> tuple[ResolvedFlow, ...]:
        """The flows that write the table."""
        return self.graph.flows_of(name)

    def ingestion_flows(self, name: TableName) -> list[ResolvedFlow]:
        """The table's flows that read from outside the lake."""
        if self.is_view(name):
            return []
        return [flow for flow in self.flows(name) if not flow.inputs.stream]

    def derived_flows(self, name: TableName) -> list[ResolvedFlow]:
        """The streaming table's flows that read lake tables as streams."""
        if self.is_view(name):
            return []
        return [flow for flow in self.flows(name) if flow.inputs.stream]

    def streams_from(self, name: TableName) -> list[TableName]:
        """The streaming tables that depend on a table, the nearest first."""
        return [
            reader
            for reader in self.graph.downstream(name)
            if reader in self.definitions.datasets and self.derived_flows(reader)
        ]

    def inputs(self, name: TableName) -> frozenset[TableName]:
        """Lake tables and clocks that the table's flows read, without the table itself."""
        read = self.graph.inputs(name)
        return (read.tables | read.clocks) - {name}

    def fingerprint(self, name: TableName) -> str:
        """Fingerprint of all flows of the table together."""
        return "+".join(sorted(flow.fingerprint for flow in self.flows(name)))

    @property
    def fingerprints(self) -> dict[str, str]:
        """Of all tables and invariants of the job, by name."""
        fingerprints = {str(name): self.fingerprint(name) for name in self.graph.order}
        for invariant in self.graph.invariants:
            fingerprints[f"{INVARIANT_PREFIX}{invariant.name}"] = invariant.query.fingerprint
        return fingerprints

    def quarantine_table(self, name: TableName) -> TableName | None:
        """The table that takes the bad records of the table's flows, if there is one."""
        datasets = self.definitions.datasets.items()
        return next((table for table, dataset in datasets if dataset.bad_records_of == name), None)

    def table_definition(self, name: TableName) -> TableDefinition:
        """What the table is created as."""
        dataset = self.definitions.datasets[name]
        return TableDefinition(
            name=name,
            schema=self.graph.schemas[name],
            comment=dataset.comment,
            partition_columns=dataset.partition_columns,
            cluster_columns=dataset.cluster_columns,
            properties=dataset.properties,
        )


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


@dataclass(frozen=True, slots=True)
class Selection:
    """Which tables a run ingests and rebuilds. Every derived dataset is refreshed to the cut in any case.

    Attributes:
        ingest: the tables whose flows run; None: all.
        full: the tables that are rebuilt.
        full_sinks: the sinks to which all rows are sent again.
    """

    ingest: frozenset[TableName] | None = None
    full: frozenset[TableName] = frozenset()
    full_sinks: frozenset[TableName] = frozenset()

    def with_full_refreshes(self, left: Collection[str]) -> Selection:
        """The same, with the full refreshes of these tables and sinks only.

        >>> orders = TableName("lake", ("shop",), "orders")
        >>> Selection(full=frozenset({orders})).with_full_refreshes([]).full
        frozenset()
        """
        return replace(
            self,
            full=frozenset(name for name in self.full if str(name) in left),
            full_sinks=frozenset(name for name in self.full_sinks if str(name) in left),
        )


def find_all(definitions: Definitions, names: Sequence[str]) -> list[TableName]:
    """Resolve names that a user typed to datasets.

    Raises:
        DefinitionError: `DATASET_NOT_FOUND`, with the nearest name.
    """
    datasets = []
    for text in names:
        name = definitions.dataset_named(tuple(text.split(".")), definitions.scope)
        if name is None:
            raise DefinitionError(
                "DATASET_NOT_FOUND",
                f"No dataset is called {text}",
                sqlstate="42P01",
                hint=near_names_hint(
                    text, definitions.datasets, "there are", spellings=definitions.spellings
                ),
            )
        datasets.append(name)
    return datasets


def select(
    topology: JobTopology, refresh: Sequence[str], full: Sequence[str], *, everything: bool
) -> Selection:
    """Resolve the options of `taut run`.

    Raises:
        DefinitionError: `DATASET_NOT_FOUND`.
    """
    sinks = {
        name.table.lower(): name
        for name, sink in topology.definitions.sinks.items()
        if not has_adapter(sink.format)
    }
    if everything:
        return Selection(None, frozenset(topology.graph.order), frozenset(sinks.values()))
    full_sinks = frozenset(sinks[name.lower()] for name in full if name.lower() in sinks)
    full = [name for name in full if name.lower() not in sinks]
    full_tables = frozenset(find_all(topology.definitions, full))
    # A rebuilt table reads its bad records again, so its quarantine table is rebuilt too.
    full_tables |= {
        name
        for name, dataset in topology.definitions.datasets.items()
        if dataset.bad_records_of in full_tables
    }
    if not refresh and not full:
        return Selection(full_sinks=full_sinks)
    return Selection(
        frozenset(find_all(topology.definitions, refresh)) | full_tables, full_tables, full_sinks
    )

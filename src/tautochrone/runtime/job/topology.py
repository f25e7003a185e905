"""Which tables a job writes, and what they read. From the project's definitions alone: no store, no lake."""

from __future__ import annotations

from dataclasses import dataclass

from tautochrone.model.definitions import DatasetKind
from tautochrone.model.lake import TableDefinition
from tautochrone.model.names import TableName, is_clock
from tautochrone.project.definitions import Definitions
from tautochrone.project.graph import Graph, ResolvedFlow

__all__ = ["JobTopology"]


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

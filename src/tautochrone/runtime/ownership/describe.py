"""Stores definitions, columns and column lineage of the job's datasets. Only people read them.

Lineage needs each flow's plan, so it is computed once per definition; the store keeps the definition's
fingerprint with it. Nothing is written when nothing changed.
"""

from __future__ import annotations

from collections.abc import Iterable

from tautochrone.errors import DefinitionError
from tautochrone.meta.protocols.datasets import Datasets
from tautochrone.model.definitions import ColumnLineage, ColumnRef, DatasetDetails, LakeColumn
from tautochrone.model.names import TableName
from tautochrone.project.graph import Graph, ResolvedFlow
from tautochrone.redaction import redacted, without_literals
from tautochrone.runtime.job.journal import Journal
from tautochrone.runtime.job.topology import JobTopology
from tautochrone.spark.analysis.column_lineage import column_lineage

__all__ = ["describe"]


def describe(topology: JobTopology, journal: Journal) -> None:
    """Store the details of the job's tables that changed."""
    stored = journal.store.datasets.details_of_job(journal.name)
    current = [_details(topology, table, stored.get(table)) for table in topology.graph.order]
    changed = [details for details in current if stored.get(details.dataset) != details]
    if changed:
        journal.record(Datasets.describe, changed)


def _details(topology: JobTopology, table: TableName, stored: DatasetDetails | None) -> DatasetDetails:
    dataset, flows, definition = (
        topology.definitions.datasets[table],
        topology.flows(table),
        topology.fingerprint(table),
    )
    same = stored is not None and stored.definition == definition
    return DatasetDetails(
        dataset=table,
        definition=definition,
        location=str(dataset.location),
        text="\n\n".join(without_literals(flow.flow.query.written) for flow in flows),
        columns=tuple(
            LakeColumn(field.name, field.dataType.simpleString(), field.metadata.get("comment"))
            for field in topology.graph.schemas[table].fields
        ),
        lineage=stored.lineage if same and stored else _lineage(topology.graph, table, flows),
    )


def _lineage(graph: Graph, table: TableName, flows: Iterable[ResolvedFlow]) -> ColumnLineage:
    """The lineage of all flows of a table together, with the table's spelling of its columns."""
    columns = {field.name.lower(): field.name for field in graph.schemas[table].fields}
    values: dict[str, frozenset[ColumnRef]] = {name: frozenset() for name in columns.values()}
    rows = frozenset[ColumnRef]()
    assert graph.analysis_session is not None
    for flow in flows:
        try:
            lineage = column_lineage(flow.flow.evaluate(graph.analysis_session), table.catalog)
        except DefinitionError as error:
            # Not repeatable, for the flow was evaluated before; missing lineage must not fail a run.
            lineage = ColumnLineage(problem=error.message)
        if lineage.problem is not None:
            return ColumnLineage(problem=redacted(lineage.problem))
        for name, origin in lineage.values.items():
            if name.lower() in columns:
                values[columns[name.lower()]] |= origin
        rows |= lineage.rows
    return ColumnLineage(values=values, rows=rows)

"""Telling the store about definitions, columns and column lineage: for people, nothing here is needed to run.

Lineage needs each flow's plan, so it is traced once per definition: the store knows the fingerprint that it
belongs to. When nothing is new, nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterable

from tautochrone.errors import DefinitionError
from tautochrone.model.details import Column, ColumnLineage, ColumnRef, DatasetDetails
from tautochrone.model.names import TableName
from tautochrone.project.graph import ResolvedFlow
from tautochrone.redaction import redacted, without_literals
from tautochrone.runtime.job.job import Job
from tautochrone.spark.analysis.column_lineage import column_lineage

__all__ = ["describe"]


def describe(job: Job) -> None:
    """Tell the store what it does not know yet about the job's tables."""
    known = job.store.described(job.name)
    found = [_details(job, table, known.get(table)) for table in job.graph.order]
    news = [details for details in found if known.get(details.dataset) != details]
    if news:
        job.journal.describe(news)


def _details(job: Job, table: TableName, known: DatasetDetails | None) -> DatasetDetails:
    dataset, flows, definition = (
        job.definitions.datasets[table],
        job.topology.flows(table),
        job.topology.fingerprint(table),
    )
    same = known is not None and known.definition == definition
    return DatasetDetails(
        dataset=table,
        definition=definition,
        location=str(dataset.location),
        text="\n\n".join(without_literals(flow.flow.query.written) for flow in flows),
        columns=tuple(
            Column(field.name, field.dataType.simpleString(), field.metadata.get("comment"))
            for field in job.graph.schemas[table].fields
        ),
        lineage=known.lineage if same and known else _traced(job, table, flows),
    )


def _traced(job: Job, table: TableName, flows: Iterable[ResolvedFlow]) -> ColumnLineage:
    """The lineage of all flows of a table together, by the table's own names of its columns."""
    columns = {field.name.lower(): field.name for field in job.graph.schemas[table].fields}
    values: dict[str, frozenset[ColumnRef]] = {name: frozenset() for name in columns.values()}
    rows = frozenset[ColumnRef]()
    assert job.graph.scratch is not None
    for flow in flows:
        try:
            found = column_lineage(flow.flow.evaluate(job.graph.scratch), table.catalog)
        except DefinitionError as error:
            # It was evaluated before, so this is chance; a run must not fail for what people may read.
            found = ColumnLineage(problem=error.message)
        if found.problem is not None:
            return ColumnLineage(problem=redacted(found.problem))
        for name, origin in found.values.items():
            if name.lower() in columns:
                values[columns[name.lower()]] |= origin
        rows |= found.rows
    return ColumnLineage(values=values, rows=rows)

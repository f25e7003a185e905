"""`store.datasets` in SQL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Row, delete, insert, select, update

from tautochrone.errors import MetaError
from tautochrone.meta.database import tables as t
from tautochrone.meta.database.repository import Repository, parse
from tautochrone.meta.protocols.datasets import DatasetEntry, DatasetStatus, Lineage
from tautochrone.meta.queries.dataset_status import statuses
from tautochrone.meta.queries.expectations import expectations_json
from tautochrone.meta.queries.skipped_files import merged_skipped_files, skipped_files_of
from tautochrone.meta.queries.topology import direct_inputs
from tautochrone.model.definitions import Column, ColumnLineage, ColumnRef, DatasetDetails, ExpectationCount
from tautochrone.model.names import Fence, TableName
from tautochrone.model.source import SkippedFiles, SkipReason

__all__ = ["SqlDatasets"]


_D, _DETAILS = t.datasets.c, t.dataset_details.c


class SqlDatasets(Repository):
    """`protocols.datasets.Datasets` in SQL."""

    def entries(self, job: str | None = None) -> tuple[DatasetEntry, ...]:
        with self._read() as connection:
            edges = direct_inputs(connection)
            query = select(t.datasets).where(t.datasets.c.retired.is_(False))
            if job is not None:
                query = query.where(t.datasets.c.job == job)
            return tuple(
                DatasetEntry(
                    parse(row.name),
                    row.kind,
                    row.definition,
                    frozenset(map(parse, edges.get(row.name, ()))),
                    row.is_root,
                )
                for row in connection.execute(query.order_by(t.datasets.c.name))
            )

    def statuses(self) -> tuple[DatasetStatus, ...]:
        with self._read() as connection:
            return statuses(connection)

    def lineage(self, table: TableName) -> Lineage:
        with self._read() as connection:
            up = direct_inputs(connection)
        down: dict[str, set[str]] = {}
        for dataset, inputs in up.items():
            for source in inputs:
                down.setdefault(source, set()).add(dataset)
        name = str(table)
        return Lineage(
            table=table,
            inputs=frozenset(map(parse, up.get(name, ()))),
            outputs=frozenset(map(parse, down.get(name, ()))),
            upstream=_reachable_tables(name, up),
            downstream=_reachable_tables(name, down),
        )

    def describe(self, job: str, fence: Fence, details: Iterable[DatasetDetails]) -> None:
        with self._fenced(job, fence) as connection:
            names = select(t.datasets.c.name).where(t.datasets.c.job == job)
            own = set(connection.execute(names).scalars())
            for entry in details:
                name = str(entry.dataset)
                if name not in own:
                    raise MetaError("DATASET_NOT_FOUND", f"{name} is not a dataset of job {job}")
                connection.execute(delete(t.dataset_details).where(_DETAILS.dataset == name))
                connection.execute(insert(t.dataset_details).values(dataset=name, **_as_row(entry)))

    def details(self, dataset: TableName) -> DatasetDetails | None:
        with self._read() as connection:
            row = connection.execute(
                select(t.dataset_details).where(_DETAILS.dataset == str(dataset))
            ).first()
            return None if row is None else _as_details(row)

    def details_of_job(self, job: str) -> dict[TableName, DatasetDetails]:
        names = select(t.datasets.c.name).where(t.datasets.c.job == job, t.datasets.c.retired.is_(False))
        with self._read() as connection:
            rows = connection.execute(select(t.dataset_details).where(_DETAILS.dataset.in_(names)))
            return {details.dataset: details for details in map(_as_details, rows)}

    def record_skipped_files(
        self, job: str, fence: Fence, dataset: TableName, flow: str, skipped: Iterable[SkippedFiles]
    ) -> None:
        with self._fenced(job, fence) as connection:
            is_dataset = (_D.name == str(dataset)) & (_D.job == job)
            row = connection.execute(select(_D.skipped_files).where(is_dataset)).first()
            if row is None:
                raise MetaError("DATASET_NOT_FOUND", f"{dataset} is not a dataset of job {job}")
            known: dict[str, Any] = dict(row.skipped_files or {})
            reasons = {
                str(files.reason): {"count": files.count, "paths": [*files.paths]} for files in skipped
            }
            known_missing = known.get(flow, {}).get(SkipReason.MISSING.value)
            if known_missing is not None:
                reasons[SkipReason.MISSING.value] = merged_skipped_files(
                    known_missing, reasons.get(SkipReason.MISSING.value)
                )
            known[flow] = reasons
            connection.execute(update(t.datasets).where(is_dataset).values(skipped_files=known))

    def record_expectations(
        self, job: str, fence: Fence, dataset: TableName, expectations: Iterable[ExpectationCount]
    ) -> None:
        with self._fenced(job, fence) as connection:
            own = (_D.name == str(dataset)) & (_D.job == job)
            if connection.execute(select(_D.name).where(own)).first() is None:
                raise MetaError("DATASET_NOT_FOUND", f"{dataset} is not a dataset of job {job}")
            stored = expectations_json(expectations)
            connection.execute(update(t.datasets).where(own).values(expectations=stored))

    def skipped_files(self, dataset: TableName) -> tuple[SkippedFiles, ...]:
        with self._read() as connection:
            query = select(_D.skipped_files).where(_D.name == str(dataset))
            return skipped_files_of(connection.execute(query).scalar())

    def table_ids(self, job: str) -> dict[TableName, str]:
        query = select(_D.name, _D.table_id).where(
            _D.job == job, _D.retired.is_(False), _D.table_id.is_not(None)
        )
        with self._read() as connection:
            return {TableName.parse(row.name): row.table_id for row in connection.execute(query)}

    def record_table_ids(self, job: str, fence: Fence, tables: Mapping[TableName, str]) -> None:
        with self._fenced(job, fence) as connection:
            connection.execute(update(t.datasets).where(_D.job == job).values(table_id=None))
            for name, identity in tables.items():
                is_dataset = (_D.job == job) & (_D.name == str(name))
                connection.execute(update(t.datasets).where(is_dataset).values(table_id=identity))


def _as_row(details: DatasetDetails) -> dict[str, Any]:
    lineage = details.lineage
    return {
        "definition": details.definition,
        "location": details.location,
        "definition_text": details.text,
        "schema": [[column.name, column.type, column.comment] for column in details.columns],
        "column_lineage": {
            # A list, because JSON objects in PostgreSQL lose the order of the columns.
            "values": [[column, _refs(refs)] for column, refs in lineage.values.items()],
            "rows": _refs(lineage.rows),
            "problem": lineage.problem,
        },
    }


def _as_details(row: Row[Any]) -> DatasetDetails:
    lineage: Mapping[str, Any] = row.column_lineage
    return DatasetDetails(
        dataset=parse(row.dataset),
        definition=row.definition,
        location=row.location,
        text=row.definition_text,
        columns=tuple(Column(*column) for column in row.schema),
        lineage=ColumnLineage(
            values={column: _as_refs(refs) for column, refs in lineage["values"]},
            rows=_as_refs(lineage["rows"]),
            problem=lineage["problem"],
        ),
    )


def _refs(refs: Iterable[ColumnRef]) -> list[list[str]]:
    return [[str(ref.table), ref.column] for ref in sorted(refs)]


def _as_refs(refs: Iterable[tuple[str, str]]) -> frozenset[ColumnRef]:
    return frozenset(ColumnRef(parse(table), column) for table, column in refs)


def _reachable_tables(start: str, edges: Mapping[str, Iterable[str]]) -> frozenset[TableName]:
    seen: set[str] = set()
    queue = list(edges.get(start, ()))
    while queue:
        name = queue.pop()
        if name not in seen:
            seen.add(name)
            queue.extend(edges.get(name, ()))
    return frozenset(map(parse, seen - {start}))

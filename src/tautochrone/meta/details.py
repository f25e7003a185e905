"""What a job tells about its datasets for people to read. It must never be needed to refresh anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Row, delete, insert, select

from tautochrone.errors import MetaError
from tautochrone.meta import tables as t
from tautochrone.meta.repository import Repository, parse
from tautochrone.model.details import Column, ColumnLineage, ColumnRef, DatasetDetails
from tautochrone.model.names import Fence, TableName

__all__ = ["Details"]

_D = t.dataset_details.c


class Details(Repository):
    """Definitions, columns and column lineage."""

    def describe(self, job: str, fence: Fence, details: Iterable[DatasetDetails]) -> None:
        """Replace what is known of these datasets. Saying it twice is saying it once.

        Raises:
            FencedError: a newer owner exists.
            MetaError: `DATASET_NOT_FOUND`, one of them is not a dataset of the job.
        """
        with self._fenced(job, fence) as connection:
            names = select(t.datasets.c.name).where(t.datasets.c.job == job)
            own = set(connection.execute(names).scalars())
            for one in details:
                name = str(one.dataset)
                if name not in own:
                    raise MetaError("DATASET_NOT_FOUND", f"{name} is not a dataset of job {job}")
                connection.execute(delete(t.dataset_details).where(_D.dataset == name))
                connection.execute(insert(t.dataset_details).values(dataset=name, **_as_row(one)))

    def details(self, dataset: TableName) -> DatasetDetails | None:
        """What its job told of a dataset; None before that, or when nobody defines it."""
        with self._read() as connection:
            row = connection.execute(select(t.dataset_details).where(_D.dataset == str(dataset))).first()
            return None if row is None else _as_details(row)

    def described(self, job: str) -> dict[TableName, DatasetDetails]:
        """What is known of all datasets of a job."""
        names = select(t.datasets.c.name).where(t.datasets.c.job == job, t.datasets.c.retired.is_(False))
        with self._read() as connection:
            rows = connection.execute(select(t.dataset_details).where(_D.dataset.in_(names)))
            return {found.dataset: found for found in map(_as_details, rows)}


def _as_row(details: DatasetDetails) -> dict[str, Any]:
    lineage = details.lineage
    return {
        "definition": details.definition,
        "location": details.location,
        "definition_text": details.text,
        "schema": [[column.name, column.type, column.comment] for column in details.columns],
        "column_lineage": {
            # As a list: the order of columns is worth keeping, and JSON objects in PostgreSQL lose it.
            "values": [[column, _refs(found)] for column, found in lineage.values.items()],
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
            values={column: _as_refs(found) for column, found in lineage["values"]},
            rows=_as_refs(lineage["rows"]),
            problem=lineage["problem"],
        ),
    )


def _refs(found: Iterable[ColumnRef]) -> list[list[str]]:
    return [[str(ref.table), ref.column] for ref in sorted(found)]


def _as_refs(found: Iterable[tuple[str, str]]) -> frozenset[ColumnRef]:
    return frozenset(ColumnRef(parse(table), column) for table, column in found)

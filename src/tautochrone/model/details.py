"""What people want to know of a dataset and no refresh needs: its definition, columns, their origin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tautochrone.model.names import TableName

__all__ = ["Column", "ColumnLineage", "ColumnRef", "DatasetDetails"]


@dataclass(frozen=True, slots=True, order=True)
class ColumnRef:
    """A column of a table in the lake."""

    table: TableName
    column: str


@dataclass(frozen=True, slots=True)
class Column:
    """A column as the lake stores it; `type` is Spark's spelling, such as `decimal(12,2)`."""

    name: str
    type: str
    comment: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnLineage:
    """Which columns of which tables a query's answer hangs on.

    Attributes:
        values: for each column of the answer the input columns that its values are made from.
        rows: the input columns that decide which rows there are, and in which groups: conditions of
            filters and joins, keys of groups, orders under a LIMIT.
        problem: why nothing is known; then both are empty.
    """

    values: Mapping[str, frozenset[ColumnRef]] = field(default_factory=dict)
    rows: frozenset[ColumnRef] = frozenset()
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetDetails:
    """One dataset as its definition says.

    `definition` is the fingerprint that all of this belongs to, `location` is `file:line`, `text` the
    definition as its author wrote it.
    """

    dataset: TableName
    definition: str
    location: str
    text: str
    columns: tuple[Column, ...]
    lineage: ColumnLineage

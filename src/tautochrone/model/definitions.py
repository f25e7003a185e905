"""What a pipeline project defines, and what people want to know of a dataset.

Datasets, flows, and conditions that a dataset's rows should meet; what other table formats and other catalogs
mean in definitions; and what no refresh needs: a dataset's definition, columns, and their origin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tautochrone.model.names import TableName

__all__ = [
    "LAKE_FORMAT",
    "ColumnLineage",
    "ColumnRef",
    "Dataset",
    "DatasetDetails",
    "DatasetKind",
    "Expectation",
    "ExpectationCount",
    "FlowInputs",
    "LakeColumn",
    "OtherCatalogs",
    "OtherFormats",
    "SourceLocation",
    "ViolationAction",
]


class ViolationAction(StrEnum):
    """What happens to a row that violates an expectation.

    `WARN`: it is written and counted. `DROP`: it is counted and not written. `FAIL`: nothing is written.
    """

    WARN = "warn"
    DROP = "drop"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Expectation:
    """A condition on the rows of a dataset's query, in SQL. A row meets it only if it is true: NULL violates.

    `name` is unique in its dataset.
    """

    name: str
    condition: str
    action: ViolationAction


@dataclass(frozen=True, slots=True)
class ExpectationCount:
    """How many rows violate an expectation.

    `violations` counts rows of a view's query at its checkpoint, or all rows that a streaming table's flows
    took in since its last full refresh. `change` is what the last refresh or batch added to it.
    """

    name: str
    action: ViolationAction
    violations: int
    change: int


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A place in a definition file; `line` counts from 1, absent when only the file is known."""

    file: str
    line: int | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line is not None else self.file


class DatasetKind(StrEnum):
    """Kinds of datasets, as Spark Declarative Pipelines names them."""

    STREAMING_TABLE = "streaming table"
    MATERIALIZED_VIEW = "materialized view"
    TEMPORARY_VIEW = "temporary view"
    VIEW = "view"
    SINK = "sink"


@dataclass(frozen=True, slots=True)
class Dataset:
    """One dataset as its definition file declares it, before anything is resolved.

    `schema_ddl` is the user's own schema in Spark DDL, or None when the query decides. `format` is the
    user's `USING …` in lower case, or None. For temporary views `name` carries the pipeline's
    catalog and database although Spark knows them by the last part alone. `bad_records_of` is the table whose
    bad records it takes, for a quarantine (`model.source`), which no file declares; likewise `events_of`
    is the table into which its events are merged (`project.auto_cdc`). With
    `is_kind_by_query` it is a streaming table if its query is a stream and a materialized view if not, as
    Databricks' `@dlt.table` has it; until the query is analysed `kind` says streaming table.
    """

    name: TableName
    kind: DatasetKind
    location: SourceLocation
    comment: str | None = None
    schema_ddl: str | None = None
    format: str | None = None
    partition_columns: tuple[str, ...] = ()
    cluster_columns: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    bad_records_of: TableName | None = None
    events_of: TableName | None = None
    expectations: tuple[Expectation, ...] = ()
    is_kind_by_query: bool = False


@dataclass(frozen=True, slots=True)
class FlowInputs:
    """What a flow's resolved plan reads.

    `batch` and `stream` are lake tables (datasets or external tables) read as a whole or as a
    stream, seen through temporary views. `external_streams` is true when a stream comes from outside
    the lake (files, Kafka, rate…). `unversioned` names batch reads that have no version of their own,
    such as `csv:/data/x.csv` or `local data`. `clocks` is what a batch query asks for the time
    (`model.names`).
    """

    batch: frozenset[TableName] = frozenset()
    stream: frozenset[TableName] = frozenset()
    external_streams: bool = False
    unversioned: tuple[str, ...] = ()
    clocks: frozenset[TableName] = frozenset()

    @property
    def tables(self) -> frozenset[TableName]:
        return self.batch | self.stream


LAKE_FORMAT = "iceberg"
"""The format of every table of a pipeline."""


class OtherFormats(StrEnum):
    """What `format=` and `USING` of another format mean."""

    MAP = "map"
    PUBLISH = "publish"
    FAIL = "fail"


class OtherCatalogs(StrEnum):
    """What a dataset's name means that begins with a catalog which no setting defines."""

    MAP = "map"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, order=True)
class ColumnRef:
    """A column of a table in the lake."""

    table: TableName
    column: str


@dataclass(frozen=True, slots=True)
class LakeColumn:
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
    columns: tuple[LakeColumn, ...]
    lineage: ColumnLineage

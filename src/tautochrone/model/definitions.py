"""What a pipeline project defines: datasets, flows and the graph they make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tautochrone.model.expectations import Expectation
from tautochrone.model.names import TableName

__all__ = ["Dataset", "DatasetKind", "FlowInputs", "SourceLocation"]


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
    bad records it takes, for a quarantine (`model.quarantine`), which no file declares; likewise `events_of`
    is the table into which its events are merged (`project.auto_cdc_events`). With
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
    (`model.clock`).
    """

    batch: frozenset[TableName] = frozenset()
    stream: frozenset[TableName] = frozenset()
    external_streams: bool = False
    unversioned: tuple[str, ...] = ()
    clocks: frozenset[TableName] = frozenset()

    @property
    def tables(self) -> frozenset[TableName]:
        return self.batch | self.stream

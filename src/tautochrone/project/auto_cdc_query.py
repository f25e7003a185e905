"""The query of an AUTO CDC flow: the columns of its table, and what each event does to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import BooleanType, StructField, StructType, TimestampType

from tautochrone.errors import DefinitionError
from tautochrone.model.auto_cdc import (
    DELETE_COLUMN,
    END_COLUMN,
    POSITION_RESTARTS,
    SEQUENCE_COLUMN,
    START_COLUMN,
    TRUNCATE_COLUMN,
    AutoCdc,
    common_auto_cdc,
    position_restarts,
)
from tautochrone.model.definitions import Dataset, DatasetKind
from tautochrone.model.log_retention import TOMBSTONE_RETENTION, tombstone_retention_ms
from tautochrone.model.names import quoted
from tautochrone.project.databricks.unsupported import databricks_only
from tautochrone.project.definitions import Flow, Query, QueryListener
from tautochrone.project.explain_failure import CodePosition
from tautochrone.spark.execute.change_order import is_change_order
from tautochrone.spark.execute.late_events import has_horizon
from tautochrone.spark.jvm.errors import SparkProblem, problem_of

_NO_STREAM = "_LEGACY_ERROR_TEMP_1008"
"""Spark's class of a view that is read as a stream and is none."""

__all__ = ["AutoCdcQuery", "check_auto_cdc", "check_sequence", "written_columns"]


@dataclass(frozen=True, slots=True)
class AutoCdcQuery:
    """A source's rows as events.

    `source` is the query of the source, `location` where the flow is defined.
    """

    source: Query
    auto_cdc: AutoCdc
    location: str

    @property
    def written(self) -> str:
        return self.source.written

    def dataframe(self, session: SparkSession, listener: QueryListener | None = None) -> DataFrame:
        """The columns of the table, the sequence value, and whether the event deletes or truncates."""
        rows, auto_cdc = self._rows(session, listener), self.auto_cdc
        chosen = tuple(rows.columns)
        if auto_cdc.columns is not None:
            chosen = auto_cdc.columns.of(chosen, self.location)
        auto_cdc.merge_columns(chosen, self.location)
        self._check_names(chosen)
        events = rows.select(
            *(rows[quoted(name)] for name in chosen),
            self._sequence().alias(SEQUENCE_COLUMN),
            _condition(auto_cdc.delete).alias(DELETE_COLUMN),
            _condition(auto_cdc.truncate).alias(TRUNCATE_COLUMN),
        )
        self._check_sequence(events.schema)
        return events

    def _rows(self, session: SparkSession, listener: QueryListener | None) -> DataFrame:
        try:
            return self.source.dataframe(session, listener)
        except PySparkException as error:
            if self.auto_cdc.is_once and problem_of(error).error_class == _NO_STREAM:
                raise databricks_only("once", "A flow that reads a batch once", self.location) from error
            raise

    def view_text(self, _session: SparkSession) -> str | None:
        return None

    def position_of(self, error: BaseException, problem: SparkProblem | None) -> CodePosition | None:
        return self.source.position_of(error, problem)

    def _sequence(self) -> Column:
        if self.auto_cdc.snapshots_of:
            # A merge puts the time of the checkpoint in its place.
            return sf.lit(None).cast(TimestampType())
        return _column(self.auto_cdc.sequence)

    def _check_sequence(self, schema: StructType) -> None:
        kind = schema[SEQUENCE_COLUMN].dataType.simpleString()
        if any(word in kind for word in ("map", "variant", "void", "interval")):
            raise DefinitionError(
                "AUTO_CDC_SEQUENCE_TYPE",
                f"The sequence of an AUTO CDC flow is {kind}, which has no order or is not stored",
                sqlstate="42K09",
                location=self.location,
                hint="order by a number, a time, a text or a STRUCT of such",
            )

    def _check_names(self, columns: tuple[str, ...]) -> None:
        own = (START_COLUMN, END_COLUMN) if self.auto_cdc.scd_type == 2 else ()
        reserved = {name.lower() for name in (*own, SEQUENCE_COLUMN, DELETE_COLUMN, TRUNCATE_COLUMN)}
        for name in columns:
            if name.lower() in reserved:
                raise DefinitionError(
                    "AUTO_CDC_RESERVED_COLUMN",
                    f"The source of an AUTO CDC flow has a column {name}, which AUTO CDC adds itself",
                    location=self.location,
                    hint="leave it out with COLUMNS * EXCEPT, or rename it",
                )


def written_columns(flow: Flow, schema: StructType) -> StructType:
    """The columns that a flow writes, whose query has this schema."""
    if flow.auto_cdc is None:
        return schema
    special = (SEQUENCE_COLUMN, DELETE_COLUMN, TRUNCATE_COLUMN)
    fields = [field for field in schema.fields if field.name not in special]
    if flow.auto_cdc.scd_type == 2:
        sequence = schema[SEQUENCE_COLUMN].dataType
        fields += [StructField(START_COLUMN, sequence), StructField(END_COLUMN, sequence)]
    return StructType(fields)


def check_auto_cdc(dataset: Dataset, flows: Sequence[Flow]) -> None:
    """What the flows of a dataset must have in common.

    Raises:
        DefinitionError: `AUTO_CDC_TARGET`, `AUTO_CDC_FLOWS_DIFFER`, `EXPECTATION_NOT_SUPPORTED`,
            `INVALID_TOMBSTONE_RETENTION`, `TOMBSTONE_RETENTION_NOT_SUPPORTED`, `INVALID_POSITION_RESTARTS`,
            `POSITION_RESTARTS_NOT_SUPPORTED`.
    """
    common = common_auto_cdc([(flow.name, flow.auto_cdc, str(flow.location)) for flow in flows])
    forgets = tombstone_retention_ms(dataset.properties, str(dataset.location)) is not None
    if forgets and (common is None or common.scd_type != 1 or common.takes_snapshots):
        raise DefinitionError(
            "TOMBSTONE_RETENTION_NOT_SUPPORTED",
            f"{dataset.name} has the property {TOMBSTONE_RETENTION}, and it is no table of SCD type 1 that "
            "takes events of AUTO CDC flows",
            sqlstate="0A000",
            location=str(dataset.location),
            hint="take the property out: other tables have no deletions to forget",
        )
    if position_restarts(dataset.properties, str(dataset.location)) and common is None:
        raise _restarts_not_supported(dataset)
    if common is None:
        return
    location = str(flows[0].location)
    if dataset.kind is not DatasetKind.STREAMING_TABLE:
        raise DefinitionError(
            "AUTO_CDC_TARGET",
            f"The AUTO CDC flow {flows[0].name} writes {dataset.name}, a {dataset.kind}",
            location=location,
            hint="create the target with CREATE STREAMING TABLE or create_streaming_table()",
        )
    if dataset.expectations and common.takes_snapshots:
        raise DefinitionError(
            "EXPECTATION_NOT_SUPPORTED",
            f"{dataset.name} takes what changes from one snapshot to the next, and it has expectations",
            sqlstate="0A000",
            location=str(dataset.location),
            hint="Let the source or the function leave such rows out, or give the expectations to the source "
            "or to a view over the table.",
        )


def check_sequence(dataset: Dataset, query: StructType) -> None:
    """What a table that forgets deletions, or whose positions began anew, needs of its flows' queries.

    Raises:
        DefinitionError: `TOMBSTONE_RETENTION_WITHOUT_TIME`, `POSITION_RESTARTS_NOT_SUPPORTED`.
    """
    restarts = position_restarts(dataset.properties, str(dataset.location))
    if restarts and not is_change_order(query[SEQUENCE_COLUMN].dataType):
        raise _restarts_not_supported(dataset)
    if tombstone_retention_ms(dataset.properties, str(dataset.location)) is None:
        return
    kind = query[SEQUENCE_COLUMN].dataType
    if not has_horizon(kind):
        raise DefinitionError(
            "TOMBSTONE_RETENTION_WITHOUT_TIME",
            f"{dataset.name} has the property {TOMBSTONE_RETENTION}, and its sequence is of type "
            f"{kind.simpleString()}",
            sqlstate="42K09",
            location=str(dataset.location),
            hint="a duration needs a sequence of type TIMESTAMP or DATE; without the property all deletions "
            "are remembered",
        )


def _restarts_not_supported(dataset: Dataset) -> DefinitionError:
    return DefinitionError(
        "POSITION_RESTARTS_NOT_SUPPORTED",
        f"{dataset.name} has the property {POSITION_RESTARTS}, and it is no table of AUTO CDC whose events "
        "have a position in a log and an offset in Kafka",
        sqlstate="0A000",
        location=str(dataset.location),
        hint="take the property out; it is for the events of debezium.events, canal.events and "
        "maxwell.events, ordered by their column _sequence",
    )


def _column(expression: Any) -> Column:
    return sf.expr(expression) if isinstance(expression, str) else expression


def _condition(expression: Any) -> Column:
    """A condition that is NULL is not met."""
    if expression is None:
        return sf.lit(False)
    return sf.coalesce(_column(expression).cast(BooleanType()), sf.lit(False))

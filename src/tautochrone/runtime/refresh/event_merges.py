"""The merge of a table's AUTO CDC flows, and the rows that all of their events give at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from tautochrone.ingest.column_alignment import align
from tautochrone.model.auto_cdc import (
    DELETE_COLUMN,
    END_COLUMN,
    SEQUENCE_COLUMN,
    START_COLUMN,
    TRUNCATE_COLUMN,
    AutoCdc,
    Restart,
    position_restarts,
)
from tautochrone.model.definitions import Dataset
from tautochrone.model.names import TableName
from tautochrone.project.graph import ResolvedFlow
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan
from tautochrone.spark.execute.change_order import (
    MOVED,
    WENT_BACK,
    ChangeOrder,
    is_change_order,
    with_generation,
)
from tautochrone.spark.execute.merge_events import EventMerge
from tautochrone.spark.execute.merge_history import event_merge
from tautochrone.spark.sources.stream_as_batch import stream_as_batch

__all__ = ["aligned_events", "auto_cdc_of", "input_of", "merge_of", "rows_of_all_events"]


def auto_cdc_of(flows: Sequence[ResolvedFlow]) -> AutoCdc | None:
    """How the flows of a table merge; None: they append."""
    return next((flow.flow.auto_cdc for flow in flows if flow.flow.auto_cdc is not None), None)


def input_of(flow: ResolvedFlow) -> TableName:
    """The lake table whose events an AUTO CDC flow takes."""
    (table,) = flow.inputs.stream
    return table


def merge_of(
    flows: Sequence[ResolvedFlow], schema: StructType, query: StructType, location: str
) -> EventMerge:
    """How the events of a table's flows are merged.

    Args:
        schema: the table's.
        query: the schema of the flows' queries.
        location: where the table is defined.
    """
    auto_cdc = auto_cdc_of(flows)
    assert auto_cdc is not None
    columns = [*_data_columns(schema), SEQUENCE_COLUMN]
    types = {field.name: field for field in (*query.fields, *schema.fields)}
    return event_merge(
        auto_cdc,
        auto_cdc.merge_columns(columns, location),
        StructType([types[name] for name in columns]),
        truncates=any(flow.flow.auto_cdc and flow.flow.auto_cdc.truncate is not None for flow in flows),
    )


def aligned_events(
    parts: Sequence[DataFrame], schema: StructType, table: TableName, restarts: Sequence[Restart] = ()
) -> DataFrame:
    """The events of all flows, with the columns of the table and those that say what an event does.

    Args:
        restarts: where the positions of the events began anew.
    """
    events = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), parts)
    special = (SEQUENCE_COLUMN, DELETE_COLUMN, TRUNCATE_COLUMN)
    fields = [*(schema[name] for name in _data_columns(schema)), *(events.schema[name] for name in special)]
    aligned = align(events, StructType(fields), str(table))
    if not restarts or not is_change_order(aligned.schema[SEQUENCE_COLUMN].dataType):
        return aligned
    return aligned.withColumn(SEQUENCE_COLUMN, with_generation(sf.col(SEQUENCE_COLUMN), restarts))


def rows_of_all_events(
    flows: Sequence[ResolvedFlow],
    inputs: Mapping[TableName, DataFrame],
    schema: StructType,
    dataset: Dataset,
) -> DataFrame:
    """The rows of a table if all events are merged at once.

    Args:
        inputs: what the flows read, in a session in which their queries can be evaluated.
        schema: the table's.
        dataset: the table.
    """
    parts = [
        stream_as_batch(rows.sparkSession, analyzed_plan(flow.evaluate(rows.sparkSession)), rows)
        for flow in flows
        for rows in (inputs[input_of(flow)],)
    ]
    table, location = dataset.name, str(dataset.location)
    events = aligned_events(parts, schema, table, position_restarts(dataset.properties, location))
    merge = merge_of(flows, schema, events.schema, location)
    renamed = merge.renamed(events)
    if is_change_order(merge.sequence_type):
        order = ChangeOrder(merge, is_one_flow=len(flows) == 1)
        renamed = order.checked(order.first_copies(renamed), None).drop(MOVED, WENT_BACK)
    folded = merge.fold(renamed)
    nothing = events.sparkSession.createDataFrame([], merge.state_schema("run"))
    return align(merge.merge(folded, nothing).added, schema, str(table))


def _data_columns(schema: StructType) -> list[str]:
    return [name for name in schema.names if name not in (START_COLUMN, END_COLUMN)]

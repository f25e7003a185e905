"""Checks what a dataset's flows must agree on: kind of query, columns, types. Spark's rules and classes."""

from __future__ import annotations

import json
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from tautochrone.errors import DefinitionError
from tautochrone.model.auto_cdc import keyed_apply_of
from tautochrone.model.definitions import Dataset, DatasetKind
from tautochrone.project.definitions import Flow
from tautochrone.spark.jvm.errors import problem_of

__all__ = ["check_query_type", "table_schema", "with_stored"]


def check_query_type(kind: DatasetKind, flow: Flow, *, streaming: bool) -> None:
    """Check that streaming tables and sinks get streams, and materialized and persisted views get batches.

    Raises:
        DefinitionError: INVALID_FLOW_QUERY_TYPE with Spark's sub-class.
    """
    name, target = flow.name, flow.target
    hint = None
    if kind is DatasetKind.STREAMING_TABLE and not streaming:
        sub, hint = (
            "BATCH_RELATION_FOR_STREAMING_TABLE",
            "Write FROM STREAM x, STREAM(x) or spark.readStream, or make it a materialized view.",
        )
        sentence = (
            f"Streaming tables may only be defined by streaming relations, but the flow {name} attempts to "
            f"write a batch relation to the streaming table {target}. Consider using the STREAM operator in "
            "Spark-SQL to convert the batch relation into a streaming relation, or populating the streaming "
            "table with an append once-flow instead."
        )
    elif kind is DatasetKind.SINK and not streaming:
        sub, hint = "BATCH_RELATION_FOR_SINK", "Write FROM STREAM x, STREAM(x) or spark.readStream."
        sentence = f"Sinks take streams, but the flow {name} writes a batch relation to the sink {target}."
    elif kind is DatasetKind.MATERIALIZED_VIEW and streaming:
        sub, hint = (
            "STREAMING_RELATION_FOR_MATERIALIZED_VIEW",
            "Make it a streaming table, or drop STREAM.",
        )
        sentence = (
            f"Materialized views may only be defined by a batch relation, but the flow {name} attempts to "
            f"write a streaming relation to the materialized view {target}."
        )
    elif kind is DatasetKind.VIEW and streaming:
        sub, hint = (
            "STREAMING_RELATION_FOR_PERSISTED_VIEW",
            "Make it a TEMPORARY VIEW, or read without STREAM.",
        )
        sentence = (
            f"Persisted views may only be defined by a batch relation, but the flow {name} attempts to "
            f"write a streaming relation to the persisted view {target}."
        )
    else:
        return
    raise DefinitionError(
        f"INVALID_FLOW_QUERY_TYPE.{sub}",
        f"Flow {name} returns an invalid relation type. {sentence}",
        location=str(flow.location),
        hint=hint,
    )


def table_schema(dataset: Dataset, flows: list[tuple[Flow, StructType]], session: SparkSession) -> StructType:
    """The columns of a table: the user's own when given, else all columns of its flows.

    Raises:
        DefinitionError: flows disagree about a type (UNABLE_TO_INFER_PIPELINE_TABLE_SCHEMA), a flow
            does not fit the user's schema (USER_SPECIFIED_AND_INFERRED_SCHEMA_NOT_COMPATIBLE), or a
            partition column does not exist (COLUMN_NOT_DEFINED_IN_TABLE).
    """
    inferred = _merge(dataset, flows)
    # Columns are nullable, as with Spark's own writers: the optimiser's knowledge about NULLs may change.
    schema = StructType.fromJson(_nullable(inferred.jsonValue()))
    apply = keyed_apply_of(dataset.properties, str(dataset.location))
    if apply is not None:
        schema = StructType([field for field in schema.fields if field.name not in apply.dropped])
    if dataset.schema_ddl is not None:
        schema = _parse(dataset, session)
        declared = {field.name.lower(): field.dataType.simpleString() for field in schema.fields}
        for field in inferred.fields:
            if declared.get(field.name.lower()) != field.dataType.simpleString():
                raise DefinitionError(
                    "USER_SPECIFIED_AND_INFERRED_SCHEMA_NOT_COMPATIBLE",
                    f"Table '{dataset.name}' has a user-specified schema that is incompatible with the "
                    f"schema inferred from its query. Declared schema: {schema.simpleString()}; "
                    f"inferred schema: {inferred.simpleString()}",
                    location=str(dataset.location),
                    hint=f"Column {field.name} is {field.dataType.simpleString()} in the query, "
                    f"{declared.get(field.name.lower(), 'absent')} in the declared schema.",
                )
    known = {field.name.lower() for field in schema.fields}
    for column in (*dataset.partition_columns, *dataset.cluster_columns):
        if column.split(".")[0].lower() not in known:
            raise DefinitionError(
                "COLUMN_NOT_DEFINED_IN_TABLE",
                f"Table {dataset.name} has no column {column} to partition or cluster by",
                sqlstate="42703",
                location=str(dataset.location),
                hint=f"Its columns are {', '.join(schema.fieldNames())}.",
            )
    return schema


def with_stored(schema: StructType, stored: StructType | None) -> StructType:
    """The columns of an existing streaming table: the stored ones in their order, then new ones."""
    if stored is None:
        return schema
    new_fields = {field.name.lower(): field for field in schema.fields}
    stored_fields = [new_fields.pop(field.name.lower(), field) for field in stored.fields]
    return StructType([*stored_fields, *new_fields.values()])


def _nullable(node: Any) -> Any:
    """A type's JSON with every "nullable" set, at every level."""
    if isinstance(node, list):
        return [_nullable(child) for child in node]
    if not isinstance(node, dict):
        return node
    nullable_keys = {"nullable", "containsNull", "valueContainsNull"}
    return {
        key: True if key in nullable_keys else child if key == "metadata" else _nullable(child)
        for key, child in node.items()
    }


def _parse(dataset: Dataset, session: SparkSession) -> StructType:
    jvm = session._jvm  # noqa: SLF001
    assert jvm is not None
    try:
        text = jvm.org.apache.spark.sql.types.StructType.fromDDL(dataset.schema_ddl).json()
    except PySparkException as error:
        problem = problem_of(error)
        raise DefinitionError(
            problem.error_class,
            f"The schema of {dataset.name} cannot be read: {problem.message}",
            sqlstate=problem.sqlstate,
            location=str(dataset.location),
        ) from error
    return StructType.fromJson(json.loads(text))


def _merge(dataset: Dataset, flows: list[tuple[Flow, StructType]]) -> StructType:
    merged: dict[str, object] = {}
    fields = []
    for flow, schema in flows:
        for field in schema.fields:
            key, kind = field.name.lower(), field.dataType.simpleString()
            if key not in merged:
                merged[key] = kind
                fields.append(field)
            elif merged[key] != kind and len(flows) > 1:
                raise DefinitionError(
                    "UNABLE_TO_INFER_PIPELINE_TABLE_SCHEMA",
                    f"Failed to infer the schema for table {dataset.name} from its upstream flows. Please "
                    "modify the flows that write to this table to make their schemas compatible. Column "
                    f"{field.name} is {merged[key]} so far, and {kind} in flow {flow.name}",
                    sqlstate="42KD9",
                    location=str(flow.location),
                )
    return StructType(flows[0][1].fields if len(flows) == 1 else fields)

"""Checks of definitions, with Spark's rules, classes and sentences where it has them.

Before any query is evaluated: targets, numbers of flows, expectations. Afterwards what a dataset's flows must
agree on: kind of query, columns, types.

Formats that definitions ask for: `format=` and `USING`. Spark's own pipelines write managed tables in such a
format. Here all tables are Iceberg, so a format of files or of another lake format means "a managed table",
and the dataset remembers what was asked for.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from tautochrone.errors import DefinitionError
from tautochrone.model.auto_cdc import keyed_apply_of
from tautochrone.model.definitions import (
    LAKE_FORMAT,
    Dataset,
    DatasetKind,
    Expectation,
    OtherFormats,
    ViolationAction,
)
from tautochrone.model.names import TableName
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.sink import PUBLICATIONS
from tautochrone.project.definitions import Definitions, DefinitionWarning, Flow, is_view
from tautochrone.project.table_properties import check_policies
from tautochrone.spark.jvm.errors import problem_of

__all__ = [
    "check_format",
    "check_query_type",
    "did_you_mean",
    "mapped_datasets",
    "mapping_reason",
    "table_schema",
    "uncounted_expectations",
    "unique_expectations",
    "validate",
    "with_stored",
]


def validate(definitions: Definitions, files: int, main_files: Sequence[str] = ()) -> None:
    """Check targets and numbers of flows.

    Args:
        definitions: everything that the files define.
        files: how many files match the globs of the spec.
        main_files: those that define something only as the main program.

    Raises:
        DefinitionError: a flow without target, a dataset without flow or with too many of them, a
            refresh policy that does not exist.
    """
    datasets = definitions.datasets
    check_policies(datasets.values())
    is_stored = (not is_view(item) or item.kind is DatasetKind.VIEW for item in datasets.values())
    if not any(is_stored) and not definitions.sinks:
        raise DefinitionError(
            "RUN_EMPTY_PIPELINE",
            "Pipelines are expected to have at least one non-temporary dataset defined (tables, persisted "
            "views) but no non-temporary datasets were found in your pipeline.",
            sqlstate="42617",
            location=str(definitions.spec.path),
            hint=_why_empty(definitions, files, main_files),
        )
    for flow in definitions.flows:
        if flow.target not in datasets and flow.target not in definitions.sinks:
            raise DefinitionError(
                "FLOW_TARGET_NOT_FOUND",
                f"Flow {flow.name} writes to {flow.target}, which no definition creates",
                sqlstate="42P01",
                location=str(flow.location),
                hint=did_you_mean(flow.target, [*datasets, *definitions.sinks])
                or "Create it with CREATE STREAMING TABLE or create_streaming_table().",
            )
    for name, dataset in datasets.items():
        _check_number_of_flows(dataset, definitions.flows_of(name))


def _check_number_of_flows(dataset: Dataset, flows: Sequence[Flow]) -> None:
    name = dataset.name
    if not flows:
        raise DefinitionError(
            "PIPELINE_DATASET_WITHOUT_FLOW",
            f"Pipeline dataset {name} does not have any defined flows. Please attach a query with "
            "the dataset's definition, or explicitly define at least one flow that writes to the dataset.",
            sqlstate="0A000",
            location=str(dataset.location),
        )
    if len(flows) > 1 and dataset.kind is not DatasetKind.STREAMING_TABLE:
        raise DefinitionError(
            "MATERIALIZED_VIEW_WITH_MULTIPLE_QUERIES",
            f"The {dataset.kind} {name} has {len(flows)} flows; it can have one only: "
            + ", ".join(f"{flow.name} (at {flow.location})" for flow in flows),
            location=str(flows[1].location),
            hint="Only streaming tables take several flows.",
        )


def _why_empty(definitions: Definitions, files: int, main_files: Sequence[str]) -> str:
    if definitions.datasets:
        names = ", ".join(sorted(name.table for name in definitions.datasets))
        return f"There are only temporary views ({names}), which store nothing: add a materialized view."
    if main_files:
        return (
            f'{main_files[0]} defines datasets below `if __name__ == "__main__"`, which is false in a '
            "definition file: call the function without the condition."
        )
    if files:
        noun = "file that matches defines" if files == 1 else "files that match define"
        return f"The {files} {noun} nothing: are the decorators of pyspark.pipelines on the functions?"
    globs = ", ".join(definitions.spec.libraries)
    return f"No file matches the globs under `libraries` in the spec: {globs}."


_IN_ANOTHER_DATABASE = 0.85
"""How alike the names of tables in different databases must be to be taken for a mistake; at most 1."""


def did_you_mean(name: TableName, known: Iterable[TableName]) -> str | None:
    """A hint with the nearest known name, if one is similar.

    Tables of other databases count only if their names are nearly the same: `silver.dim_users` is not
    `source.users`.
    """
    known = tuple(known)
    for other in known:
        if other != name and str(other).lower() == str(name).lower():
            return f"The project defines {other.without_catalog}: only upper and lower case differ."
    by_table: dict[str, TableName] = {}
    for known_name in sorted(known, key=lambda other: other.namespace != name.namespace):
        by_table.setdefault(known_name.table, known_name)
    similar = difflib.get_close_matches(name.table, by_table)
    near = [
        by_table[table]
        for table in similar
        if by_table[table].namespace == name.namespace or _likeness(table, name.table) > _IN_ANOTHER_DATABASE
    ]
    return f"Did you mean {near[0].without_catalog}?" if near else None


def _likeness(a: str, b: str) -> float:
    return difflib.SequenceMatcher(None, a, b).ratio()


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


_MANAGED_TABLE_FORMATS = frozenset(
    {"parquet", "delta", "orc", "avro", "json", "csv", "text", "hive", "hudi", "paimon"}
)


def check_format(dataset: Dataset) -> None:
    """Refuse a format in which Spark has no managed tables.

    Raises:
        DefinitionError: `UNSUPPORTED_TABLE_FORMAT`.
    """
    if dataset.format is None or dataset.format == LAKE_FORMAT or dataset.format in _MANAGED_TABLE_FORMATS:
        return
    known = sorted({LAKE_FORMAT, *_MANAGED_TABLE_FORMATS})
    near = difflib.get_close_matches(dataset.format, known, n=1)
    meant = f"Did you mean {near[0]}? " if near else ""
    raise DefinitionError(
        "UNSUPPORTED_TABLE_FORMAT",
        f"Dataset {dataset.name} asks for the format {dataset.format}, which is no format of managed tables",
        sqlstate="0A000",
        location=str(dataset.location),
        hint=f"{meant}Leave the format out, or write one of {', '.join(known)}.",
    )


def mapped_datasets(definitions: Definitions, other_formats: OtherFormats) -> Sequence[Dataset]:
    """The datasets that ask for another format than the lake's, and are not published in it.

    Raises:
        DefinitionError: `TABLE_FORMAT_NOT_WRITTEN`, there is one and the setting forbids it.
    """
    datasets = [
        dataset for dataset in definitions.datasets.values() if dataset.format not in (None, LAKE_FORMAT)
    ]
    if datasets and other_formats is OtherFormats.FAIL:
        raise DefinitionError(
            "TABLE_FORMAT_NOT_WRITTEN",
            f"Dataset {datasets[0].name} asks for the format {datasets[0].format}, and tables are written "
            f"in {LAKE_FORMAT}",
            sqlstate="0A000",
            location=str(datasets[0].location),
            hint="Leave the format out of the definition, or set other_formats below [lake] to map or "
            "publish.",
        )
    is_published = other_formats is OtherFormats.PUBLISH
    return [dataset for dataset in datasets if not (is_published and dataset.format in PUBLICATIONS)]


def mapping_reason(dataset: Dataset) -> Reason:
    """Why a dataset is written in another format than its definition asks for."""
    return Reason.of(ReasonCode.TABLE_FORMAT_MAPPED, format=dataset.format, lake_format=LAKE_FORMAT)


def unique_expectations(expectations: tuple[Expectation, ...], dataset: Dataset) -> tuple[Expectation, ...]:
    """The expectations of a dataset.

    Raises:
        DefinitionError: `DUPLICATE_EXPECTATION`, two have one name.
    """
    names = [expectation.name for expectation in expectations]
    for name in names:
        if names.count(name) > 1:
            raise DefinitionError(
                "DUPLICATE_EXPECTATION",
                f"Dataset {dataset.name} has several expectations called {name!r}",
                sqlstate="42710",
                location=str(dataset.location),
                hint="Their rows are counted by name: give each its own.",
            )
    return expectations


def uncounted_expectations(datasets: Iterable[Dataset]) -> Iterator[DefinitionWarning]:
    """Warnings about views, which hold no rows that could be counted.

    Raises:
        DefinitionError: `EXPECTATION_OF_VIEW`, a view has an expectation that should fail a refresh;
            `EXPECTATION_NOT_SUPPORTED`, a table that is merged by key has one.
    """
    for dataset in datasets:
        if not dataset.expectations:
            continue
        if keyed_apply_of(dataset.properties, str(dataset.location)) is not None:
            raise DefinitionError(
                "EXPECTATION_NOT_SUPPORTED",
                f"The rows of {dataset.name} are merged by key, and it has expectations",
                sqlstate="0A000",
                location=str(dataset.location),
                hint="Give them to the table that its flow reads, or to a view over it.",
            )
        if not is_view(dataset):
            continue
        failing = [e.name for e in dataset.expectations if e.action is ViolationAction.FAIL]
        if failing:
            raise DefinitionError(
                "EXPECTATION_OF_VIEW",
                f"The {dataset.kind} {dataset.name} has the expectation {failing[0]!r}, which "
                "fails a refresh, and a view has none",
                sqlstate="0A000",
                location=str(dataset.location),
                hint="Give the expectation to the table that reads the view, or make the view a "
                f"{DatasetKind.MATERIALIZED_VIEW}.",
            )
        names = ", ".join(e.name for e in dataset.expectations)
        reason = Reason.of(ReasonCode.EXPECTATION_NOT_COUNTED, dataset=str(dataset.name), expectations=names)
        yield DefinitionWarning(dataset.location, reason)

"""Converts a `TableDefinition` to Iceberg's schema, partition spec and sort order."""

from __future__ import annotations

import re
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from tautochrone.errors import DefinitionError
from tautochrone.iceberg.commits.compare_and_set import Loaded, is_of_the_future, with_current_time
from tautochrone.iceberg.java.api import Iceberg
from tautochrone.model.lake import TableDefinition
from tautochrone.model.names import TableName
from tautochrone.spark.jvm.errors import problem_of

__all__ = ["TRIMMED", "TableShape", "replacement_transaction", "shape_of", "widened_schema"]

TRIMMED = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
"""Every commit writes a new metadata file, so old ones must be deleted. A few are kept, because a reader may
just have got the location of an older one from the catalog."""

_TRANSFORM = re.compile(r"^(\w+)\((?:(\d+)\s*,\s*)?`?([^`,()]+)`?\s*(?:,\s*(\d+))?\)$")
_TIME = {
    "years": "year",
    "year": "year",
    "months": "month",
    "month": "month",
    "days": "day",
    "day": "day",
    "hours": "hour",
    "hour": "hour",
}


class TableShape:
    """Java values `schema`, `spec` and `order`, and the table properties that are set."""

    def __init__(self, schema: Any, spec: Any, order: Any, properties: dict[str, str]) -> None:
        self.schema = schema
        self.spec = spec
        self.order = order
        self.properties = properties


def shape_of(iceberg: Iceberg, definition: TableDefinition) -> TableShape:
    """Translate; partition columns may be names or Spark's transforms (`days(ts)`, `bucket(8, id)`).

    Raises:
        DefinitionError: a column type or a transform that Iceberg cannot hold.
    """
    try:
        schema = iceberg.api.spark.SparkSchemaUtil.convert(iceberg.java_schema(definition.schema))
        spec = iceberg.api.PartitionSpec.builderFor(schema)
        for column in definition.partition_columns:
            _add_partition(spec, column, definition)
        order = iceberg.api.SortOrder.builderFor(schema)
        for column in definition.cluster_columns:
            order.asc(column.strip("`"))
        properties = {"format-version": "3", **TRIMMED, **definition.properties}
        if definition.comment:
            properties["comment"] = definition.comment
        return TableShape(schema, spec.build(), order.build(), properties)
    except (Py4JError, PySparkException) as error:
        # PySpark converts Java exceptions that it knows; all others stay Py4J errors.
        raise DefinitionError(
            "UNSUPPORTED_TABLE_SHAPE",
            f"{definition.name} cannot be an Iceberg table: {problem_of(error).message}",
            hint="cast the column to a type that Iceberg has, or change the partition columns",
        ) from error


def replacement_transaction(
    iceberg: Iceberg, name: TableName, loaded: Loaded, shape: TableShape, metadata: Any | None = None
) -> Any:
    """A Java transaction that replaces the table's schema and rows. Never commit it, because it retries
    without checks; commit its metadata by compare-and-set instead.

    Args:
        metadata: made from the loaded one; by name its columns give their ids to those of the shape.
    """
    metadata = loaded.metadata if metadata is None else metadata
    if is_of_the_future(metadata):
        metadata = with_current_time(iceberg, metadata)
    metadata = metadata.buildReplacement(
        shape.schema,
        shape.spec,
        shape.order,
        loaded.metadata.location(),
        iceberg.map(shape.properties),
    )
    transactions = iceberg.api.Transactions
    return transactions.replaceTableTransaction(str(name), loaded.operations, metadata)


def widened_schema(iceberg: Iceberg, name: TableName, loaded: Loaded, new_schema: Any) -> Any | None:
    """The table's Java schema with the columns of `new_schema` added as optional; None if it has all of them.

    Raises:
        DefinitionError: a column of a type that Iceberg cannot change into that of `new_schema`.
    """
    try:
        added = iceberg.api.spark.SparkSchemaUtil.convert(iceberg.java_schema(new_schema))
        update = loaded.table.updateSchema().caseSensitive(False).unionByNameWith(added)
        schema = update.apply()
    except (Py4JError, PySparkException) as error:
        raise DefinitionError(
            "INCOMPATIBLE_SCHEMA_CHANGE",
            f"{name} cannot take its new columns: {problem_of(error).message}",
            hint=f"rebuild it with --full-refresh {name.table}, or give the new column another name",
        ) from error
    return None if schema.sameSchema(loaded.table.schema()) else schema


def _add_partition(spec: Any, text: str, definition: TableDefinition) -> None:
    match = _TRANSFORM.match(text.strip())
    if match is None:
        spec.identity(text.strip().strip("`"))
        return
    transform, first, column, last = match.groups()
    width = first or last
    if transform.lower() in _TIME:
        getattr(spec, _TIME[transform.lower()])(column)
    elif transform.lower() in ("bucket", "truncate") and width:
        getattr(spec, transform.lower())(column, int(width))
    elif transform.lower() == "identity":
        spec.identity(column)
    else:
        raise DefinitionError(
            "UNSUPPORTED_PARTITION_TRANSFORM",
            f"{definition.name} is partitioned by {text}, which is no Iceberg transform",
            hint="use a column, years/months/days/hours(column), bucket(n, column), truncate(n, column)",
        )

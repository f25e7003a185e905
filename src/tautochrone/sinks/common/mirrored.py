"""Rows of a mirrored table in a relational database, which has one more column: the hash of the row."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from pyspark.sql import types as spark

from tautochrone.errors import SinkError
from tautochrone.model.names import TableName
from tautochrone.sinks.json_rows import comparable

__all__ = [
    "COMPOSITES",
    "HASH",
    "from_json",
    "mirror_name",
    "refuse_changed_columns",
    "refuse_reserved_columns",
    "row_hash",
]

HASH = "_taut_hash"
COMPOSITES = (spark.ArrayType, spark.MapType, spark.StructType)
"""The types of columns that are stored as JSON."""


def row_hash(row: Mapping[str, Any]) -> str:
    """The hash of a row in JSON values, in 32 hexadecimal digits."""
    return hashlib.md5(comparable(row).encode(), usedforsecurity=False).hexdigest()


def from_json(value: Any, spark_type: Any) -> Any:
    """A value of a JSON column as it was written: databases keep 1e300 as an integer of 301 digits."""
    if value is None:
        return None
    if isinstance(spark_type, spark.ArrayType):
        return [from_json(item, spark_type.elementType) for item in value]
    if isinstance(spark_type, spark.MapType):
        return {key: from_json(item, spark_type.valueType) for key, item in value.items()}
    if isinstance(spark_type, spark.StructType):
        return {field.name: from_json(value[field.name], field.dataType) for field in spark_type.fields}
    is_float = isinstance(spark_type, (spark.FloatType, spark.DoubleType))
    return float(value) if is_float and isinstance(value, int) else value


def mirror_name(table: TableName) -> str:
    """The name of a table in a sink: `database__table`, without the database `default`."""
    namespace = () if table.namespace == ("default",) else table.namespace
    return "__".join((*namespace, table.table))


def refuse_reserved_columns(sink: str, table: TableName, schema: Any) -> None:
    """Refuse columns that a sink itself has.

    Raises:
        SinkError: `SINK_COLUMN_NAME_RESERVED`.
    """
    reserved = [name for name in schema.names if name.startswith("_taut_")]
    if reserved:
        raise SinkError(
            "SINK_COLUMN_NAME_RESERVED",
            f"Sink {sink}: {table} has a column {reserved[0]}, a name that the sink itself uses",
            hint="Rename the column in the query of the dataset.",
            sqlstate="42939",
        )


def refuse_changed_columns(sink: str, table: TableName, stored: Any, schema: Any, container: str) -> None:
    """Refuse columns that went or have another type.

    Args:
        stored: the columns that the sink has.
        container: what to drop, such as `the schema lake`.

    Raises:
        SinkError: `SINK_COLUMNS_CHANGED`.
    """
    new_types = {field.name: field.dataType for field in schema.fields}
    changed = [field.name for field in stored.fields if new_types.get(field.name) != field.dataType]
    if changed:
        raise SinkError(
            "SINK_COLUMNS_CHANGED",
            f"Sink {sink}: columns of {table} changed their type or went: {', '.join(changed)}",
            hint=f"Drop {container}, run `taut sinks --forget {sink}`, and the next run delivers all rows.",
            parameters={"sink": sink, "table": str(table)},
            sqlstate="0A000",
        )

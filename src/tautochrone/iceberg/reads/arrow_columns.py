"""The columns of a table as Spark hands them over as Arrow, and how a data file's columns become them.

A data file may be older than the table: columns have other names there, are missing, or have types that
Iceberg widened since. They are found by their ids, never by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tautochrone.iceberg.java.api import Iceberg
from tautochrone.iceberg.java.arrow_types import arrow_type
from tautochrone.iceberg.reads.left_to_spark import LeftToSpark
from tautochrone.model.reason import ReasonCode

__all__ = ["TableColumn", "in_file", "table_columns"]

_FIELD_ID = b"PARQUET:field_id"
_FLOATS = {"float": pa.float32(), "double": pa.float64()}


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table.

    Attributes:
        iceberg_type: as Iceberg's JSON spells it.
        arrow_type: what `toArrow` of a DataFrame gives.
        has_default: rows of files without the column have a value in it.
    """

    name: str
    field_id: int
    iceberg_type: Any
    arrow_type: Any
    has_default: bool


def table_columns(iceberg: Iceberg, table: Any) -> list[TableColumn]:
    """
    Args:
        table: the Java table.

    Raises:
        LeftToSpark: of a column's type.
    """
    columns = []
    for column in json.loads(str(iceberg.api.SchemaParser.toJson(table.schema())))["fields"]:
        try:
            as_arrow = _arrow_type(column["type"])
        except KeyError as error:
            raise LeftToSpark(
                ReasonCode.COLUMN_READ_BY_SPARK, column=column["name"], source=str(table.name())
            ) from error
        has_default = column.get("initial-default") is not None
        columns.append(TableColumn(column["name"], column["id"], column["type"], as_arrow, has_default))
    return columns


def in_file(columns: Sequence[TableColumn], file: Any, path: str) -> list[str | None]:
    """The names that the table's columns have in a Parquet file; None: it is NULL in all rows.

    Raises:
        LeftToSpark: Spark reads a column in another way, or the file has no ids of columns.
    """
    fields = {_id_of(field): field for field in file.schema_arrow}
    names: list[str | None] = []
    for column in columns:
        field = fields.get(column.field_id)
        if field is None:
            # Without ids, names say which column is which, and partitions may have its value.
            if None in fields or column.has_default:
                raise LeftToSpark(ReasonCode.KEY_COLUMN_NOT_IN_FILE, column=column.name, file=path)
            names.append(None)
        elif _is_read_alike(field.type, column.iceberg_type):
            names.append(field.name)
        else:
            raise LeftToSpark(ReasonCode.COLUMN_READ_BY_SPARK, column=column.name, source=path)
    return names


def _id_of(field: pa.Field) -> int | None:
    metadata: Mapping[bytes, bytes] = field.metadata or {}
    return int(metadata[_FIELD_ID]) if _FIELD_ID in metadata else None


def _arrow_type(iceberg_type: Any) -> Any:
    """
    Raises:
        KeyError: Spark reads the type in a way of its own.
    """
    if isinstance(iceberg_type, str):
        if iceberg_type.startswith("fixed["):
            return pa.binary()
        return arrow_type(iceberg_type) or _FLOATS[iceberg_type]
    if iceberg_type["type"] == "struct":
        return pa.struct(
            [
                pa.field(field["name"], _arrow_type(field["type"]), nullable=not field["required"])
                for field in iceberg_type["fields"]
            ]
        )
    if iceberg_type["type"] == "list":
        element = _arrow_type(iceberg_type["element"])
        return pa.list_(pa.field("element", element, nullable=not iceberg_type["element-required"]))
    value = _arrow_type(iceberg_type["value"])
    return pa.map_(
        pa.field("key", _arrow_type(iceberg_type["key"]), nullable=False),
        pa.field("value", value, nullable=not iceberg_type["value-required"]),
    )


def _is_read_alike(stored: pa.DataType, iceberg_type: Any) -> bool:
    """Whether a cast of what a file has is what Spark reads of it."""
    if isinstance(iceberg_type, str):
        return _is_widened(stored, iceberg_type)
    if iceberg_type["type"] == "struct":
        # Fields that came or have other names since are left to Spark.
        return (
            pa.types.is_struct(stored)
            and len(stored) == len(iceberg_type["fields"])
            and all(
                _is_child(stored.field(index), field["id"], field["type"], field["name"])
                for index, field in enumerate(iceberg_type["fields"])
            )
        )
    if iceberg_type["type"] == "list":
        return _is_list(stored) and _is_child(
            stored.value_field, iceberg_type["element-id"], iceberg_type["element"]
        )
    return (
        pa.types.is_map(stored)
        and _is_child(stored.key_field, iceberg_type["key-id"], iceberg_type["key"])
        and _is_child(stored.item_field, iceberg_type["value-id"], iceberg_type["value"])
    )


def _is_list(stored: pa.DataType) -> bool:
    return bool(pa.types.is_list(stored) or pa.types.is_large_list(stored))


def _is_child(field: pa.Field, field_id: int, iceberg_type: Any, name: str | None = None) -> bool:
    is_same = _id_of(field) == field_id and name in (None, field.name)
    return is_same and _is_read_alike(field.type, iceberg_type)


def _is_widened(stored: pa.DataType, iceberg_type: str) -> bool:
    types = pa.types
    if types.is_dictionary(stored):
        stored = stored.value_type
    if iceberg_type in ("int", "long"):
        sizes = (types.is_int8, types.is_int16, types.is_int32, types.is_int64)
        return any(is_size(stored) for is_size in sizes[: 3 if iceberg_type == "int" else 4])
    if iceberg_type == "double":
        return bool(types.is_float64(stored) or types.is_float32(stored))
    if iceberg_type == "string":
        return bool(types.is_string(stored) or types.is_large_string(stored))
    if iceberg_type == "binary":
        return bool(types.is_binary(stored) or types.is_large_binary(stored))
    if iceberg_type.startswith("fixed["):
        return bool(types.is_fixed_size_binary(stored))
    target = _arrow_type(iceberg_type)
    if types.is_decimal(target):
        return bool(
            types.is_decimal(stored) and stored.scale == target.scale and stored.precision <= target.precision
        )
    if types.is_timestamp(target):
        is_precise = types.is_timestamp(stored) and stored.unit == "us"
        return bool(is_precise and (stored.tz is None) == (target.tz is None))
    return bool(stored == target)

"""Columns as the fields of a Paimon schema: those of a lake table, and those of a data file.

Paimon looks for a column in a file under the name that it has in the file's own schema, which the file's
entry in a manifest names, and takes columns for the same if their ids are. So each file gets a schema of the
columns as they stand in it, and columns that were renamed, replaced or widened since are read rightly.

https://paimon.apache.org/docs/master/concepts/spec/schema/
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tautochrone.errors import SinkError
from tautochrone.model.names import TableName
from tautochrone.sinks.common.errors import schema_unsupported_error
from tautochrone.sinks.common.file_columns import column_id

__all__ = ["Fields", "fields_of_file", "fields_of_table"]

Fields = list[dict[str, Any]]
"""As Paimon's JSON of a schema has them. All may be NULL: readers need not know better, and a column that
may be NULL from now on makes no other schema."""

_LOCAL, _ZONED = "TIMESTAMP(6)", "TIMESTAMP(6) WITH LOCAL TIME ZONE"
_PRIMITIVES: Mapping[str, str] = {
    "boolean": "BOOLEAN",
    "int": "INT",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "date": "DATE",
    "timestamp": _LOCAL,
    "timestamptz": _ZONED,
    "string": "STRING",
    "binary": "BYTES",
}
_STORED: Mapping[pa.DataType, str] = {
    pa.bool_(): "BOOLEAN",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.date32(): "DATE",
    pa.timestamp("us"): _LOCAL,
    pa.timestamp("us", "UTC"): _ZONED,
    pa.string(): "STRING",
    pa.large_string(): "STRING",
    pa.binary(): "BYTES",
    pa.large_binary(): "BYTES",
}
_DECIMAL = re.compile(r"decimal\((\d+), ?(\d+)\)")
_RESERVED = re.compile(r"_KEY_.*|_SEQUENCE_NUMBER|_VALUE_KIND|_LEVEL|_ROW_ID|rowkind")
"""Names of columns that Paimon adds to some tables itself."""


def fields_of_table(sink: str, table: TableName, columns: Sequence[Mapping[str, Any]]) -> Fields:
    """
    Args:
        columns: as Iceberg's JSON of a schema has them.

    Raises:
        SinkError: `SINK_SCHEMA_UNSUPPORTED`, Paimon has no such type or no such name.
    """
    for column in columns:
        if _RESERVED.fullmatch(column["name"]):
            problem = f"the column {column['name']} has a name that Paimon keeps for itself"
            raise schema_unsupported_error(sink, table, problem)
    return _Converter(sink, table).fields(columns)


@dataclass(frozen=True, slots=True)
class _Converter:
    sink: str
    table: TableName

    def fields(self, columns: Sequence[Mapping[str, Any]]) -> Fields:
        return [self._field(column) for column in columns]

    def _field(self, column: Mapping[str, Any]) -> dict[str, Any]:
        name = str(column["name"])
        if column.get("initial-default") is not None:
            raise self._unsupported_error(name, "has a default in older files, and Paimon reads NULL there")
        return _field(column["id"], name, self._type(column["type"], name))

    def _type(self, kind: Any, name: str) -> Any:
        if isinstance(kind, str):
            decimal = _DECIMAL.fullmatch(kind)
            if decimal:
                return _decimal(int(decimal[1]), int(decimal[2]))
            if kind not in _PRIMITIVES:
                problem = f"has the type {kind}, which Paimon does not have, or stores otherwise"
                raise self._unsupported_error(name, problem)
            return _PRIMITIVES[kind]
        if kind["type"] == "struct":
            return _row(self.fields(kind["fields"]))
        if kind["type"] == "list":
            return _array(self._type(kind["element"], f"{name}.element"))
        return _map(self._type(kind["key"], f"{name}.key"), self._type(kind["value"], f"{name}.value"))

    def _unsupported_error(self, name: str, problem: str) -> SinkError:
        return schema_unsupported_error(self.sink, self.table, f"the column {name} {problem}")


_RESERVED_IDS = 2**31 - 201
"""Iceberg's own columns have higher ones, such as the id of a row."""


def fields_of_file(columns: Sequence[pa.Field]) -> Fields:
    """The columns of a data file, in its order; without those of types that Paimon does not have."""
    typed = ((column, column_id(column), _stored_type(column.type)) for column in columns)
    return [
        _field(number, column.name, kind)
        for column, number, kind in typed
        if number is not None and number <= _RESERVED_IDS and kind is not None
    ]


def _stored_type(stored: pa.DataType) -> Any:
    """None: Paimon has no such type."""
    if pa.types.is_decimal(stored):
        return _decimal(stored.precision, stored.scale)
    if pa.types.is_struct(stored):
        columns = [stored.field(i) for i in range(stored.num_fields)]
        fields = fields_of_file(columns)
        # Readers look for the columns of a struct by their positions, too.
        return _row(fields) if len(fields) == len(columns) else None
    if pa.types.is_list(stored) or pa.types.is_large_list(stored):
        element = _stored_type(stored.value_type)
        return None if element is None else _array(element)
    if pa.types.is_map(stored):
        key, value = _stored_type(stored.key_type), _stored_type(stored.item_type)
        return None if key is None or value is None else _map(key, value)
    return _STORED.get(stored)


def _field(column: int, name: str, kind: Any) -> dict[str, Any]:
    return {"id": column, "name": name, "type": kind}


def _decimal(precision: int, scale: int) -> str:
    return f"DECIMAL({precision}, {scale})"


def _row(fields: Fields) -> dict[str, Any]:
    return {"type": "ROW", "fields": fields}


def _array(element: Any) -> dict[str, Any]:
    return {"type": "ARRAY", "element": element}


def _map(key: Any, value: Any) -> dict[str, Any]:
    return {"type": "MAP", "key": key, "value": value}

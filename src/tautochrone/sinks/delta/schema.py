"""The columns of a lake table as Delta's schema.

Where names lead to the same columns in all files, the table needs no feature of Delta that some reader lacks.
Where they do not, it needs Delta's mapping of columns by id.

A file with a narrower type than the table's (INT32 under LONG) needs Delta's feature for widened types.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tautochrone.model.names import TableName
from tautochrone.sinks.common.errors import schema_unsupported_error
from tautochrone.sinks.common.file_columns import FileTypes

__all__ = ["delta_schema", "leaf_columns", "physical_name"]

_PRIMITIVES = {
    "boolean": "boolean",
    "int": "integer",
    "long": "long",
    "float": "float",
    "double": "double",
    "date": "date",
    "timestamptz": "timestamp",
    "timestamp": "timestamp_ntz",
    "string": "string",
    "binary": "binary",
}
_DECIMAL = re.compile(r"decimal\((\d+), ?(\d+)\)")


def physical_name(column: Mapping[str, Any], *, by_id: bool) -> str:
    """The name of a column in statistics, and for readers that map columns."""
    return f"col-{column['id']}" if by_id else str(column["name"])


def delta_schema(
    sink: str, table: TableName, columns: Sequence[Mapping[str, Any]], types: FileTypes, *, by_id: bool
) -> dict[str, Any]:
    """The schema as Delta's JSON.

    Args:
        columns: as Iceberg's JSON of a schema has them.
        types: of data files, where they are narrower.
        by_id: readers look for columns by the ids in data files.

    Raises:
        SinkError: `SINK_SCHEMA_UNSUPPORTED`, Delta has no such type.
    """
    return _Converter(sink, table, types, by_id).struct(columns, "")


@dataclass(frozen=True, slots=True)
class _Converter:
    sink: str
    table: TableName
    types: FileTypes
    by_id: bool

    def struct(self, fields: Sequence[Mapping[str, Any]], path: str) -> dict[str, Any]:
        return {"type": "struct", "fields": [self._field(each, path) for each in fields]}

    def _field(self, column: Mapping[str, Any], path: str) -> dict[str, Any]:
        name = f"{path}{column['name']}"
        if column.get("initial-default") is not None:
            problem = f"the column {name} has a default value in older files, and Delta reads NULL there"
            raise schema_unsupported_error(self.sink, self.table, problem)
        # A column that takes the name of another one makes another schema, so all files are compared again.
        metadata: dict[str, Any] = {"tautochrone.id": column["id"]}
        if column.get("doc"):
            metadata["comment"] = column["doc"]
        if self.by_id:
            metadata["delta.columnMapping.id"] = column["id"]
            metadata["delta.columnMapping.physicalName"] = physical_name(column, by_id=True)
        changes = list(self._changes(column["id"], column["type"], ()))
        if changes:
            metadata["delta.typeChanges"] = changes
        kind = self._type(column["type"], name)
        return {
            "name": column["name"],
            "type": kind,
            "nullable": not column["required"],
            "metadata": metadata,
        }

    def _type(self, kind: Any, name: str) -> Any:
        if isinstance(kind, str):
            delta_type = _primitive(kind)
            if delta_type is None:
                problem = f"the column {name} has the type {kind}, which Delta does not have"
                raise schema_unsupported_error(self.sink, self.table, problem)
            return delta_type
        if kind["type"] == "struct":
            return self.struct(kind["fields"], f"{name}.")
        if kind["type"] == "list":
            return {
                "type": "array",
                "elementType": self._type(kind["element"], f"{name}.element"),
                "containsNull": not kind["element-required"],
            }
        return {
            "type": "map",
            "keyType": self._type(kind["key"], f"{name}.key"),
            "valueType": self._type(kind["value"], f"{name}.value"),
            "valueContainsNull": not kind["value-required"],
        }

    def _changes(self, column: int, kind: Any, path: tuple[str, ...]) -> Iterator[dict[str, str]]:
        """The narrower types of a column, or of the elements, keys and values in it."""
        if isinstance(kind, str):
            where = {"fieldPath": ".".join(path)} if path else {}
            for narrower in self.types.by_id.get(column, ()):
                yield {"fromType": str(_primitive(narrower)), "toType": str(_primitive(kind)), **where}
        elif kind["type"] == "list":
            yield from self._changes(kind["element-id"], kind["element"], (*path, "element"))
        elif kind["type"] == "map":
            yield from self._changes(kind["key-id"], kind["key"], (*path, "key"))
            yield from self._changes(kind["value-id"], kind["value"], (*path, "value"))


def _primitive(kind: str) -> str | None:
    decimal = _DECIMAL.fullmatch(kind)
    return f"decimal({decimal[1]},{decimal[2]})" if decimal else _PRIMITIVES.get(kind)


def leaf_columns(
    columns: Sequence[Mapping[str, Any]], *, by_id: bool, above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], int, str]]:
    """The path of physical names, the id and the type of each column, and of each field of a struct, that has
    statistics."""
    for column in columns:
        path = (*above, physical_name(column, by_id=by_id))
        kind = column["type"]
        if isinstance(kind, str):
            yield path, column["id"], kind
        elif kind["type"] == "struct":
            yield from leaf_columns(kind["fields"], by_id=by_id, above=path)

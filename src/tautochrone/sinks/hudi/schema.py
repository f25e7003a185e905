"""The columns of a lake table as the Avro schema that Hudi has in its commits."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tautochrone.errors import SinkError
from tautochrone.model.names import TableName
from tautochrone.sinks.common.errors import schema_unsupported_error

__all__ = ["avro_schema"]

_PRIMITIVES: Mapping[str, Any] = {
    "boolean": "boolean",
    "int": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "date": {"type": "int", "logicalType": "date"},
    "timestamptz": {"type": "long", "logicalType": "timestamp-micros"},
    "string": "string",
    "binary": "bytes",
}
_DECIMAL = re.compile(r"decimal\((\d+), ?(\d+)\)")
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def avro_schema(sink: str, table: TableName, columns: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The schema as Avro's JSON.

    Args:
        columns: as Iceberg's JSON of a schema has them.

    Raises:
        SinkError: `SINK_SCHEMA_UNSUPPORTED`, Hudi has no such type or no such name.
    """
    record = _Converter(sink, table).record(f"{table.table}_record", columns)
    return {**record, "namespace": "tautochrone"}


@dataclass(frozen=True, slots=True)
class _Converter:
    sink: str
    table: TableName

    def record(self, name: str, fields: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {"type": "record", "name": name, "fields": [self._field(each) for each in fields]}

    def _field(self, column: Mapping[str, Any]) -> dict[str, Any]:
        name = str(column["name"])
        if not _NAME.fullmatch(name):
            raise self._unsupported_error(
                name, "has a name that Avro does not take: letters, digits and _ only"
            )
        if column.get("initial-default") is not None:
            raise self._unsupported_error(name, "has a default in older files, and Hudi reads NULL there")
        kind = self._type(column["id"], column["type"], name)
        # A column that takes the name of another one makes another schema, so all files are compared again.
        field = {"name": name, "field-id": column["id"]}
        if column["required"]:
            return {**field, "type": kind}
        return {**field, "type": ["null", kind], "default": None}

    def _type(self, column: int, kind: Any, name: str) -> Any:
        if isinstance(kind, str):
            return self._primitive(kind, name)
        if kind["type"] == "struct":
            return self.record(f"r{column}", kind["fields"])
        if kind["type"] == "list":
            element = self._type(kind["element-id"], kind["element"], f"{name}.element")
            return {"type": "array", "items": element if kind["element-required"] else ["null", element]}
        if kind["key"] != "string":
            raise self._unsupported_error(name, f"has keys of the type {kind['key']}, and Avro's are texts")
        value = self._type(kind["value-id"], kind["value"], f"{name}.value")
        return {"type": "map", "values": value if kind["value-required"] else ["null", value]}

    def _primitive(self, kind: str, name: str) -> Any:
        decimal = _DECIMAL.fullmatch(kind)
        if decimal:
            precision, scale = int(decimal[1]), int(decimal[2])
            return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
        if kind not in _PRIMITIVES:
            raise self._unsupported_error(name, f"has the type {kind}, which Hudi does not have")
        return _PRIMITIVES[kind]

    def _unsupported_error(self, name: str, problem: str) -> SinkError:
        return schema_unsupported_error(self.sink, self.table, f"the column {name} {problem}")

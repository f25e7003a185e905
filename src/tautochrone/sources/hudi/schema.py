"""The columns of a Hudi table, in Iceberg's spelling: its commits have them as a schema of Avro."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tautochrone.errors import ForeignTableError
from tautochrone.model.foreign import (
    ForeignField,
    ForeignList,
    ForeignMap,
    ForeignSource,
    ForeignStruct,
    ForeignType,
)

__all__ = ["META_COLUMNS", "columns_of"]

META_COLUMNS = ("_hoodie_commit_time", "_hoodie_commit_seqno", "_hoodie_record_key", "_hoodie_partition_path")
"""What Hudi's writers add to rows, and Spark's reader shows. `_hoodie_file_name` is left out: it says where a
row is now, and not what it is."""

_PRIMITIVES = {
    "boolean": "boolean",
    "int": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "bytes": "binary",
    "enum": "string",
}
# Without milliseconds: Iceberg takes their statistics for microseconds, and filters by them skip rows.
_LOGICAL = {
    ("int", "date"): "date",
    ("long", "timestamp-micros"): "timestamptz",
    ("long", "local-timestamp-micros"): "timestamp",
    ("string", "uuid"): "string",
}


def columns_of(source: ForeignSource, schema: str, *, has_meta_columns: bool) -> tuple[ForeignField, ...]:
    """
    Args:
        schema: Avro's JSON, with or without the meta columns.

    Raises:
        ForeignTableError: `HUDI_TYPE_UNSUPPORTED`.
    """
    fields = _Converter(source).fields(json.loads(schema), "")
    own = tuple(field for field in fields if not field.name.startswith("_hoodie_") or _is_own(field.name))
    meta = META_COLUMNS if has_meta_columns else ()
    return (*(ForeignField(name, name, "string") for name in meta), *own)


def _is_own(name: str) -> bool:
    return name not in (*META_COLUMNS, "_hoodie_file_name", "_hoodie_operation")


class _Converter:
    def __init__(self, source: ForeignSource) -> None:
        self._source = source
        self._named: dict[str, Any] = {}
        """Records and such by name: Avro defines each once."""

    def fields(self, record: Mapping[str, Any], above: str) -> tuple[ForeignField, ...]:
        return tuple(
            ForeignField(each["name"], each["name"], self._type(each["type"], f"{above}{each['name']}"))
            for each in record["fields"]
        )

    def _type(self, kind: Any, path: str) -> ForeignType:
        if isinstance(kind, list):
            kinds = [each for each in kind if each != "null"]
            if len(kinds) != 1:
                raise self._type_error(path, f"a union of {len(kinds)} types")
            return self._type(kinds[0], path)
        if isinstance(kind, str):
            if kind in self._named:
                return self._type(self._named[kind], path)
            kind = {"type": kind}
        if isinstance(kind["type"], (dict, list)):
            return self._type(kind["type"], path)
        for name in (kind.get("name"), f"{kind.get('namespace')}.{kind.get('name')}"):
            if kind.get("name"):
                self._named[str(name)] = kind
        return self._plain(kind, path)

    def _plain(self, kind: Mapping[str, Any], path: str) -> ForeignType:
        name, logical = kind["type"], kind.get("logicalType")
        if logical == "decimal" and name in ("bytes", "fixed"):
            return f"decimal({kind['precision']}, {kind.get('scale', 0)})"
        known = _LOGICAL.get((name, logical)) if logical else _PRIMITIVES.get(name)
        if known is not None:
            return known
        if logical:
            raise self._type_error(path, f"the type {logical}")
        if name == "record":
            return ForeignStruct(self.fields(kind, f"{path}."))
        if name == "array":
            return ForeignList(self._type(kind["items"], f"{path}.element"))
        if name == "map":
            return ForeignMap("string", self._type(kind["values"], f"{path}.value"))
        raise self._type_error(path, f"the type {name}")

    def _type_error(self, column: str, what: str) -> ForeignTableError:
        return ForeignTableError(
            "HUDI_TYPE_UNSUPPORTED",
            f"The column {column} of {self._source} has {what}, which Iceberg's readers do not read from its "
            "files",
            hint="let Hudi's own program write the columns that the view needs into a table of their own, "
            "with a cast, and read that",
            sqlstate="0A000",
        )

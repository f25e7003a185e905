"""The columns of a Delta table, and the values of its partitions, in Iceberg's spelling.

Iceberg has no TINYINT and SMALLINT: they become INT. All columns may be NULL: what Delta's writers must check
is no matter of readers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from decimal import Decimal, localcontext
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

__all__ = ["columns_of", "partition_value"]

_PRIMITIVES = {
    "boolean": "boolean",
    "byte": "int",
    "short": "int",
    "integer": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "date": "date",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
    "string": "string",
    "binary": "binary",
}
_WIDENED = {
    "byte": ("short", "integer", "long"),
    "short": ("integer", "long"),
    "integer": ("long",),
    "float": ("double",),
}
"""Changes of types that Iceberg's readers follow too."""
_DECIMAL = re.compile(r"decimal\((\d+), ?(\d+)\)")
_COLLATIONS = "__COLLATIONS"
_EXACT_DIGITS = 80


def columns_of(source: ForeignSource, schema: str, *, is_mapped: bool) -> tuple[ForeignField, ...]:
    """
    Args:
        schema: the text in the table's metadata.
        is_mapped: the table maps columns to the names and ids in its files.

    Raises:
        ForeignTableError: `DELTA_TYPE_UNSUPPORTED`.
    """
    return _fields(source, json.loads(schema), "", is_mapped)


def _fields(
    source: ForeignSource, struct: Mapping[str, Any], above: str, is_mapped: bool
) -> tuple[ForeignField, ...]:
    fields = []
    for each in struct["fields"]:
        path, metadata = f"{above}{each['name']}", each.get("metadata") or {}
        if metadata.get(_COLLATIONS):
            raise _type_error(source, path, "a collation")
        for change in metadata.get("delta.typeChanges") or ():
            if not _is_followed(change["fromType"], change["toType"]):
                what = f"files with its former type {change['fromType']} beside {change['toType']}"
                raise _type_error(source, path, what)
        name = metadata["delta.columnMapping.physicalName"] if is_mapped else each["name"]
        field_id = metadata["delta.columnMapping.id"] if is_mapped else None
        kind = _type(source, each["type"], path, is_mapped)
        fields.append(ForeignField(each["name"], name, kind, field_id))
    return tuple(fields)


def _type(source: ForeignSource, kind: Any, path: str, is_mapped: bool) -> ForeignType:
    if isinstance(kind, str):
        decimal = _DECIMAL.fullmatch(kind)
        known = f"decimal({decimal[1]}, {decimal[2]})" if decimal else _PRIMITIVES.get(kind)
        if known is None:
            raise _type_error(source, path, f"the type {kind}")
        return known
    if kind["type"] == "struct":
        return ForeignStruct(_fields(source, kind, f"{path}.", is_mapped))
    if kind["type"] == "array":
        return ForeignList(_type(source, kind["elementType"], f"{path}.element", is_mapped))
    if kind["type"] == "map":
        key = _type(source, kind["keyType"], f"{path}.key", is_mapped)
        return ForeignMap(key, _type(source, kind["valueType"], f"{path}.value", is_mapped))
    raise _type_error(source, path, f"the type {kind['type']}")


def _is_followed(old: str, new: str) -> bool:
    """
    >>> _is_followed("integer", "long"), _is_followed("date", "timestamp_ntz")
    (True, False)
    >>> _is_followed("decimal(5,2)", "decimal(9,2)"), _is_followed("decimal(5,2)", "decimal(9,4)")
    (True, False)
    """
    decimals = _DECIMAL.fullmatch(old), _DECIMAL.fullmatch(new)
    if decimals[0] and decimals[1]:
        return decimals[0][2] == decimals[1][2]
    return new in _WIDENED.get(old, ())


def _type_error(source: ForeignSource, column: str, what: str) -> ForeignTableError:
    return ForeignTableError(
        "DELTA_TYPE_UNSUPPORTED",
        f"The column {column} of {source} has {what}, which Iceberg's readers do not read from its files",
        hint="let Delta's own program write the columns that the view needs into a table of their own, "
        "with a cast, and read that",
        sqlstate="0A000",
    )


# -- partitions ------------------------------------------------------------------------------------

_UTC = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d(?:\.\d{1,6})?)Z")
_LOCAL = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d(?:\.\d{1,6})?)")


def partition_value(source: ForeignSource, column: str, kind: ForeignType, text: str | None) -> Any:
    """The value of a partition column, as Iceberg's JSON of a single value.

    Args:
        text: as Delta's log has it.

    Raises:
        ForeignTableError: `DELTA_PARTITION_UNREADABLE`.

    >>> partition_value(ForeignSource("delta", "/d"), "at", "timestamptz", "2024-01-01T10:00:00.5Z")
    '2024-01-01T10:00:00.5+00:00'
    """
    if text is None or text == "":
        return None
    try:
        value = _value(kind, text)
    except (ValueError, ArithmeticError):
        value = None
    if value is None:
        raise ForeignTableError(
            "DELTA_PARTITION_UNREADABLE",
            f"The partition {column} = {text} of {source} cannot be read as {kind}",
            hint="a time needs its zone (…Z), as Delta writes it where "
            "spark.databricks.delta.write.utcTimestampPartitionValues is true; numbers must be finite, and "
            "columns of bytes cannot be partitions here",
            sqlstate="0A000",
        )
    return value


def _value(kind: ForeignType, text: str) -> Any:
    """None: it is not known what it means."""
    if kind == "string":
        return text
    if kind in ("int", "long"):
        return int(text)
    if kind in ("float", "double"):
        number = float(text)
        return number if number - number == 0 else None
    if kind == "boolean":
        return {"true": True, "false": False}.get(text.lower())
    if kind == "date":
        return text if re.fullmatch(r"\d{4}-\d\d-\d\d", text) else None
    if kind == "timestamptz":
        time = _UTC.fullmatch(text)
        return f"{time[1]}T{time[2]}+00:00" if time else None
    if kind == "timestamp":
        time = _LOCAL.fullmatch(text)
        return f"{time[1]}T{time[2]}" if time else None
    decimal = _DECIMAL.fullmatch(kind) if isinstance(kind, str) else None
    if decimal is None:
        return None
    with localcontext() as context:
        context.prec = _EXACT_DIGITS
        return str(Decimal(text).quantize(Decimal(1).scaleb(-int(decimal[2]))))

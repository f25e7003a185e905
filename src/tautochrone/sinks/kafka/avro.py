"""Rows as Avro: the schema of a table, and values in Avro's binary encoding.

Values are the JSON values of `json_rows`, so that what a topic holds is compared as it is with other formats.
Every column may be null: a schema with a new column can read what an older one wrote.
"""

from __future__ import annotations

import base64
import datetime as dt
import io
import re
import struct
from collections.abc import Iterator, Mapping
from decimal import Context, Decimal
from typing import Any

from pyspark.sql import types as spark

from tautochrone.errors import SinkError
from tautochrone.model.names import TableName

__all__ = ["Codec", "envelope_schema", "row_schema"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
_EXACT = Context(prec=100)
_TYPES: dict[type, Any] = {
    spark.BooleanType: "boolean",
    spark.ByteType: "int",
    spark.ShortType: "int",
    spark.IntegerType: "int",
    spark.LongType: "long",
    spark.FloatType: "float",
    spark.DoubleType: "double",
    spark.StringType: "string",
    spark.BinaryType: "bytes",
    spark.DateType: {"type": "int", "logicalType": "date"},
    spark.TimestampType: {"type": "long", "logicalType": "timestamp-micros"},
    spark.TimestampNTZType: {"type": "long", "logicalType": "local-timestamp-micros"},
}


# -- schemas --------------------------------------------------------------------------------------


def row_schema(sink: str, table: TableName, schema: Any) -> dict[str, Any]:
    """The record of a table's row.

    Raises:
        SinkError: `SINK_TYPE_UNSUPPORTED`, also for a name that Avro does not allow.
    """
    namespace = () if table.namespace == ("default",) else table.namespace
    return _record(sink, ".".join((*namespace, table.table)), schema)


def envelope_schema(row: dict[str, Any]) -> dict[str, Any]:
    """The record of a change: the row before and after, as Debezium writes it."""
    name = row["name"]
    source = [
        {"name": field, "type": "long" if field == "checkpoint" else "string"}
        for field in ("connector", "name", "db", "table", "checkpoint")
    ]
    source_record = {"type": "record", "name": f"{name}_changes.Source", "fields": source}
    return {
        "type": "record",
        "name": f"{name}_changes.Envelope",
        "fields": [
            {"name": "before", "type": ["null", row], "default": None},
            {"name": "after", "type": ["null", name], "default": None},
            {"name": "op", "type": "string"},
            {"name": "source", "type": source_record},
        ],
    }


def _record(sink: str, path: str, schema: Any) -> dict[str, Any]:
    fields = [
        {"name": field.name, "type": _nullable(sink, f"{path}.{field.name}", field.dataType), "default": None}
        for field in schema.fields
    ]
    for name in (*path.split("."), *(field.name for field in schema.fields)):
        if not _NAME.fullmatch(name):
            raise SinkError(
                "SINK_TYPE_UNSUPPORTED",
                f"Sink {sink}: Avro has no name for {name} of {path}",
                hint="Use letters, digits and underscores, or set value.format = json.",
                parameters={"sink": sink, "column": name},
                sqlstate="42602",
            )
    return {"type": "record", "name": path, "fields": fields}


def _nullable(sink: str, path: str, spark_type: Any) -> list[Any]:
    return ["null", _avro_type(sink, path, spark_type)]


def _avro_type(sink: str, path: str, spark_type: Any) -> Any:
    if isinstance(spark_type, spark.ArrayType):
        return {"type": "array", "items": _nullable(sink, f"{path}.item", spark_type.elementType)}
    if isinstance(spark_type, spark.MapType):
        return {"type": "map", "values": _nullable(sink, f"{path}.value", spark_type.valueType)}
    if isinstance(spark_type, spark.StructType):
        return _record(sink, path, spark_type)
    if isinstance(spark_type, spark.DecimalType):
        size = {"precision": spark_type.precision, "scale": spark_type.scale}
        return {"type": "bytes", "logicalType": "decimal", **size}
    for kind, avro in _TYPES.items():
        if isinstance(spark_type, kind):
            return avro
    raise SinkError(
        "SINK_TYPE_UNSUPPORTED",
        f"Sink {sink}: Avro has no form for {spark_type.simpleString()}, the type of {path}",
        hint="Leave the column out, or cast it to STRING, in the query of the dataset.",
        parameters={"sink": sink, "column": path},
        sqlstate="0A000",
    )


# -- values ---------------------------------------------------------------------------------------


class Codec:
    """Values of one schema in Avro's binary encoding."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema
        # A second use of a record is only its name.
        self._records = dict(_records(schema))

    def encode(self, value: Mapping[str, Any]) -> bytes:
        out = bytearray()
        self._write(out, self._schema, value)
        return bytes(out)

    def decode(self, data: bytes) -> Any:
        return self._read(io.BytesIO(data), self._schema)

    def _write(self, out: bytearray, schema: Any, value: Any) -> None:
        if isinstance(schema, list):
            out.append(0 if value is None else 2)
            if value is not None:
                self._write(out, schema[1], value)
            return
        schema = self._resolved(schema)
        if schema["type"] == "record":
            for field in schema["fields"]:
                self._write(out, field["type"], value.get(field["name"]))
        elif schema["type"] == "array":
            _write_zigzag_varint(out, len(value))
            for item in value:
                self._write(out, schema["items"], item)
            # An empty block ends the array; an empty array is only that.
            out += b"\0" if value else b""
        elif schema["type"] == "map":
            _write_zigzag_varint(out, len(value))
            for key, item in value.items():
                _write_bytes(out, key.encode())
                self._write(out, schema["values"], item)
            out += b"\0" if value else b""
        else:
            _write_scalar(out, schema, value)

    def _read(self, data: io.BytesIO, schema: Any) -> Any:
        if isinstance(schema, list):
            return self._read(data, schema[1]) if _read_zigzag_varint(data) else None
        schema = self._resolved(schema)
        if schema["type"] == "record":
            return {field["name"]: self._read(data, field["type"]) for field in schema["fields"]}
        if schema["type"] == "array":
            return [self._read(data, schema["items"]) for _ in _blocks(data)]
        if schema["type"] == "map":
            return {_read_bytes(data).decode(): self._read(data, schema["values"]) for _ in _blocks(data)}
        return _read_scalar(data, schema)

    def _resolved(self, schema: Any) -> Any:
        return self._records.get(schema, {"type": schema}) if isinstance(schema, str) else schema


def _records(schema: Any) -> Iterator[tuple[str, Any]]:
    """Every record by its name."""
    if isinstance(schema, list):
        for branch in schema:
            yield from _records(branch)
    elif isinstance(schema, Mapping):
        if "name" in schema:
            yield schema["name"], schema
        for inner in (schema.get("items"), schema.get("values")):
            yield from _records(inner)
        for field in schema.get("fields", ()):
            yield from _records(field["type"])


def _write_scalar(out: bytearray, schema: Mapping[str, Any], value: Any) -> None:
    kind, logical = schema["type"], schema.get("logicalType", "")
    if kind == "boolean":
        out.append(bool(value))
    elif kind in ("int", "long"):
        _write_zigzag_varint(out, _to_number(logical, value))
    elif kind in ("float", "double"):
        out += (_FLOAT if kind == "float" else _DOUBLE).pack(float(value))
    elif logical == "decimal":
        _write_bytes(out, _unscaled(value, schema["scale"]))
    else:
        _write_bytes(out, value.encode() if kind == "string" else base64.b64decode(value))


def _read_scalar(data: io.BytesIO, schema: Mapping[str, Any]) -> Any:
    kind, logical = schema["type"], schema.get("logicalType", "")
    if kind == "boolean":
        return data.read(1) == b"\1"
    if kind in ("int", "long"):
        return _from_number(logical, _read_zigzag_varint(data))
    if kind in ("float", "double"):
        form = _FLOAT if kind == "float" else _DOUBLE
        return _json_float(form.unpack(data.read(form.size))[0])
    content = _read_bytes(data)
    if logical == "decimal":
        unscaled = int.from_bytes(content, "big", signed=True)
        return format(Decimal(unscaled).scaleb(-schema["scale"], _EXACT), "f")
    return content.decode() if kind == "string" else base64.b64encode(content).decode()


def _blocks(data: io.BytesIO) -> Iterator[None]:
    while count := _read_zigzag_varint(data):
        for _ in range(count):
            yield


def _to_number(logical: str, value: Any) -> int:
    if logical == "date":
        return (dt.date.fromisoformat(value) - _EPOCH.date()).days
    if logical:
        instant = dt.datetime.fromisoformat(value)
        return (instant.replace(tzinfo=dt.UTC) - _EPOCH) // _MICROSECOND
    return int(value)


def _from_number(logical: str, number: int) -> Any:
    if logical == "date":
        return (_EPOCH.date() + dt.timedelta(days=number)).isoformat()
    if logical:
        instant = (_EPOCH + number * _MICROSECOND).replace(tzinfo=None)
        return instant.isoformat(timespec="microseconds") + ("Z" if logical == "timestamp-micros" else "")
    return number


def _unscaled(text: str, scale: int) -> bytes:
    number = int(Decimal(text).scaleb(scale, _EXACT))
    return number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)


def _json_float(value: float) -> Any:
    if value != value:
        return "NaN"
    return value if abs(value) != float("inf") else "Infinity" if value > 0 else "-Infinity"


def _write_zigzag_varint(out: bytearray, number: int) -> None:
    rest = (number << 1) ^ (number >> 63)
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)


def _read_zigzag_varint(data: io.BytesIO) -> int:
    number = shift = 0
    while True:
        byte = data.read(1)[0]
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1)


def _write_bytes(out: bytearray, content: bytes) -> None:
    _write_zigzag_varint(out, len(content))
    out += content


def _read_bytes(data: io.BytesIO) -> bytes:
    return data.read(_read_zigzag_varint(data))

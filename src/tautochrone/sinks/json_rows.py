"""Rows as JSON values: what is sent, and the text by which rows of a sink and of the lake are compared.

Numbers and booleans are JSON's own. Decimals, dates and timestamps are strings (ISO 8601, UTC with `Z`),
binary values are base64, and numbers that JSON lacks are `"NaN"`, `"Infinity"` and `"-Infinity"`. Spark's
`from_json` reads all of them with the table's schema.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql import types as spark

from tautochrone.errors import SinkError
from tautochrone.model.lake import Rows
from tautochrone.model.names import TableName
from tautochrone.sinks.adapters import columns_of_key
from tautochrone.sinks.batches import column_batches, single_precision, values_of_columns

__all__ = ["JsonRows", "comparable", "row_number", "to_text"]

_Encode = Callable[[Any], Any]


class JsonRows:
    """Encodes the rows of one table.

    Raises:
        SinkError: `SINK_TYPE_UNSUPPORTED`; `SINK_COLUMN_MISSING`, a column of the key is not there.
    """

    def __init__(self, sink: str, table: TableName, schema: Any, key: Sequence[str]) -> None:
        self.key = columns_of_key(sink, table, schema.names, key)
        self._encoders = {
            field.name: _encoder(sink, f"{table.table}.{field.name}", field.dataType)
            for field in schema.fields
        }

    @property
    def columns(self) -> list[str]:
        return list(self._encoders)

    def rows(self, rows: Rows, chunk_rows: int, known_rows: int | None = None) -> Iterator[dict[str, Any]]:
        """Each row as a JSON object, with all columns of the table.

        Raises:
            SinkError: as of `values_of_columns`.
        """
        for names, columns in column_batches(rows, chunk_rows, known_rows):
            count = len(columns[0]) if columns else 0
            given = values_of_columns(self.columns, names, columns)
            encoded = [
                [None] * count
                if values is None
                else [None if value is None else encode(value) for value in values]
                for encode, values in zip(self._encoders.values(), given, strict=True)
            ]
            for values in zip(*encoded, strict=True):
                yield dict(zip(self._encoders, values, strict=True))

    def value(self, column: str, value: Any) -> Any:
        """One value of a column as JSON."""
        return None if value is None else self._encoders[column](value)

    def key_of(self, row: Mapping[str, Any]) -> str | None:
        """The record's key, or None for a table without one."""
        return to_text({name: row.get(name) for name in self.key}) if self.key else None


def to_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def comparable(row: Mapping[str, Any]) -> str:
    """The same text for the same row, also if columns came to the table that are NULL in it."""
    return json.dumps(
        {name: value for name, value in row.items() if value is not None},
        ensure_ascii=False,
        sort_keys=True,
        separators=(",", ":"),
    )


def row_number(text: str) -> int:
    """A hash of a row's text. Sums of it do not depend on the order of rows."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


# -- types ----------------------------------------------------------------------------------------


def _encoder(sink: str, path: str, spark_type: Any) -> _Encode:
    if isinstance(spark_type, spark.ArrayType):
        element = _or_null(_encoder(sink, f"{path}[]", spark_type.elementType))
        return lambda value: [element(item) for item in value]
    if isinstance(spark_type, spark.MapType) and isinstance(spark_type.keyType, tuple(_SIMPLE)):
        key = _encoder(sink, f"{path}.key", spark_type.keyType)
        content = _or_null(_encoder(sink, f"{path}.value", spark_type.valueType))
        return lambda value: _map(value, key, content)
    if isinstance(spark_type, spark.StructType):
        fields = {
            field.name: _or_null(_encoder(sink, f"{path}.{field.name}", field.dataType))
            for field in spark_type.fields
        }
        return lambda value: _struct(value, fields)
    for simple_type, encode in _SIMPLE.items():
        if isinstance(spark_type, simple_type):
            return encode
    raise SinkError(
        "SINK_TYPE_UNSUPPORTED",
        f"Sink {sink}: JSON has no form for {spark_type.simpleString()}, the type of {path}",
        hint="Leave the column out, or cast it to STRING, in the query of the dataset.",
        parameters={"sink": sink, "column": path},
        sqlstate="0A000",
    )


def _or_null(encode: _Encode) -> _Encode:
    return lambda value: None if value is None else encode(value)


def _map(value: Any, key: _Encode, content: _Encode) -> dict[str, Any]:
    entries = value.items() if isinstance(value, dict) else value
    texts = [(key(item), content(element)) for item, element in entries]
    # A map has no order, and rows are compared by their text.
    return dict(sorted((name if isinstance(name, str) else to_text(name), item) for name, item in texts))


def _struct(value: Any, fields: Mapping[str, _Encode]) -> dict[str, Any]:
    items = value if isinstance(value, dict) else dict(zip(fields, value, strict=True))
    return {name: encode(items[name]) for name, encode in fields.items()}


def _float(value: Any) -> Any:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    # Spark holds 0.0 and -0.0 for the same value.
    return value + 0.0


def _timestamp(value: dt.datetime) -> str:
    value = value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value.astimezone(dt.UTC)
    return value.isoformat(timespec="microseconds").replace("+00:00", "Z")


_SIMPLE: dict[type, _Encode] = {
    spark.BooleanType: bool,
    spark.IntegralType: int,
    spark.StringType: str,
    spark.FloatType: lambda value: _float(single_precision(value)),
    spark.DoubleType: _float,
    spark.DecimalType: lambda value: format(value, "f"),
    spark.BinaryType: lambda value: base64.b64encode(bytes(value)).decode(),
    spark.DateType: lambda value: value.isoformat(),
    spark.TimestampType: _timestamp,
    spark.TimestampNTZType: lambda value: value.replace(tzinfo=None).isoformat(timespec="microseconds"),
}

"""Types: how a Spark type is stored in ClickHouse, and the text by which both sides hash a value.

The text of a value is written here twice: in Python for what is sent, as an expression in ClickHouse's SQL
for what arrived. That both have the same text is what `prepare` and an audit compare. Columns whose values
are not composite are encoded as whole arrays: see `vectors`.

ClickHouse has no NULL in the place of an array, a map or a struct. It is stored as an empty one, and its path
is listed in the row's column `_nulls`.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import types as spark

from tautochrone.errors import SinkError
from tautochrone.sinks.clickhouse import vectors
from tautochrone.sinks.clickhouse.sql import name_sql
from tautochrone.sinks.clickhouse.vectors import ArrayEncoder

__all__ = ["Column", "ColumnType", "column_type"]

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_COMPOSITES = (spark.ArrayType, spark.MapType, spark.StructType)
_lambda_numbers = itertools.count()

Encoder = Callable[[Any, str, list[str]], tuple[Any, bytes]]
"""From a value, its path and the list of paths of NULL composites to the value as sent, and its text."""


@dataclass(frozen=True, slots=True)
class ColumnType:
    """One type.

    Attributes:
        sql: the column's type.
        arrow: the type in which values are sent.
        encode: see `Encoder`.
        text: from the SQL of a value to the SQL of its text.
        encode_array: the same as `encode` for a whole column; None for composites.
    """

    sql: str
    arrow: pa.DataType
    encode: Encoder
    text: Callable[[str], str]
    encode_array: ArrayEncoder | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a mirrored table; `spark_type` is its type as Spark's JSON."""

    name: str
    type: ColumnType
    spark_type: str


def column_type(sink: str, path: str, spark_type: Any) -> ColumnType:
    """How values of a Spark type are stored.

    Raises:
        SinkError: `SINK_TYPE_UNSUPPORTED`.
    """
    if isinstance(spark_type, spark.ArrayType):
        return _array(column_type(sink, f"{path}[]", spark_type.elementType))
    if isinstance(spark_type, spark.MapType) and not isinstance(spark_type.keyType, _COMPOSITES):
        key = column_type(sink, f"{path}.key", spark_type.keyType)
        return _map(key, column_type(sink, f"{path}.value", spark_type.valueType))
    if isinstance(spark_type, spark.StructType) and spark_type.fields:
        fields = [column_type(sink, f"{path}.{field.name}", field.dataType) for field in spark_type.fields]
        return _tuple(spark_type.names, fields)
    if isinstance(spark_type, spark.DecimalType):
        name = f"Decimal({spark_type.precision}, {spark_type.scale})"
        arrow = pa.decimal128(spark_type.precision, spark_type.scale)
        whole = vectors.decimals(spark_type.precision, spark_type.scale)
        return _scalar(name, arrow, _decimal, _text, whole)
    if isinstance(spark_type, spark.StringType):
        return _scalar(
            "String", pa.large_string(), lambda v: (v, v.encode()), lambda value: value, vectors.strings
        )
    simple = _SIMPLE.get(type(spark_type))
    if simple is None:
        raise SinkError(
            "SINK_TYPE_UNSUPPORTED",
            f"Sink {sink}: ClickHouse has no type for {spark_type.simpleString()}, the type of {path}",
            hint="Leave the column out, or cast it to STRING, in the query of the dataset.",
            parameters={"sink": sink, "column": path},
            sqlstate="0A000",
        )
    return simple


# -- values that are never composite --------------------------------------------------------------


def _scalar(
    sql: str,
    arrow: pa.DataType,
    value_and_text: Callable[[Any], tuple[Any, bytes]],
    text: Callable[[str], str],
    encode_array: ArrayEncoder,
) -> ColumnType:
    def encode(value: Any, _path: str, _nulls: list[str]) -> tuple[Any, bytes]:
        if value is None:
            return None, b"N"
        sent, written = value_and_text(value)
        return sent, b"%d:%b" % (len(written), written)

    def text_of(value: str) -> str:
        written = text(value)
        return f"ifNull(concat(toString(length({written})), ':', {written}), 'N')"

    return ColumnType(f"Nullable({sql})", arrow, encode, text_of, encode_array)


def _whole_number(sql: str, arrow: pa.DataType) -> ColumnType:
    return _scalar(sql, arrow, _integer, _text, vectors.integers(arrow))


def _integer(value: Any) -> tuple[Any, bytes]:
    return value, b"%d" % value


def _boolean(value: Any) -> tuple[Any, bytes]:
    return value, b"1" if value else b"0"


def _float(value: Any) -> tuple[Any, bytes]:
    # Spark holds 0.0 and -0.0 for the same value, and all NaN; ClickHouse compares their bits.
    number = math.nan if value != value else value + 0.0
    (bits,) = struct.unpack("<q", struct.pack("<d", number))
    return number, b"%d" % bits


def _short_float(value: Any) -> tuple[Any, bytes]:
    return _float(struct.unpack("<f", struct.pack("<f", value))[0])


def _decimal(value: Decimal) -> tuple[Any, bytes]:
    text = format(value, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return value, b"0" if text == "-0" else text.encode()


def _binary(value: Any) -> tuple[Any, bytes]:
    octets = bytes(value)
    return octets, octets


def _date(value: dt.date) -> tuple[Any, bytes]:
    return value, b"%d" % (value - _EPOCH.date()).days


def _timestamp(value: dt.datetime) -> tuple[Any, bytes]:
    # A timestamp without time zone is stored as if it were one of UTC.
    value = value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value.astimezone(dt.UTC)
    microseconds = (value - _EPOCH) // _MICROSECOND
    return microseconds, b"%d" % microseconds


def _bits(value: str) -> str:
    return f"toString(reinterpretAsInt64(toFloat64({value})))"


def _micros(value: str) -> str:
    return f"toString(toUnixTimestamp64Micro({value}))"


def _text(value: str) -> str:
    return f"toString({value})"


_TIMESTAMP = _scalar(
    "DateTime64(6, 'UTC')", pa.timestamp("us", tz="UTC"), _timestamp, _micros, vectors.timestamps
)
_SIMPLE: dict[type, ColumnType] = {
    spark.BooleanType: _scalar(
        "Bool", pa.bool_(), _boolean, lambda v: f"toString(toUInt8({v}))", vectors.booleans
    ),
    spark.ByteType: _whole_number("Int8", pa.int8()),
    spark.ShortType: _whole_number("Int16", pa.int16()),
    spark.IntegerType: _whole_number("Int32", pa.int32()),
    spark.LongType: _whole_number("Int64", pa.int64()),
    spark.FloatType: _scalar("Float32", pa.float32(), _short_float, _bits, vectors.floats(pa.float32())),
    spark.DoubleType: _scalar("Float64", pa.float64(), _float, _bits, vectors.floats(pa.float64())),
    spark.BinaryType: _scalar("String", pa.large_binary(), _binary, lambda v: v, vectors.binaries),
    spark.DateType: _scalar("Date32", pa.date32(), _date, lambda v: f"toString(toInt32({v}))", vectors.dates),
    spark.TimestampType: _TIMESTAMP,
    spark.TimestampNTZType: _TIMESTAMP,
}


# -- composite values -----------------------------------------------------------------------------


def _array(element: ColumnType) -> ColumnType:
    def encode(value: Any, path: str, nulls: list[str]) -> tuple[Any, bytes]:
        if value is None:
            nulls.append(path)
            value = ()
        pairs = [element.encode(item, f"{path}[{index}]", nulls) for index, item in enumerate(value)]
        return [sent for sent, _ in pairs], b"%d[%b]" % (len(pairs), b"".join(text for _, text in pairs))

    def text_of(value: str) -> str:
        return f"concat(toString(length({value})), '[', {_texts(element, value)}, ']')"

    return ColumnType(f"Array({element.sql})", pa.large_list(element.arrow), encode, text_of)


def _map(key: ColumnType, value_type: ColumnType) -> ColumnType:
    def encode(value: Any, path: str, nulls: list[str]) -> tuple[Any, bytes]:
        if value is None:
            nulls.append(path)
            value = ()
        entries = value.items() if isinstance(value, dict) else value
        keyed = [(*key.encode(item, f"{path}.key", nulls), content) for item, content in entries]
        # A map has no order, and what is compared must have one.
        keyed.sort(key=lambda entry: entry[1])
        values = [
            value_type.encode(content, f"{path}[{text.decode(errors='replace')}]", nulls)
            for _, text, content in keyed
        ]
        sent = [(item, content) for (item, _, _), (content, _) in zip(keyed, values, strict=True)]
        texts = b"".join(text for _, text, _ in keyed), b"".join(text for _, text in values)
        return sent, b"%d{%b|%b}" % (len(sent), *texts)

    def text_of(value: str) -> str:
        keys, values = _texts(key, f"mapKeys({value})"), _texts(value_type, f"mapValues({value})")
        return f"concat(toString(length(mapKeys({value}))), '{{', {keys}, '|', {values}, '}}')"

    key_sql = (
        key.sql.removeprefix("Nullable(").removesuffix(")") if key.sql.startswith("Nullable(") else key.sql
    )
    return ColumnType(
        f"Map({key_sql}, {value_type.sql})", pa.map_(key.arrow, value_type.arrow), encode, text_of
    )


def _tuple(names: Sequence[str], fields: Sequence[ColumnType]) -> ColumnType:
    def encode(value: Any, path: str, nulls: list[str]) -> tuple[Any, bytes]:
        if value is None:
            nulls.append(path)
            value = {}
            pairs = [
                field.encode(None, f"{path}.{name}", []) for name, field in zip(names, fields, strict=True)
            ]
        else:
            items = value if isinstance(value, dict) else dict(zip(names, value, strict=True))
            pairs = [
                field.encode(items[name], f"{path}.{name}", nulls)
                for name, field in zip(names, fields, strict=True)
            ]
        sent = dict(zip(names, (content for content, _ in pairs), strict=True))
        return sent, b"(%b)" % b"".join(text for _, text in pairs)

    def text_of(value: str) -> str:
        texts = [field.text(f"tupleElement({value}, {index})") for index, field in enumerate(fields, 1)]
        return "concat('(', " + ", ".join(texts) + ", ')')"

    sql = ", ".join(f"{name_sql(name)} {field.sql}" for name, field in zip(names, fields, strict=True))
    arrow = pa.struct([pa.field(name, field.arrow) for name, field in zip(names, fields, strict=True)])
    return ColumnType(f"Tuple({sql})", arrow, encode, text_of)


def _texts(element: ColumnType, array: str) -> str:
    # Nested lambdas need names of their own.
    item = f"e{next(_lambda_numbers)}"
    return f"arrayStringConcat(arrayMap({item} -> {element.text(item)}, {array}))"

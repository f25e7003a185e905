"""How a Spark type is stored in ClickHouse, and the text by which both sides hash a value.

The text of a value is written here twice: in Python for what is sent, as an expression in ClickHouse's SQL
for what arrived. That both have the same text is what `prepare` and an audit compare.

Columns whose values are not composite are encoded as whole arrays, by Arrow's functions: ten times as fast as
value by value. An encoder gets an array of any Arrow type that Spark or `pyarrow.array` gives for the
column's type. It returns the array as it is sent, and a function for the text of each value, which costs more
than the rest and is not always needed. Both are NULL where the value is.

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
import pyarrow.compute as compute
from pyspark.sql import types as spark

from tautochrone.errors import SinkError
from tautochrone.sinks.batches import single_precision
from tautochrone.sinks.clickhouse.statements import name_sql

__all__ = [
    "ArrayEncoder",
    "ColumnType",
    "MirroredColumn",
    "Texts",
    "array_of",
    "column_type",
    "decimals",
    "encode_binaries",
    "encode_booleans",
    "encode_dates",
    "encode_strings",
    "encode_timestamps",
    "floats",
    "integers",
    "joined",
]


Texts = Callable[[], pa.Array]
"""The texts of a column as `large_binary`."""
ArrayEncoder = Callable[[pa.Array], tuple[pa.Array, Texts]]
"""From values to the values as sent, and their texts."""

_TEXT = pa.large_string()
_BYTES = pa.large_binary()
_MOST_DIGITS_WITH_POINT = 6
"""Arrow writes a decimal with more digits behind the point in scientific notation when it is small."""
_INSTANT = pa.timestamp("us", tz="UTC")


def array_of(values: Any, arrow: pa.DataType) -> pa.Array:
    """Values as an array; lists hold Python's values, which become `arrow`."""
    return values if isinstance(values, pa.Array) else pa.array(values, arrow)


def joined(parts: Sequence[Any]) -> pa.Array:
    """Arrays and single values, all of `bytes`, row by row in one."""
    scalars = [pa.scalar(part, _BYTES) if isinstance(part, bytes) else part for part in parts]
    return compute.binary_join_element_wise(*scalars, pa.scalar(b"", _BYTES))


def integers(arrow: pa.DataType) -> ArrayEncoder:
    def encode(values: pa.Array) -> tuple[pa.Array, Texts]:
        sent = values.cast(arrow)
        return sent, lambda: _digits(sent)

    return encode


def encode_booleans(values: pa.Array) -> tuple[pa.Array, Texts]:
    return values, lambda: _digits(values.cast(pa.int8()))


def floats(arrow: pa.DataType) -> ArrayEncoder:
    def encode(values: pa.Array) -> tuple[pa.Array, Texts]:
        # Spark holds 0.0 and -0.0 for the same value, and all NaN; ClickHouse compares their bits.
        numbers = compute.add(values.cast(pa.float64()), 0.0)
        numbers = compute.if_else(compute.is_nan(numbers), math.nan, numbers)
        return numbers.cast(arrow), lambda: _digits(numbers.view(pa.int64()))

    return encode


def decimals(precision: int, scale: int) -> ArrayEncoder:
    arrow = pa.decimal128(precision, scale)

    def encode(values: pa.Array) -> tuple[pa.Array, Texts]:
        sent = values.cast(arrow)
        return sent, lambda: _decimal_texts(sent, precision, scale)

    return encode


def _decimal_texts(sent: pa.Array, precision: int, scale: int) -> pa.Array:
    if 0 < scale <= _MOST_DIGITS_WITH_POINT:
        text = compute.ascii_rtrim(compute.ascii_rtrim(sent.cast(_TEXT), "0"), ".")
        return text.cast(_BYTES)
    # Whole numbers are never written in scientific notation.
    unscaled = pa.Array.from_buffers(
        pa.decimal128(precision, 0), len(sent), sent.buffers(), sent.null_count, sent.offset
    ).cast(_TEXT)
    return (_with_point(unscaled, scale) if scale else unscaled).cast(_BYTES)


def encode_strings(values: pa.Array) -> tuple[pa.Array, Texts]:
    sent = values.cast(_TEXT)
    return sent, lambda: sent.cast(_BYTES)


def encode_binaries(values: pa.Array) -> tuple[pa.Array, Texts]:
    sent = values.cast(_BYTES)
    return sent, lambda: sent


def encode_dates(values: pa.Array) -> tuple[pa.Array, Texts]:
    return values, lambda: _digits(values.cast(pa.int32()))


def encode_timestamps(values: pa.Array) -> tuple[pa.Array, Texts]:
    # A timestamp without time zone is stored as if it were one of UTC.
    micros = values.cast(pa.timestamp("us", values.type.tz)).view(pa.int64())
    return micros.view(_INSTANT), lambda: _digits(micros)


def _digits(numbers: pa.Array) -> pa.Array:
    return numbers.cast(_TEXT).cast(_BYTES)


def _with_point(unscaled: pa.Array, scale: int) -> pa.Array:
    """The digits of whole numbers with a point before the last ones, without zeros at the end."""
    sign = compute.if_else(compute.starts_with(unscaled, "-"), "-", "")
    digits = compute.ascii_lpad(compute.ascii_ltrim(unscaled, "-"), scale + 1, "0")
    fraction = compute.ascii_rtrim(compute.utf8_slice_codeunits(digits, -scale), "0")
    point = compute.if_else(compute.equal(fraction, ""), "", ".")
    parts = (sign, compute.utf8_slice_codeunits(digits, 0, -scale), point, fraction, "")
    texts = [pa.scalar(part, _TEXT) if isinstance(part, str) else part.cast(_TEXT) for part in parts]
    return compute.binary_join_element_wise(*texts)


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
class MirroredColumn:
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
        whole = decimals(spark_type.precision, spark_type.scale)
        return _scalar(name, arrow, _decimal, _text, whole)
    if isinstance(spark_type, spark.StringType):
        return _scalar(
            "String", pa.large_string(), lambda v: (v, v.encode()), lambda value: value, encode_strings
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

    def sql_of_text(value: str) -> str:
        written = text(value)
        return f"ifNull(concat(toString(length({written})), ':', {written}), 'N')"

    return ColumnType(f"Nullable({sql})", arrow, encode, sql_of_text, encode_array)


def _whole_number(sql: str, arrow: pa.DataType) -> ColumnType:
    return _scalar(sql, arrow, _integer, _text, integers(arrow))


def _integer(value: Any) -> tuple[Any, bytes]:
    return value, b"%d" % value


def _boolean(value: Any) -> tuple[Any, bytes]:
    return value, b"1" if value else b"0"


def _float(value: Any) -> tuple[Any, bytes]:
    # Spark holds 0.0 and -0.0 for the same value, and all NaN; ClickHouse compares their bits.
    number = math.nan if value != value else value + 0.0
    (bits,) = struct.unpack("<q", struct.pack("<d", number))
    return number, b"%d" % bits


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
    value = value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value
    microseconds = (value - _EPOCH) // _MICROSECOND
    return microseconds, b"%d" % microseconds


def _bits(value: str) -> str:
    return f"toString(reinterpretAsInt64(toFloat64({value})))"


def _micros(value: str) -> str:
    return f"toString(toUnixTimestamp64Micro({value}))"


def _text(value: str) -> str:
    return f"toString({value})"


_TIMESTAMP = _scalar("DateTime64(6, 'UTC')", _INSTANT, _timestamp, _micros, encode_timestamps)
_SIMPLE: dict[type, ColumnType] = {
    spark.BooleanType: _scalar(
        "Bool", pa.bool_(), _boolean, lambda v: f"toString(toUInt8({v}))", encode_booleans
    ),
    spark.ByteType: _whole_number("Int8", pa.int8()),
    spark.ShortType: _whole_number("Int16", pa.int16()),
    spark.IntegerType: _whole_number("Int32", pa.int32()),
    spark.LongType: _whole_number("Int64", pa.int64()),
    spark.FloatType: _scalar(
        "Float32", pa.float32(), lambda value: _float(single_precision(value)), _bits, floats(pa.float32())
    ),
    spark.DoubleType: _scalar("Float64", pa.float64(), _float, _bits, floats(pa.float64())),
    spark.BinaryType: _scalar("String", pa.large_binary(), _binary, lambda v: v, encode_binaries),
    spark.DateType: _scalar("Date32", pa.date32(), _date, lambda v: f"toString(toInt32({v}))", encode_dates),
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

    def sql_of_text(value: str) -> str:
        return f"concat(toString(length({value})), '[', {_texts(element, value)}, ']')"

    return ColumnType(f"Array({element.sql})", pa.large_list(element.arrow), encode, sql_of_text)


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

    def sql_of_text(value: str) -> str:
        keys, values = _texts(key, f"mapKeys({value})"), _texts(value_type, f"mapValues({value})")
        return f"concat(toString(length(mapKeys({value}))), '{{', {keys}, '|', {values}, '}}')"

    key_sql = (
        key.sql.removeprefix("Nullable(").removesuffix(")") if key.sql.startswith("Nullable(") else key.sql
    )
    return ColumnType(
        f"Map({key_sql}, {value_type.sql})", pa.map_(key.arrow, value_type.arrow), encode, sql_of_text
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

    def sql_of_text(value: str) -> str:
        texts = [field.text(f"tupleElement({value}, {index})") for index, field in enumerate(fields, 1)]
        return "concat('(', " + ", ".join(texts) + ", ')')"

    sql = ", ".join(f"{name_sql(name)} {field.sql}" for name, field in zip(names, fields, strict=True))
    arrow = pa.struct([pa.field(name, field.arrow) for name, field in zip(names, fields, strict=True)])
    return ColumnType(f"Tuple({sql})", arrow, encode, sql_of_text)


def _texts(element: ColumnType, array: str) -> str:
    # Nested lambdas need names of their own.
    item = f"e{next(_lambda_numbers)}"
    return f"arrayStringConcat(arrayMap({item} -> {element.text(item)}, {array}))"

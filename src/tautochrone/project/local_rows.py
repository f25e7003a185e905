"""Rows that `createDataFrame` gets as Python values, as Spark Connect takes them.

Spark Connect builds an Arrow table from them, which takes a whole number for a FLOAT or DOUBLE column. A
classic session refuses it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql.types import ArrayType, DataType, DoubleType, FloatType, MapType, StructType

__all__ = ["float_converter"]

Converter = Callable[[Any], Any]


def float_converter(data_type: DataType) -> Converter | None:
    """Turns the whole numbers in FLOAT and DOUBLE columns of a value into floats; None: it has no such
    column.

    >>> from pyspark.sql.types import StructField
    >>> rows = StructType([StructField("id", ArrayType(DoubleType()))])
    >>> float_converter(rows)(([1, 2.5, None],))
    ([1.0, 2.5, None],)
    """
    if isinstance(data_type, (FloatType, DoubleType)):
        return lambda value: float(value) if type(value) is int else value
    if isinstance(data_type, ArrayType):
        element = float_converter(data_type.elementType)
        return element and _or_other(list, lambda value: [element(item) for item in value])
    if isinstance(data_type, MapType):
        return _map_converter(data_type)
    if isinstance(data_type, StructType):
        return _struct_converter(data_type)
    return None


def _or_other(kind: type, convert: Converter) -> Converter:
    """`convert` for values of a type; Spark itself refuses values of another type."""
    return lambda value: convert(value) if isinstance(value, kind) else value


def _map_converter(data_type: MapType) -> Converter | None:
    key, item = float_converter(data_type.keyType), float_converter(data_type.valueType)
    if key is None and item is None:
        return None

    def convert(value: Any) -> Any:
        return {key(k) if key else k: item(v) if item else v for k, v in value.items()}

    return _or_other(dict, convert)


def _struct_converter(data_type: StructType) -> Converter | None:
    by_name = {field.name: float_converter(field.dataType) for field in data_type.fields}
    by_position = list(by_name.values())
    if not any(by_position) or len(by_position) != len(data_type.fields):
        return None

    def convert(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: column(v) if (column := by_name.get(k)) else v for k, v in value.items()}
        if not isinstance(value, (tuple, list)) or len(value) != len(by_position):
            return value
        # Spark takes the values of a Row by their position too.
        return tuple(
            column(item) if column else item for item, column in zip(value, by_position, strict=True)
        )

    return convert

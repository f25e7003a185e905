"""The types of Arrow that hold the values of Iceberg's types."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

__all__ = ["arrow_type"]

_TYPES = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "string": pa.string(),
    "date": pa.date32(),
    "timestamptz": pa.timestamp("us", "UTC"),
    "timestamp": pa.timestamp("us"),
    "binary": pa.binary(),
}


def arrow_type(iceberg_type: str) -> Any | None:
    """Of a type without fields, as Iceberg's JSON spells it; None: this process neither reads nor writes it.

    Floating-point numbers are not among them: to Spark all NaN are equal, and so are 0.0 and -0.0.

    >>> arrow_type("decimal(12, 2)")
    Decimal128Type(decimal128(12, 2))
    >>> arrow_type("double") is None
    True
    """
    if iceberg_type.startswith("decimal("):
        precision, scale = iceberg_type.removeprefix("decimal(").removesuffix(")").split(",")
        return pa.decimal128(int(precision), int(scale))
    return _TYPES.get(iceberg_type)

"""Rows in Avro's binary format: the parts of it that the weather needs.

A record is its fields one after the other; `["null", x]` begins with the number of the branch; whole
numbers are zigzag varints, doubles eight little-endian bytes, text its length and UTF-8.
"""

from __future__ import annotations

import struct
from typing import Any

__all__ = ["encode"]


def encode(schema: Any, value: Any) -> bytes:
    """`value` by an Avro schema as parsed JSON.

    Raises:
        ValueError: a type that is not known here.
    """
    match schema:
        case {"type": "record", "fields": fields}:
            return b"".join(encode(field["type"], value[field["name"]]) for field in fields)
        case {"type": str() as name}:
            return encode(name, value)
        case ["null", other]:
            return b"\x00" if value is None else b"\x02" + encode(other, value)
        case "int" | "long":
            return _varint(value)
        case "double":
            return struct.pack("<d", value)
        case "string":
            text = value.encode()
            return _varint(len(text)) + text
    raise ValueError(f"no encoding for {schema}")


def _varint(number: int) -> bytes:
    left = (number << 1) ^ (number >> 63)
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*out, left])

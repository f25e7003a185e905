"""Deletion vectors of Delta: https://github.com/delta-io/delta/blob/master/PROTOCOL.md#deletion-vectors."""

from __future__ import annotations

import struct
import uuid
import zlib
from collections.abc import Mapping
from typing import Any

from pyroaring import BitMap64

__all__ = ["decoded85", "name_of_vector", "path_of_vector", "positions_of"]

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_VALUES = {digit: number for number, digit in enumerate(_DIGITS)}
_MAGIC = 1681511377
_UUID_CHARACTERS = 20


def name_of_vector(vector: Mapping[str, Any] | None) -> str:
    """Equal for the same deleted rows of a file; empty without a vector."""
    if not vector:
        return ""
    return f"{vector['storageType']}{vector['pathOrInlineDv']}@{vector.get('offset') or 0}"


def path_of_vector(vector: Mapping[str, Any]) -> str | None:
    """The path of its file as the log would spell it, relative or absolute; None: the log has its bytes."""
    text = str(vector["pathOrInlineDv"])
    if vector["storageType"] == "p":
        return text
    if vector["storageType"] != "u":
        return None
    folder, name = text[:-_UUID_CHARACTERS], text[-_UUID_CHARACTERS:]
    file = f"deletion_vector_{uuid.UUID(bytes=decoded85(name))}.bin"
    return f"{folder}/{file}" if folder else file


def positions_of(vector: Mapping[str, Any], content: bytes | None) -> list[int]:
    """The positions of the deleted rows, ascending.

    Args:
        content: of the file of the vector; None if the log has its bytes.

    Raises:
        ValueError: the vector is damaged.
    """
    size = int(vector["sizeInBytes"])
    if content is None:
        data = decoded85(str(vector["pathOrInlineDv"]))[:size]
    else:
        start = int(vector.get("offset") or 0)
        (written,) = struct.unpack_from(">i", content, start)
        data = content[start + 4 : start + 4 + size]
        (check_sum,) = struct.unpack_from(">I", content, start + 4 + size)
        if written != size or zlib.crc32(data) != check_sum:
            raise ValueError("its size or check sum differs")
    (magic,) = struct.unpack_from("<I", data)
    if magic != _MAGIC:
        raise ValueError("it is no Roaring bitmap of 64 bits")
    positions = list(BitMap64.deserialize(data[4:]))
    if len(positions) != int(vector["cardinality"]):
        raise ValueError(f"it has {len(positions)} rows and not {vector['cardinality']}")
    return positions


def decoded85(text: str) -> bytes:
    """Bytes from the alphabet of Z85, https://rfc.zeromq.org/spec/32/.

    >>> decoded85("HelloWorld").hex()
    '864fd26fb559f75b'
    """
    content = b""
    for start in range(0, len(text), 5):
        number = 0
        for digit in text[start : start + 5]:
            number = number * 85 + _VALUES[digit]
        content += struct.pack(">I", number)
    return content

"""Replaces paths of data files in the footer of Puffin files, which hold deletion vectors.

The footer is JSON at the end of the file. The blobs before it do not move, so the offsets in manifests stay
valid.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable

from tautochrone.errors import LakeError

__all__ = ["with_other_paths"]

_MAGIC = b"PFA1"
_TAIL = struct.Struct("<i4s4s")
"""Payload length, flags, mark."""

_PATHS = ("referenced-data-file",)


def with_other_paths(data: bytes, path: str, renamed: Callable[[str], str | None]) -> bytes:
    """The file's bytes, with each path of a data file replaced for which `renamed` returns a new one.

    Raises:
        LakeError: `METADATA_UNREADABLE`, no Puffin file, or one with a compressed footer.
    """
    if len(data) < _TAIL.size + 2 * len(_MAGIC) or not data.startswith(_MAGIC):
        raise _no_puffin(path, "it is no Puffin file")
    length, flags, mark = _TAIL.unpack(data[-_TAIL.size :])
    start = len(data) - _TAIL.size - length
    if mark != _MAGIC or length < 0 or data[start - 4 : start] != _MAGIC:
        raise _no_puffin(path, "its footer is damaged")
    if flags[0] & 1:
        raise _no_puffin(path, "its footer is compressed")
    footer = json.loads(data[start : start + length])
    for blob in footer.get("blobs", ()):
        properties = blob.get("properties", {})
        for key in _PATHS:
            if key in properties:
                properties[key] = renamed(properties[key]) or properties[key]
    payload = json.dumps(footer, separators=(",", ":")).encode()
    return data[:start] + payload + _TAIL.pack(len(payload), flags, mark)


def _no_puffin(path: str, why: str) -> LakeError:
    return LakeError("METADATA_UNREADABLE", f"{path} cannot be read: {why}")

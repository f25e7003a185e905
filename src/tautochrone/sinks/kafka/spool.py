"""The records of one table in one transaction, in a file of this process until all of them are known.

Kafka cannot take a record back from an open transaction, and an open one delays the readers of its topics. So
the rows are computed before the transaction begins, and can be sent again after it broke.
"""

from __future__ import annotations

import hashlib
import struct
import tempfile
from collections.abc import Iterable, Iterator

from tautochrone.model.sink import Digest

__all__ = ["EncodedMessage", "RunningDigest", "Spool"]

EncodedMessage = tuple[bytes | None, bytes | None]
"""Key and value."""

_LENGTHS = struct.Struct("<qqq")
_ABSENT = -1
_MEMORY_BYTES = 8 << 20


class RunningDigest:
    """A digest of messages in any order."""

    def __init__(self) -> None:
        self._rows = 0
        self._total = 0

    def add(self, key: bytes | None, value: bytes | None) -> None:
        parts = (b"N" if part is None else b"%d:%b" % (len(part), part) for part in (key, value))
        self._rows += 1
        self._total += int.from_bytes(hashlib.sha256(b"".join(parts)).digest()[:8], "big")

    def digest(self) -> Digest:
        return Digest(self._rows, f"{self._total % 2**64:016x}")


class Spool:
    """Messages in chunks of `chunk_rows`. Small ones stay in memory."""

    def __init__(self, messages: Iterable[EncodedMessage], chunk_rows: int) -> None:
        self.digests: list[Digest] = []
        self._file = tempfile.SpooledTemporaryFile(max_size=_MEMORY_BYTES)  # noqa: SIM115
        current = RunningDigest()
        count = 0
        for key, value in messages:
            if count and count % chunk_rows == 0:
                self.digests.append(current.digest())
                current = RunningDigest()
            current.add(key, value)
            lengths = (_ABSENT if part is None else len(part) for part in (key, value))
            self._file.write(_LENGTHS.pack(count // chunk_rows, *lengths))
            self._file.write((key or b"") + (value or b""))
            count += 1
        if count:
            self.digests.append(current.digest())

    def messages(self) -> Iterator[tuple[int, EncodedMessage]]:
        """The number of the chunk, and the message."""
        self._file.seek(0)
        while header := self._file.read(_LENGTHS.size):
            chunk, key_length, value_length = _LENGTHS.unpack(header)
            key = None if key_length == _ABSENT else self._file.read(key_length)
            value = None if value_length == _ABSENT else self._file.read(value_length)
            yield chunk, (key, value)

    def close(self) -> None:
        self._file.close()

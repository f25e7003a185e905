"""From changed rows to the records of a topic, held in a file of this process until all are known.

`upsert`: the key and the newest row, or no value for a key that went. `changelog`: Debezium's envelope with
the row before and after, and the checkpoint in `source`.

Kafka cannot take a record back from an open transaction, and an open one delays the readers of its topics. So
the rows are computed before the transaction begins, and can be sent again after it broke.
"""

from __future__ import annotations

import hashlib
import struct
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tautochrone.errors import SinkError
from tautochrone.model.names import TableName
from tautochrone.model.sink import Digest, TransactionId
from tautochrone.sinks.json_rows import JsonRows, comparable, row_number

__all__ = [
    "EncodedMessage",
    "Message",
    "RunningDigest",
    "Spool",
    "changelog_delta",
    "changelog_replacement",
    "upsert_delta",
    "upsert_replacement",
]

_Row = Mapping[str, Any]
Message = tuple[bytes | None, _Row | None]
"""The key, and the value before it is encoded."""


def upsert_delta(
    sink: str, table: TableName, encoder: JsonRows, removed: Iterable[_Row], added: Iterable[_Row]
) -> Iterator[Message]:
    """The newest row of each key, then the keys that went.

    Raises:
        SinkError: `SINK_KEY_NOT_UNIQUE`.
    """
    keys: set[str] = set()
    for row in added:
        yield _upsert(sink, table, encoder, row, keys)
    for row in removed:
        key = _key(encoder, row)
        if key not in keys:
            keys.add(key)
            yield key.encode(), None


def upsert_replacement(
    sink: str, table: TableName, encoder: JsonRows, rows: Iterable[_Row], present: Mapping[str, int]
) -> Iterator[Message]:
    """What leads from the keys in the topic to these rows; `present` has the hash of each key's row."""
    keys: set[str] = set()
    for row in rows:
        message = _upsert(sink, table, encoder, row, keys)
        if present.get(_key(encoder, row)) != row_number(comparable(row)):
            yield message
    for key in present:
        if key not in keys:
            yield key.encode(), None


def _upsert(sink: str, table: TableName, encoder: JsonRows, row: _Row, keys: set[str]) -> Message:
    key = _key(encoder, row)
    if key in keys:
        raise SinkError(
            "SINK_KEY_NOT_UNIQUE",
            f"Sink {sink}: {table} has two rows of the key {key}, and a topic has one value for each key",
            hint=f"Name columns that identify a row in [sinks.{sink}] key, or set mode = changelog.",
            parameters={"sink": sink, "table": str(table)},
            sqlstate="23505",
            # A later checkpoint may have one row for each key.
            retryable=True,
        )
    keys.add(key)
    return key.encode(), row


def _key(encoder: JsonRows, row: _Row) -> str:
    key = encoder.key_of(row)
    assert key is not None
    return key


def changelog_delta(
    table: TableName,
    encoder: JsonRows,
    transaction: TransactionId,
    removed: Iterable[_Row],
    added: Iterable[_Row],
) -> Iterator[Message]:
    """Changed rows of one key in pairs, as updates; other rows as deletes and creates."""
    source = _source(table, transaction)
    before: dict[str, list[_Row]] = {}
    for row in removed:
        key = encoder.key_of(row)
        if key is None:
            yield None, _envelope("d", row, None, source)
        else:
            before.setdefault(key, []).append(row)
    for row in added:
        key = encoder.key_of(row)
        if key is None:
            yield None, _envelope("c", None, row, source)
            continue
        rows = before.get(key)
        if rows:
            yield key.encode(), _envelope("u", rows.pop(), row, source)
        else:
            yield key.encode(), _envelope("c", None, row, source)
    for key, rows in before.items():
        for row in rows:
            yield key.encode(), _envelope("d", row, None, source)


def changelog_replacement(
    table: TableName,
    encoder: JsonRows,
    transaction: TransactionId,
    rows: Iterable[_Row],
    present: Counter[str],
    stored_row: Mapping[str, _Row],
) -> Iterator[Message]:
    """What leads from the rows in the topic to these rows.

    Args:
        present: number of copies by the text of a row. It is used up.
        stored_row: the row by its text.
    """
    source = _source(table, transaction)
    for row in rows:
        text = comparable(row)
        if present[text] > 0:
            present[text] -= 1
            continue
        key = encoder.key_of(row)
        yield None if key is None else key.encode(), _envelope("r", None, row, source)
    for text, copies in present.items():
        row = stored_row[text]
        key = encoder.key_of(row)
        for _ in range(copies):
            yield None if key is None else key.encode(), _envelope("d", row, None, source)


def _source(table: TableName, transaction: TransactionId) -> dict[str, Any]:
    return {
        "connector": "tautochrone",
        "name": transaction.sink,
        "db": ".".join(table.namespace),
        "table": table.table,
        "checkpoint": int(transaction.checkpoint),
    }


def _envelope(operation: str, before: _Row | None, after: _Row | None, source: _Row) -> _Row:
    return {"before": before, "after": after, "op": operation, "source": source}


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

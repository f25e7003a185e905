"""Rows of the lake as what is sent to ClickHouse, with their digests."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from tautochrone.model.lake import Rows
from tautochrone.model.sink import Digest
from tautochrone.sinks.batches import column_batches
from tautochrone.sinks.clickhouse.types import Column

__all__ = [
    "AUDIT_PARTS",
    "CHUNK",
    "HIDDEN",
    "INSERT_SETTINGS",
    "NULLS",
    "PUBLICATION",
    "SIGN",
    "Batch",
    "arrow_stream",
    "batches",
    "digests",
]

PUBLICATION, SIGN, NULLS, CHUNK = "_ck", "_sign", "_nulls", "_chunk"
HIDDEN = {PUBLICATION: "UInt64", SIGN: "Int8", NULLS: "String", CHUNK: "UInt32"}
"""Columns beside those of the mirrored table, with their types."""
AUDIT_PARTS = 16
"""Into so many parts, by hash, an audit divides the rows of a table."""
INSERT_SETTINGS = {"async_insert": 0, "wait_end_of_query": 1}
"""An insert that the server gathers and answers before it is written could be lost."""


class Batch:
    """Some rows as they are sent, with the hash of each and the paths of its NULL composites."""

    def __init__(
        self, columns: Sequence[Column], names: Sequence[str], values: Sequence[Sequence[Any]]
    ) -> None:
        """`values` has the values of the columns `names`, column by column."""
        count = len(values[0]) if values else 0
        given = dict(zip(names, values, strict=True))
        nulls: list[list[str]] = [[] for _ in range(count)]
        self.arrays: list[pa.Array] = []
        texts: list[list[bytes]] = []
        self._names = [column.name for column in columns]
        for column in columns:
            encode, name = column.type.encode, column.name
            pairs = [
                encode(value, name, paths)
                for value, paths in zip(given.get(name) or [None] * count, nulls, strict=True)
            ]
            self.arrays.append(pa.array([sent for sent, _ in pairs], column.type.arrow))
            texts.append([text for _, text in pairs])
        self._texts = list(texts)
        self._is_null = [
            [value is None for value in given[name]] if name in given else [True] * count
            for name in self._names
        ]
        self.nulls = [",".join(paths) for paths in nulls]
        texts.append([b"%d:%b" % (len(paths.encode()), paths.encode()) for paths in self.nulls])
        self.hashes = [
            hashlib.md5(b"".join(row), usedforsecurity=False).digest() for row in zip(*texts, strict=True)
        ]

    def table(self, columns: Sequence[Column], sign: int, publication: int, chunk: int) -> pa.Table:
        """What is sent, with the hidden columns."""
        count = len(self.nulls)
        hidden = [
            pa.array([publication] * count, pa.uint64()),
            pa.array([sign] * count, pa.int8()),
            pa.array(self.nulls, pa.string()),
            pa.array([chunk] * count, pa.uint32()),
        ]
        return pa.table([*self.arrays, *hidden], names=[*(column.name for column in columns), *HIDDEN])

    def split(self, count: int, key: Sequence[str]) -> list[Batch]:
        """The rows in `count` batches, by the hash of the columns `key`; of all of them if it is empty.

        NULL counts as if the column did not exist: a row that gets a new column stays where it is.
        """
        columns = [index for index, name in enumerate(self._names) if not key or name in key]
        rows: list[list[int]] = [[] for _ in range(count)]
        for row in range(len(self.hashes)):
            text = b"".join(
                b"%d:%b%b"
                % (len(self._names[index].encode()), self._names[index].encode(), self._texts[index][row])
                for index in columns
                if not self._is_null[index][row]
            )
            digest = hashlib.md5(text, usedforsecurity=False).digest()
            rows[int.from_bytes(digest[:8], "little") % count].append(row)
        return [self._take(part) for part in rows]

    @property
    def size(self) -> int:
        """About how many bytes the values have."""
        return sum(array.nbytes for array in self.arrays)

    @classmethod
    def joined(cls, batches_of_rows: Sequence[Batch]) -> Batch:
        """The rows of several batches, which can be sent but not split any more."""
        if len(batches_of_rows) == 1:
            return batches_of_rows[0]
        joined = cls((), (), ())
        columns = zip(*(batch.arrays for batch in batches_of_rows), strict=True)
        joined.arrays = [pa.concat_arrays(arrays) for arrays in columns]
        joined.nulls = [paths for batch in batches_of_rows for paths in batch.nulls]
        joined.hashes = [row_hash for batch in batches_of_rows for row_hash in batch.hashes]
        return joined

    def pieces(self, max_bytes: int, max_rows: int | None = None) -> list[Batch]:
        """The rows in batches of about so many bytes and so many rows at most."""
        size, count = self.size, len(self.hashes)
        step = count if size <= max_bytes else count * max_bytes // size
        step = max(1, step if max_rows is None else min(step, max_rows))
        if step >= count:
            return [self]
        return [self._take(range(start, min(start + step, count))) for start in range(0, count, step)]

    def _take(self, rows: Sequence[int]) -> Batch:
        part = Batch((), (), ())
        part.arrays = [array.take(pa.array(rows, pa.int64())) for array in self.arrays]
        part.nulls = [self.nulls[row] for row in rows]
        part.hashes = [self.hashes[row] for row in rows]
        return part

    def digest(self, sign: int) -> Digest:
        # Of each hash the first of its two halves; one call for all is several times faster.
        halves = struct.unpack(f"<{2 * len(self.hashes)}q", b"".join(self.hashes))
        return Digest(len(self.hashes), _hash_text(sum(halves[::2]) * sign))


def arrow_stream(rows: pa.Table) -> bytes:
    """Rows in the format `ArrowStream`."""
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_stream(buffer, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(buffer.getvalue())


def batches(
    rows: Rows, columns: Sequence[Column], chunk_rows: int, known_rows: int | None = None
) -> Iterator[Batch]:
    """The rows in batches. Of many rows, or of an unknown number, only a part is in memory at a time."""
    for names, values in column_batches(rows, chunk_rows, known_rows):
        yield Batch(columns, names, values)


def digests(batches_of_rows: Iterator[Batch]) -> Mapping[str, Digest]:
    """By part the digest that `sql.digest` computes of the same rows in ClickHouse."""
    counts, totals = [0] * AUDIT_PARTS, [0] * AUDIT_PARTS
    for batch in batches_of_rows:
        for row_hash in batch.hashes:
            part = row_hash[8] % AUDIT_PARTS
            counts[part] += 1
            totals[part] += _number(row_hash)
    return {
        str(part): Digest(count, _hash_text(total))
        for part, (count, total) in enumerate(zip(counts, totals, strict=True))
        if count
    }


def _number(row_hash: bytes) -> int:
    return int.from_bytes(row_hash[:8], "little", signed=True)


def _hash_text(total: int) -> str:
    return f"{total % 2**64:016x}"

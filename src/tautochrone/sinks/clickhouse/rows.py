"""Rows of the lake as what is sent to ClickHouse, with their digests."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as compute

from tautochrone.model.lake import Rows
from tautochrone.model.sink import Digest
from tautochrone.sinks.batches import array_batches, values_of_columns
from tautochrone.sinks.clickhouse.types import MirroredColumn, array_of, joined

__all__ = [
    "AUDIT_PARTS",
    "CHUNK",
    "COUNTED",
    "HIDDEN",
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
COUNTED = ""
"""In the place of a hash: the rows are only counted."""
AUDIT_PARTS = 16
"""Into so many parts, by hash, an audit divides the rows of a table."""
_FIRST_DAY, _LAST_DAY = -25_567, 120_529
"""1900-01-01 and 2299-12-31, as days since 1970: what every version of ClickHouse stores as it is sent."""
_MICROS_OF_A_DAY = 86_400_000_000


@dataclass(frozen=True, slots=True)
class _Texts:
    """Of a column's values the texts that are hashed.

    Attributes:
        parts: gives arrays of `bytes`, and single values: joined row by row they are the texts.
        is_null: where the value is NULL, also in the place of a composite.
    """

    parts: Callable[[], Sequence[Any]]
    is_null: pa.Array


class Batch:
    """Some rows as they are sent.

    Attributes:
        arrays: the columns.
        nulls: of each row the paths of its NULL composites.
    """

    def __init__(
        self,
        arrays: Sequence[pa.Array],
        nulls: pa.Array,
        hash_rows: Callable[[], Sequence[bytes]],
        texts: Mapping[str, _Texts] = MappingProxyType({}),
    ) -> None:
        self.arrays = arrays
        self.nulls = nulls
        self._hash_rows = hash_rows
        self._hashes: Sequence[bytes] | None = None
        self._texts = texts

    def __len__(self) -> int:
        return len(self.nulls)

    @property
    def hashes(self) -> Sequence[bytes]:
        """Of each row. Computed when they are asked for: rows can be sent meanwhile."""
        # Not a cached_property: its lock cannot be sent to executors with this class.
        if self._hashes is None:
            self._hashes = self._hash_rows()
        return self._hashes

    @classmethod
    def of(cls, columns: Sequence[MirroredColumn], names: Sequence[str], values: Sequence[Any]) -> Batch:
        """Encode rows.

        Args:
            columns: of the mirrored table.
            names: of the columns that the rows have.
            values: of these, each an Arrow array or a sequence of Python's values.

        Raises:
            SinkError: as of `values_of_columns`.
        """
        count = len(values[0]) if values else 0
        given = values_of_columns([column.name for column in columns], names, values)
        paths: list[list[str]] = []
        if any(column.type.encode_array is None for column in columns):
            paths = [[] for _ in range(count)]
        arrays: list[pa.Array] = []
        texts: dict[str, _Texts] = {}
        for column, present in zip(columns, given, strict=True):
            array, texts[column.name] = _encoded(
                column, [None] * count if present is None else present, paths
            )
            arrays.append(array)
        nulls = pa.array(map(",".join, paths), pa.string()) if paths else pa.repeat("", count)

        def hash_rows() -> list[bytes]:
            parts = [part for column_texts in texts.values() for part in column_texts.parts()]
            parts += _with_length(nulls.cast(pa.large_binary())) if paths else [b"0:"]
            return _hashes(parts, count)

        return cls(arrays, nulls, hash_rows, texts)

    def table(self, columns: Sequence[MirroredColumn], sign: int, publication: int, chunk: int) -> pa.Table:
        """What is sent, with the hidden columns."""
        count = len(self)
        hidden = [
            pa.repeat(pa.scalar(publication, pa.uint64()), count),
            pa.repeat(pa.scalar(sign, pa.int8()), count),
            self.nulls,
            pa.repeat(pa.scalar(chunk, pa.uint32()), count),
        ]
        return pa.table([*self.arrays, *hidden], names=[*(column.name for column in columns), *HIDDEN])

    def split(self, count: int, key: Sequence[str]) -> list[Batch]:
        """The rows in `count` batches, by the hash of the columns `key`; of all of them if it is empty.

        NULL counts as if the column did not exist: a row that gets a new column stays where it is.
        """
        if count == 1:
            return [self]
        parts: list[pa.Array] = []
        for name, texts in self._texts.items():
            if not key or name in key:
                encoded = name.encode()
                text = joined([b"%d:%b" % (len(encoded), encoded), *texts.parts()])
                parts.append(compute.if_else(texts.is_null, pa.scalar(b"", text.type), text))
        rows: list[list[int]] = [[] for _ in range(count)]
        for row, digest in enumerate(_hashes(parts, len(self))):
            rows[int.from_bytes(digest[:8], "little") % count].append(row)
        return [self._take(part) for part in rows]

    @property
    def size(self) -> int:
        """About how many bytes the values have."""
        return sum(array.nbytes for array in self.arrays)

    @property
    def has_far_times(self) -> bool:
        """Whether a date or a time is before 1900 or after 2299: versions and settings of servers differ in
        what they store then. Values within arrays, maps and structs are not looked at."""
        for array in self.arrays:
            if pa.types.is_date32(array.type):
                numbers, unit = array.view(pa.int32()), 1
            elif pa.types.is_timestamp(array.type):
                numbers, unit = array.view(pa.int64()), _MICROS_OF_A_DAY
            else:
                continue
            least, most = compute.min_max(numbers).as_py().values()
            if least is not None and (least < _FIRST_DAY * unit or most >= (_LAST_DAY + 1) * unit):
                return True
        return False

    @classmethod
    def joined(cls, batches_of_rows: Sequence[Batch]) -> Batch:
        """The rows of several batches, which can be sent but not split any more."""
        if len(batches_of_rows) == 1:
            return batches_of_rows[0]
        columns = zip(*(batch.arrays for batch in batches_of_rows), strict=True)
        return cls(
            [pa.concat_arrays(arrays) for arrays in columns],
            pa.concat_arrays([batch.nulls for batch in batches_of_rows]),
            lambda: [row_hash for batch in batches_of_rows for row_hash in batch.hashes],
        )

    def pieces(self, max_bytes: int, max_rows: int | None = None) -> list[Batch]:
        """The rows in batches of about so many bytes each, all of the same size, and so many rows at most."""
        count = len(self)
        # Rounded, so that a batch a little above the limit does not get a small one beside it.
        step = -(-count // max(1, round(self.size / max_bytes)))
        step = max(1, step if max_rows is None else min(step, max_rows))
        if step >= count:
            return [self]
        return [self._slice(start, step) for start in range(0, count, step)]

    def _slice(self, start: int, count: int) -> Batch:
        return Batch(
            [array.slice(start, count) for array in self.arrays],
            self.nulls.slice(start, count),
            lambda: self.hashes[start : start + count],
        )

    def _take(self, rows: Sequence[int]) -> Batch:
        indices = pa.array(rows, pa.int64())
        return Batch(
            [array.take(indices) for array in self.arrays],
            self.nulls.take(indices),
            lambda: [self.hashes[row] for row in rows],
        )

    def digest(self, sign: int, *, is_hashed: bool = True) -> Digest:
        """The number of the rows, and their hash; an empty one if they are only counted."""
        if not is_hashed:
            return Digest(len(self), COUNTED)
        # Of each hash the first of its two halves. Arrow's sum wraps around at 64 bits.
        halves = pa.py_buffer(b"".join(self.hashes))
        numbers = pa.Array.from_buffers(
            pa.list_(pa.uint64(), 2),
            len(self.hashes),
            [None],
            children=[pa.Array.from_buffers(pa.uint64(), 2 * len(self.hashes), [None, halves])],
        )
        total = compute.sum(compute.list_element(numbers, 0)).as_py() or 0
        return Digest(len(self.hashes), _hash_text(total * sign))


def arrow_stream(rows: pa.Table) -> bytes:
    """Rows in the format `ArrowStream`."""
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_stream(buffer, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(buffer.getvalue())


def batches(
    rows: Rows, columns: Sequence[MirroredColumn], chunk_rows: int, known_rows: int | None = None
) -> Iterator[Batch]:
    """The rows in batches. Of many rows, or of an unknown number, only a part is in memory at a time."""
    for names, values in array_batches(rows, chunk_rows, known_rows):
        yield Batch.of(columns, names, values)


def digests(batches_of_rows: Iterator[Batch]) -> Mapping[str, Digest]:
    """By part the digest that `ClickHouseTables.audit` computes of the same rows in ClickHouse."""
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


def _encoded(column: MirroredColumn, values: Any, paths: Sequence[list[str]]) -> tuple[pa.Array, _Texts]:
    """A column as it is sent, and its texts. The paths of NULL composites are added to `paths`, by row."""
    kind = column.type
    if kind.encode_array is not None:
        array, texts_of = kind.encode_array(array_of(values, kind.arrow))
        return array, _Texts(lambda: _with_length(texts_of()), array.is_null())
    listed = values.to_pylist() if isinstance(values, pa.Array) else values
    pairs = [
        kind.encode(value, column.name, row_paths) for value, row_paths in zip(listed, paths, strict=True)
    ]
    array = pa.array([sent for sent, _ in pairs], kind.arrow)
    texts = pa.array([text for _, text in pairs], pa.large_binary())
    return array, _Texts(lambda: [texts], pa.array([value is None for value in listed], pa.bool_()))


def _with_length(texts: pa.Array) -> list[Any]:
    """The parts of `length:text`, and of `N` for NULL."""
    lengths = compute.binary_length(texts).cast(pa.large_string()).cast(texts.type)
    if not texts.null_count:
        return [lengths, b":", texts]
    empty = pa.scalar(b"", texts.type)
    points = compute.if_else(texts.is_null(), empty, pa.scalar(b":", texts.type))
    return [lengths.fill_null(pa.scalar(b"N", texts.type)), points, texts.fill_null(empty)]


def _hashes(parts: Sequence[Any], count: int) -> list[bytes]:
    """The hash of each row's parts."""
    if not count:
        return []
    md5 = _md5()
    return [md5(text, usedforsecurity=False).digest() for text in joined(parts).to_pylist()]


def _md5() -> Callable[..., Any]:
    """MD5 of CPython itself: OpenSSL's takes twice as long for a text as short as a row.

    Looked up in each process, because executors may have a Python that was built without it.
    """
    try:
        module = importlib.import_module("_md5")
    except ImportError:
        return hashlib.md5
    md5: Callable[..., Any] = module.md5
    return md5


def _number(row_hash: bytes) -> int:
    return int.from_bytes(row_hash[:8], "little", signed=True)


def _hash_text(total: int) -> str:
    return f"{total % 2**64:016x}"

"""Row events to rows of the log table: the k-th rows of all events of one table are read together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tautochrone.sources.capture.log_table import ARROW_SCHEMA, Bytes, Flags, Integers, require_offsets
from tautochrone.sources.mysql.binlog import TableMap
from tautochrone.sources.mysql.charsets import Charsets
from tautochrone.sources.mysql.tables import CapturedTable, TableColumn
from tautochrone.sources.mysql.values import (
    PADDING,
    Cells,
    UndecodableValueError,
    column_texts,
    decimal_bytes,
    shown_bytes,
    undecodable_value_error,
)

__all__ = ["LAST_SEQUENCE", "LOGGED_TYPES", "RowEvents", "changed_types", "log_rows", "truncate_row"]

_ROWS_PER_EVENT_BITS = 32
_FIXED = {1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 8: 8, 9: 3, 10: 3, 13: 1}
_TIMES = {17: 4, 18: 5, 19: 3}
_DECIMAL, _BIT, _ENUM, _SET = 246, 16, 247, 248
_BLOBS = (245, 252, 255)
LOGGED_TYPES = frozenset({*_FIXED, *_TIMES, _DECIMAL, _BIT, _ENUM, _SET, 15, 254, *_BLOBS})
"""Numbers of the types of which it is known how long a value is."""
LAST_SEQUENCE = 2**63 - 1
"""Behind all rows of a transaction."""


@dataclass(slots=True)
class RowEvents:
    """Events of one kind about one table, in one layout.

    Attributes:
        operation: insert, update or delete.
        numbers: of each event in its transaction.
        points, timestamps: of each event's transaction.
    """

    charsets: Charsets
    table: CapturedTable
    layout: TableMap
    operation: str
    images: list[bytes] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    points: list[int] = field(default_factory=list)
    timestamps: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Images:
    """Row images: for each logged column where its values are."""

    starts: Integers
    lengths: Integers
    is_null: Flags

    @classmethod
    def joined(cls, parts: Sequence[_Images]) -> _Images:
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__slots__))

    def at(self, rows: Integers | Flags) -> _Images:
        return _Images(self.starts[rows], self.lengths[rows], self.is_null[rows])


def log_rows(events: RowEvents) -> pa.Table:
    """Rows of the log table, with `sequence` in the order of the log; not sorted.

    Raises:
        IngestError: `CAPTURED_TEXT_NOT_DECODABLE`.
    """
    lengths = np.fromiter(map(len, events.images), np.int64, len(events.images))
    ends: Integers = np.cumsum(lengths)
    positions: Integers = ends - lengths
    buffer: Bytes = np.frombuffer(b"".join(events.images) + bytes(PADDING), np.uint8)
    has_two = events.operation == "update"
    active: Integers = np.flatnonzero(positions < ends)
    before, after, of_event, of_row, row = [], [], [], [], 0
    while len(active):
        image, behind = _read_images(buffer, positions[active], events.layout)
        before.append(image)
        if has_two:
            image, behind = _read_images(buffer, behind, events.layout)
        after.append(image)
        of_event.append(active)
        of_row.append(np.full(len(active), row))
        positions[active] = behind
        active = active[behind < ends[active]]
        row += 1
    if not row:
        return ARROW_SCHEMA.empty_table()
    event, number = np.concatenate(of_event), np.concatenate(of_row)
    sequence = (np.array(events.numbers)[event] << _ROWS_PER_EVENT_BITS) + number * 2 + 1
    writer = _Writer(events, buffer, event, sequence)
    rows = _Images.joined(after)
    if not has_two:
        return writer.rows(rows, np.full(len(event), events.operation), np.arange(len(event)), 0)
    old = _Images.joined(before)
    # An update that changes the key is a delete of the old key and an insert.
    moved = writer.keys_differ(old, rows)
    operations = np.where(moved, "insert", "update")
    written = writer.rows(rows, operations, np.arange(len(event)), 0)
    if not moved.any():
        return written
    where = np.flatnonzero(moved)
    return pa.concat_tables([writer.rows(old.at(moved), np.full(len(where), "delete"), where, -1), written])


def changed_types(layout: TableMap, images: bytes) -> frozenset[int] | None:
    """Numbers of the types of the columns that an update changes, whatever columns the table has now.

    Args:
        images: of the rows, before and after in turn.

    Returns:
        None: not known, since the layout has a type of unknown length.
    """
    if not LOGGED_TYPES.issuperset(layout.types):
        return None
    buffer: Bytes = np.frombuffer(images + bytes(PADDING), np.uint8)
    position: Integers = np.zeros(1, np.int64)
    changed = set()
    while position[0] < len(images):
        before, position = _read_images(buffer, position, layout)
        after, position = _read_images(buffer, position, layout)
        values = (_values(images, before), _values(images, after))
        changed |= {kind for kind, *pair in zip(layout.types, *values, strict=True) if pair[0] != pair[1]}
    return frozenset(changed)


def _values(images: bytes, row: _Images) -> list[bytes | None]:
    """The value of each column of one row as it is written; None for NULL."""
    columns = zip(row.starts[0], row.lengths[0], row.is_null[0], strict=True)
    return [None if is_null else images[start : start + length] for start, length, is_null in columns]


def truncate_row(relation: str, point: int, timestamp: int | None, sequence: int = 0) -> pa.Table:
    row = {
        "point": point,
        "sequence": sequence,
        "transaction": point,
        "committed_at": None if timestamp is None else timestamp * 1_000_000,
        "relation": relation,
        "operation": "truncate",
    }
    return pa.Table.from_pylist([row], ARROW_SCHEMA)


class _Writer:
    def __init__(self, events: RowEvents, buffer: Bytes, event: Integers, sequence: Integers) -> None:
        self._table, self._layout, self._buffer = events.table, events.layout, buffer
        self._charsets = events.charsets
        self._points = np.array(events.points)[event]
        self._timestamps = np.array(events.timestamps)[event] * 1_000_000
        self._sequence = sequence

    def rows(self, images: _Images, operations: Any, where: Integers, half: int) -> pa.Table:
        count = len(where)
        points = pa.array(self._points[where])
        return pa.table(
            [
                points,
                pa.array(self._sequence[where] + half),
                points,
                pa.array(self._timestamps[where]).cast(pa.timestamp("us", "UTC")),
                pa.repeat(self._table.name, count),
                pa.array(operations, pa.string()),
                self._maps(images),
                pa.nulls(count, ARROW_SCHEMA.field("unchanged").type),
                pa.nulls(count, pa.string()),
            ],
            ARROW_SCHEMA,
        )

    def _texts(self, images: _Images, number: int) -> pa.Array:
        """
        Raises:
            IngestError: `CAPTURED_TEXT_NOT_DECODABLE`.
        """
        column = self._table.logged[number]
        try:
            return self._texts_of(column, images, number)
        except UndecodableValueError as error:
            key = self._key(images.at(np.array([error.row])))
            raise undecodable_value_error(self._table, column, key, error) from error

    def _texts_of(self, column: TableColumn, images: _Images, number: int) -> pa.Array:
        cells = Cells(
            self._buffer,
            self._layout.metadata[number],
            images.starts[:, number],
            images.lengths[:, number],
            images.is_null[:, number],
        )
        return column_texts(column, cells, self._charsets, as_key=column.name in self._table.keys)

    def _key(self, row: _Images) -> list[str | None]:
        columns = {column.name: (number, column) for number, column in enumerate(self._table.logged)}
        values: list[str | None] = []
        for name in self._table.keys:
            number, column = columns[name]
            try:
                values.append(self._texts_of(column, row, number)[0].as_py())
            except UndecodableValueError as error:
                values.append(shown_bytes(error.data))
        return values

    def _maps(self, images: _Images) -> pa.Array:
        """name → text of each column that the lake's table has."""
        columns = [
            (column.name, self._texts(images, number))
            for number, column in enumerate(self._table.logged)
            if column in self._table.columns
        ]
        count, width = len(images.starts), len(columns)
        names = pa.array([name for name, _texts in columns] * count, pa.string())
        require_offsets(sum(_text_bytes(texts) for _name, texts in columns))
        by_column = pa.concat_arrays([texts for _name, texts in columns])
        by_row = np.arange(count * width).reshape(width, count).T.reshape(-1)
        offsets = pa.array(np.arange(0, count * width + 1, width, dtype=np.int32))
        return pa.MapArray.from_arrays(offsets, names, by_column.take(pa.array(by_row)))

    def keys_differ(self, before: _Images, after: _Images) -> Flags:
        different: Flags = np.zeros(len(before.starts), bool)
        for number, column in enumerate(self._table.logged):
            if column.name in self._table.keys:
                changed = pc.not_equal(self._texts(before, number), self._texts(after, number))
                different |= changed.to_numpy(zero_copy_only=False)
        return different


def _text_bytes(texts: pa.Array) -> int:
    return int(pc.sum(pc.binary_length(texts)).as_py() or 0)


def _read_images(buffer: Bytes, positions: Integers, layout: TableMap) -> tuple[_Images, Integers]:
    """The images that begin at these positions, and the positions behind them."""
    count = len(layout.types)
    shape = (len(positions), count)
    starts, lengths = np.empty(shape, np.int64), np.empty(shape, np.int64)
    is_null = np.empty(shape, bool)
    bitmap = positions
    positions = positions + (count + 7) // 8
    for number, (kind, metadata) in enumerate(zip(layout.types, layout.metadata, strict=True)):
        null = (buffer[bitmap + number // 8] >> (number % 8)) & 1 == 1
        prefix = _length_bytes(kind, metadata)
        if prefix:
            size = np.zeros(len(positions), np.int64)
            for byte in range(prefix):
                size |= buffer[np.where(null, 0, positions + byte)].astype(np.int64) << (8 * byte)
        else:
            size = np.full(len(positions), _fixed_bytes(kind, metadata))
        starts[:, number], lengths[:, number], is_null[:, number] = positions + prefix, size, null
        positions = positions + np.where(null, 0, prefix + size)
    return _Images(starts, lengths, is_null), positions


def _length_bytes(kind: int, metadata: Sequence[int]) -> int:
    """Of the number before a value of variable length; 0: the length is fixed."""
    if kind in (15, 254):
        return 1 if metadata[0] < 256 else 2
    return metadata[0] if kind in _BLOBS else 0


def _fixed_bytes(kind: int, metadata: Sequence[int]) -> int:
    if kind in _FIXED:
        return _FIXED[kind]
    if kind in _TIMES:
        return _TIMES[kind] + (metadata[0] + 1) // 2
    if kind == _DECIMAL:
        return decimal_bytes(*metadata)
    if kind == _BIT:
        return metadata[1] + (metadata[0] > 0)
    assert kind in (_ENUM, _SET), "tables with other types are refused"
    return metadata[0]

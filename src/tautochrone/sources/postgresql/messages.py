"""Decoding of pgoutput's messages: rows of the log table, one Arrow column at a time.

The messages are those of protocol version 1 ("Logical Replication Message Formats" in PostgreSQL's
documentation); version 2 without streaming is the same. Messages of one kind and one version of a relation
have the same number of columns, so they are decoded together: one numpy step per column, none per row.

A batch begins with a Begin and ends with a Commit. Every batch names its relations anew, because each call
of `pg_logical_slot_peek_binary_changes` decodes from scratch; so no state is kept between batches.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tautochrone.errors import IngestError
from tautochrone.sources.capture.errors import undecodable_text_error
from tautochrone.sources.capture.log_table import (
    ARROW_SCHEMA,
    Bytes,
    Flags,
    Integers,
    list_offsets,
    text_column,
)

__all__ = ["DecodedBatch", "Relation", "RelationColumn", "decode"]

_POSTGRES_EPOCH_US = 946_684_800_000_000
"""2000-01-01 as microseconds since 1970: where PostgreSQL's timestamps begin."""
_SLICE_BYTES = 64 * 1024 * 1024
"""Bounds the memory for one step, and keeps Arrow's 32-bit offsets far from their end."""
_KINDS = frozenset(b"BCRIUDTYOM")
_OPERATIONS = {ord("I"): "insert", ord("U"): "update", ord("D"): "delete"}


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column of a relation; `type_id` and `modifier` are `pg_attribute.atttypid` and `.atttypmod`."""

    name: str
    type_id: int
    modifier: int
    is_key: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as it was when the changes behind its message were written.

    Attributes:
        root: of a partition, the table under which its rows are published; None: it has its own.
        point: where the transaction ends that names it.
    """

    oid: int
    name: str
    columns: tuple[RelationColumn, ...]
    root: int | None = None
    point: int = 0

    @property
    def replica_identity(self) -> frozenset[str]:
        """Columns of which updates and deletes have the values before. Without any there are none."""
        return frozenset(column.name for column in self.columns if column.is_key)


@dataclass(frozen=True, slots=True)
class DecodedBatch:
    """Whole transactions.

    Attributes:
        rows: with the columns of `log_table`, in the order of the log. `transaction` has the 32-bit number
            that the log has.
        relations: all relations that the batch names, in every version, in the order of the log.
        end_point: end of the last commit record; None without a transaction.
        committed_ms: when the newest transaction was committed, by the database's clock.
        transactions: texts of transactions by their ends, each of end, number and time.
        unidentified: relations with updates or deletes whose rows the log does not identify by their key,
            since they had another REPLICA IDENTITY.
    """

    rows: pa.Table
    relations: tuple[Relation, ...]
    end_point: int | None
    committed_ms: int | None
    transactions: Transactions | None = None
    unidentified: frozenset[str] = frozenset()

    def transaction_at(self, end: int) -> str | None:
        """A text that identifies the transaction that ends there; None: the batch has none."""
        return None if self.transactions is None else self.transactions.at(end)


@dataclass(frozen=True, slots=True, eq=False)
class Transactions:
    """End, number and time of the commit of each, in the order of the log."""

    ends: Integers
    numbers: Integers
    committed_us: Integers

    def at(self, end: int) -> str | None:
        index = int(np.searchsorted(self.ends, end))
        if index == len(self.ends) or self.ends[index] != end:
            return None
        return f"{end}/{self.numbers[index]}/{self.committed_us[index]}"


def decode(
    messages: Sequence[bytes],
    keys: Mapping[str, Sequence[str]],
    copied_up_to: Mapping[str, int] | None = None,
    taken: Mapping[str, Collection[str]] | None = None,
) -> DecodedBatch:
    """Decode whole transactions.

    Args:
        messages: the column `data` of `pg_logical_slot_peek_binary_changes`.
        keys: the captured relations and their key columns. Rows of other relations are left out. An update
            that changes the key becomes a delete of the old key and an insert.
        copied_up_to: relations whose rows up to a point of the log do not matter, since they were copied
            behind it: what cannot be identified by its key is left out up to there.
        taken: names in lower case of the columns that rows of a relation get; of others they get all.

    Raises:
        IngestError: `CHANGE_LOG_MESSAGE_UNKNOWN`; `UNCHANGED_VALUE_OF_NEW_KEY`;
            `CAPTURED_TEXT_NOT_DECODABLE`.
    """
    if not messages:
        return DecodedBatch(ARROW_SCHEMA.empty_table(), (), None, None)
    return _Batch(messages, keys, copied_up_to or {}, taken or {}).decode()


class _Batch:
    def __init__(
        self,
        messages: Sequence[bytes],
        keys: Mapping[str, Sequence[str]],
        copied_up_to: Mapping[str, int],
        taken: Mapping[str, Collection[str]],
    ) -> None:
        self._messages = messages
        self._keys = keys
        self._copied_up_to = copied_up_to
        self._taken = taken
        self._unidentified: set[str] = set()
        self._lengths = np.fromiter(map(len, messages), np.int64, len(messages))
        self._starts: Integers = np.cumsum(self._lengths) - self._lengths
        # The padding lets fixed-size reads at the end of the last message stay inside of the buffer.
        self._buffer: Bytes = np.frombuffer(b"".join(messages) + bytes(8), np.uint8)
        self._kinds: Bytes = self._buffer[self._starts]
        unknown = set(np.unique(self._kinds).tolist()) - _KINDS
        if unknown:
            raise IngestError(
                "CHANGE_LOG_MESSAGE_UNKNOWN",
                f"The log has messages of the unknown kinds {sorted(map(chr, unknown))}",
                hint="the database's version may be newer than this program: report it, with both versions",
            )
        begins, commits = (np.flatnonzero(self._kinds == ord(kind)) for kind in "BC")
        self._transaction: Integers = np.cumsum(self._kinds == ord("B")) - 1
        self._first_message: Integers = begins
        self._xids = _read_int32(self._buffer, self._starts[begins] + 17)
        self._end_points = _read_int64(self._buffer, self._starts[commits] + 10)
        self._committed_us = _read_int64(self._buffer, self._starts[commits] + 18) + _POSTGRES_EPOCH_US

    def decode(self) -> DecodedBatch:
        versions = self._relation_versions()
        parts = [part for kind in _OPERATIONS for part in self._changes(kind, versions)]
        truncates = self._truncates(versions)
        tables = [rows for rows, _order in [*parts, *truncates]]
        rows = ARROW_SCHEMA.empty_table()
        if tables:
            order = np.concatenate([order for _rows, order in [*parts, *truncates]])
            rows = pa.concat_tables(tables).take(pa.array(np.argsort(order, kind="stable")))
        return DecodedBatch(
            rows=rows,
            relations=tuple(relation for _index, relation in versions),
            end_point=int(self._end_points[-1]),
            committed_ms=int(self._committed_us[-1]) // 1000,
            transactions=Transactions(self._end_points, self._xids, self._committed_us),
            unidentified=frozenset(self._unidentified),
        )

    def _relation_versions(self) -> list[tuple[int, Relation]]:
        """Index of the message and the relation, in the order of the log."""
        versions = []
        for index in np.flatnonzero(self._kinds == ord("R")).tolist():
            relation = _relation(self._messages[index])
            point = int(self._end_points[self._transaction[index]])
            versions.append((index, replace(relation, root=self._root(index), point=point)))
        return versions

    def _root(self, index: int) -> int | None:
        """Of a change of a partition that is published as one of its root, both are named before it, first
        the root. Before a truncate several relations are named, and no partitions."""
        # The root's relation is before this one; messages of column types ("Y") may come in between.
        before, behind = index - 1, index + 1
        while before > 0 and self._kinds[before] == ord("Y"):
            before -= 1
        if self._kinds[before] != ord("R") or chr(self._kinds[behind]) not in "IUD":
            return None
        root, changed = _oid(self._messages[before]), _oid(self._messages[behind])
        return root if changed == root else None

    def _changes(
        self, kind: int, versions: Sequence[tuple[int, Relation]]
    ) -> Iterator[tuple[pa.Table, Integers]]:
        """Rows of one kind of message, by relation and version, each with where it is in the log."""
        indexes: Integers = np.flatnonzero(self._kinds == kind)
        oids = _read_int32(self._buffer, self._starts[indexes] + 1)
        for number, (begin, relation) in enumerate(versions):
            if relation.name not in self._keys:
                continue
            later = (index for index, other in versions[number + 1 :] if other.oid == relation.oid)
            end = next(later, len(self._messages))
            of_version = indexes[(oids == relation.oid) & (indexes > begin) & (indexes < end)]
            # A partition's rows have its root's number, and the identity that it has itself.
            parts = [part for at, part in versions if part.root == relation.oid and at < end]
            identities = [
                relation.replica_identity,
                *(part.replica_identity for part in parts if part.replica_identity),
            ]
            known = frozenset.intersection(*identities)
            if kind != ord("I") and not known.issuperset(self._keys[relation.name]):
                ends = self._end_points[self._transaction[of_version]]
                if (ends > self._copied_up_to.get(relation.name, 0)).any():
                    self._unidentified.add(relation.name)
                continue
            for piece in self._slices(of_version):
                yield from self._change_rows(kind, relation, piece, known)

    def _slices(self, indexes: Integers) -> Iterator[Integers]:
        """The messages in pieces of bounded size, at least one message each."""
        if len(indexes):
            pieces = np.cumsum(self._lengths[indexes]) // _SLICE_BYTES
            yield from np.split(indexes, np.flatnonzero(np.diff(pieces)) + 1)

    def _change_rows(
        self, kind: int, relation: Relation, indexes: Integers, known: Collection[str]
    ) -> Iterator[tuple[pa.Table, Integers]]:
        """
        Args:
            known: columns of which the log has the values before an update.
        """
        positions = self._starts[indexes] + 5
        taken = self._taken.get(relation.name)
        old: _Tuples | None = None
        has_old = np.isin(self._buffer[positions], (ord("K"), ord("O")))
        if kind == ord("U") and has_old.any():
            old, behind = _Tuples.read(self._buffer, positions[has_old] + 1, relation, taken)
            positions = positions.copy()
            positions[has_old] = behind
        rows, _behind = _Tuples.read(self._buffer, positions + 1, relation, taken)
        operations = np.full(len(indexes), _OPERATIONS[kind])
        if old is not None:
            rows.take_unchanged_from(old, has_old, known)
            moved = rows.at(has_old).differ(old, self._keys[relation.name])
            if moved.any():
                where = np.flatnonzero(has_old)[moved]
                if rows.at(where).is_unchanged.any():
                    raise IngestError(
                        "UNCHANGED_VALUE_OF_NEW_KEY",
                        f"An update gave a row of {relation.name} another key, and the log does not contain "
                        f"the large values that it left unchanged",
                        hint=f"ALTER TABLE {relation.name} REPLICA IDENTITY FULL, and of each of its "
                        f"partitions, then copy the database again with --full-refresh",
                    )
                operations[where] = "insert"
                deletes = np.full(len(where), "delete")
                yield self._log_rows(relation, indexes[where], deletes, old.at(moved), 0)
        yield self._log_rows(relation, indexes, operations, rows, 1)

    def _log_rows(
        self,
        relation: Relation,
        indexes: Integers,
        operations: npt.NDArray[np.str_],
        rows: _Tuples,
        half: int,
    ) -> tuple[pa.Table, Integers]:
        """A message has two places in the order: one for the delete of an old key, one for its row."""
        columns = [
            *self._transaction_columns(indexes, half),
            pa.repeat(relation.name, len(indexes)),
            pa.array(operations, pa.string()),
            rows.text_maps(),
            rows.unchanged_names(),
            pa.nulls(len(indexes), pa.string()),
        ]
        logged = pa.table(columns, ARROW_SCHEMA)
        try:
            # The server does not look at texts again that it has stored.
            logged.validate(full=True)
        except pa.ArrowInvalid as error:
            raise undecodable_text_error(f"The table {relation.name}", str(error)) from error
        return logged, indexes * 2 + half

    def _transaction_columns(self, indexes: Integers, half: int) -> list[pa.Array]:
        transaction = self._transaction[indexes]
        return [
            pa.array(self._end_points[transaction]),
            pa.array((indexes - self._first_message[transaction]) * 2 + half),
            pa.array(self._xids[transaction]),
            pa.array(self._committed_us[transaction]).cast(pa.timestamp("us", "UTC")),
        ]

    def _truncates(self, versions: Sequence[tuple[int, Relation]]) -> list[tuple[pa.Table, Integers]]:
        """A truncate may name several relations: a row for each."""
        parts = []
        names = {relation.oid: relation.name for _index, relation in versions}
        for index in np.flatnonzero(self._kinds == ord("T")).tolist():
            message = self._messages[index]
            (count,) = struct.unpack_from(">I", message, 1)
            for oid in struct.unpack_from(f">{count}I", message, 6):
                if names.get(oid) in self._keys:
                    indexes = np.array([index])
                    columns = [
                        *self._transaction_columns(indexes, 1),
                        pa.array([names[oid]]),
                        pa.array(["truncate"]),
                        *(pa.nulls(1, ARROW_SCHEMA.field(name).type) for name in ("columns", "unchanged")),
                        pa.nulls(1, pa.string()),
                    ]
                    parts.append((pa.table(columns, ARROW_SCHEMA), indexes * 2 + 1))
        return parts


class _Tuples:
    """Rows of one relation, as what the messages have of each: matrices of rows × columns.

    Attributes:
        kinds: `n` NULL, `u` unchanged and not in the message, `t` text. We do not ask for binary values.
        starts, lengths: where the text is in the buffer.
        taken: which columns count; the others are as if the messages had none.
    """

    def __init__(
        self,
        buffer: Bytes,
        relation: Relation,
        kinds: Bytes,
        starts: Integers,
        lengths: Integers,
        taken: Flags,
    ) -> None:
        self._buffer = buffer
        self._relation = relation
        self.kinds, self.starts, self.lengths = kinds, starts, lengths
        self._taken = taken

    @classmethod
    def read(
        cls, buffer: Bytes, positions: Integers, relation: Relation, taken: Collection[str] | None
    ) -> tuple[_Tuples, Integers]:
        """The tuples that begin at these positions, and the positions behind them."""
        count = len(relation.columns)
        shape = (len(positions), count)
        kinds, starts, lengths = (
            np.empty(shape, np.uint8),
            np.empty(shape, np.int64),
            np.zeros(shape, np.int64),
        )
        positions = positions + 2
        for number in range(count):
            kind = buffer[positions]
            has_text = (kind == ord("t")) | (kind == ord("b"))
            size = np.where(has_text, _read_int32(buffer, np.minimum(positions + 1, len(buffer) - 4)), 0)
            kinds[:, number], starts[:, number], lengths[:, number] = kind, positions + 5, size
            positions = positions + np.where(has_text, 5 + size, 1)
        names = [column.name.lower() for column in relation.columns]
        is_taken = np.array([taken is None or name in taken for name in names], bool)
        return cls(buffer, relation, kinds, starts, lengths, is_taken), positions

    @property
    def is_unchanged(self) -> Flags:
        flags: Flags = (self.kinds == ord("u")) & self._taken
        return flags

    def at(self, rows: Integers | Flags) -> _Tuples:
        parts = (self.kinds[rows], self.starts[rows], self.lengths[rows])
        return _Tuples(self._buffer, self._relation, *parts, self._taken)

    def take_unchanged_from(self, old: _Tuples, rows: Flags, known: Collection[str]) -> None:
        """Values that the update left unchanged are in the old row, as far as the log has it."""
        is_known = np.array([column.name in known for column in self._relation.columns])
        taken = (self.kinds[rows] == ord("u")) & is_known
        for name in ("kinds", "starts", "lengths"):
            new_values, old_values = getattr(self, name), getattr(old, name)
            new_values[rows] = np.where(taken, old_values, new_values[rows])

    def differ(self, old: _Tuples, keys: Sequence[str]) -> Flags:
        """Which rows have another key than before. A key is short, and few updates have an old row."""
        numbers = [number for number, column in enumerate(self._relation.columns) if column.name in keys]
        different = np.zeros(len(self.kinds), bool)
        for number in numbers:
            different |= np.array(
                [
                    before != after
                    for before, after in zip(old.texts(number), self.texts(number), strict=True)
                ],
                bool,
            )
        return different

    def texts(self, number: int) -> list[str | None]:
        column = text_column(
            self._buffer,
            self.starts[:, number],
            self.lengths[:, number],
            self.kinds[:, number] == ord("n"),
        )
        values: list[str | None] = column.to_pylist()
        return values

    def text_maps(self) -> pa.Array:
        """name → text for every column that the message has."""
        exists = (self.kinds != ord("u")) & self._taken
        names = pa.array([column.name for column in self._relation.columns], pa.string())
        numbers = np.broadcast_to(np.arange(exists.shape[1]), exists.shape)[exists]
        values = text_column(
            self._buffer, self.starts[exists], self.lengths[exists], self.kinds[exists] == ord("n")
        )
        return pa.MapArray.from_arrays(list_offsets(exists), names.take(pa.array(numbers)), values)

    def unchanged_names(self) -> pa.Array:
        names = pa.array([column.name for column in self._relation.columns], pa.string())
        numbers = np.broadcast_to(np.arange(self.kinds.shape[1]), self.kinds.shape)[self.is_unchanged]
        return pa.ListArray.from_arrays(list_offsets(self.is_unchanged), names.take(pa.array(numbers)))


def _oid(message: bytes) -> int:
    (oid,) = struct.unpack_from(">I", message, 1)
    return int(oid)


def _relation(message: bytes) -> Relation:
    oid = _oid(message)
    schema, position = _c_string(message, 5)
    name, position = _c_string(message, position)
    (count,) = struct.unpack_from(">H", message, position + 1)
    position += 3
    columns = []
    for _ in range(count):
        is_key = bool(message[position] & 1)
        column, position = _c_string(message, position + 1)
        type_id, modifier = struct.unpack_from(">Ii", message, position)
        position += 8
        columns.append(RelationColumn(column, type_id, modifier, is_key))
    # An empty schema stands for pg_catalog.
    return Relation(oid, f"{schema or 'pg_catalog'}.{name}", tuple(columns))


def _c_string(message: bytes, position: int) -> tuple[str, int]:
    end = message.index(0, position)
    return message[position:end].decode(), end + 1


def _read_int32(buffer: Bytes, positions: Integers) -> Integers:
    value = np.zeros(len(positions), np.int64)
    for byte in range(4):
        value = (value << 8) | buffer[positions + byte]
    return value


def _read_int64(buffer: Bytes, positions: Integers) -> Integers:
    return (_read_int32(buffer, positions) << 32) | _read_int32(buffer, positions + 4)

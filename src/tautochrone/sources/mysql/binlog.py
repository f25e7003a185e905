"""Events of the binary log, as the server sends them to a replica that asks for what there is and no more.

The formats are those of "Binary Log Events" in the documentation of MariaDB and MySQL. An event's `start` and
`end` are its offsets in its file; those in a compressed transaction have the offsets of the transaction.
Events that were read once, such as those of a transaction that is committed much later, can be read again
(`events_from`).
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pymysql

from tautochrone.errors import IngestError
from tautochrone.sources.mysql.connection import BINLOG_NOT_READABLE
from tautochrone.sources.mysql.tokens import Session

__all__ = [
    "OFFSET_BITS",
    "Event",
    "Kind",
    "MariaDBGtid",
    "Query",
    "TableMap",
    "complete_images",
    "dump_events",
    "events_from",
    "identity_of",
    "point_of",
]


_COM_BINLOG_DUMP = 0x12
_NON_BLOCKING = 1
_HEADER = struct.Struct("<IBIIIH")
_ARTIFICIAL = 1 << 5
"""Flag of events that are not in the file: the server made them for this reader."""
_THREAD_SPECIFIC = 1 << 2
"""Flag of statements about temporary tables."""
_IGNORABLE = 1 << 7
OFFSET_BITS = 32
_MAX_OFFSET = (1 << OFFSET_BITS) - 1
_VERSION_OF_SERVER = slice(21, 71)
_PAYLOAD_HEADER_END, _PAYLOAD_COMPRESSION, _PAYLOAD_UNCOMPRESSED_SIZE = 0, 2, 3
_ZSTD = 0


class Kind:
    """Numbers of the kinds of events that are read."""

    QUERY = 2
    ROTATE = 4
    FORMAT = 15
    XID = 16
    TABLE_MAP = 19
    XA_PREPARE = 38
    GTID = frozenset({33, 34, 42, 162})
    """Of MySQL, also without and with a tag, and of MariaDB."""
    FIRST = frozenset({QUERY, TABLE_MAP, 165})
    """Those that begin what a transaction does; their time is the same on a replica."""
    PAYLOAD = 40
    QUERY_COMPRESSED = 165
    BEFORE_ROWS = frozenset({QUERY, QUERY_COMPRESSED, TABLE_MAP}) | GTID
    INCIDENT = 26
    """The server lost events."""
    WRITE = frozenset({23, 30, 166, 169})
    UPDATE = frozenset({24, 31, 167, 170})
    DELETE = frozenset({25, 32, 168, 171})
    ROWS = WRITE | UPDATE | DELETE
    PARTIAL_ROWS = 39
    """Updates with parts of JSON values, `binlog_row_value_options = PARTIAL_JSON`."""
    VERSION_2 = frozenset({30, 31, 32, 169, 170, 171})
    COMPRESSED = frozenset(range(166, 172))
    LOADED_FILE = frozenset({9, 11, 17, 18})
    """Of `LOAD DATA` as a statement: parts of the file, its end, and the statement."""
    IGNORED = frozenset({3, 5, 13, 14, 27, 29, 35, 36, 37, 41, 160, 161, 163})
    """Ends of files, variables of statements, heartbeats, row queries, checkpoints, lists of GTIDs, and what
    members of a group say to each other."""


@dataclass(frozen=True, slots=True)
class Event:
    kind: int
    timestamp: int
    server: int
    file: str
    start: int
    end: int
    body: bytes
    flags: int = 0
    version: str = ""
    """Of the server that wrote the file."""

    @property
    def is_about_temporary_table(self) -> bool:
        """Whether its statement means a table of its session, perhaps under the name of another one."""
        return bool(self.flags & _THREAD_SPECIFIC)

    @property
    def may_be_ignored(self) -> bool:
        """Whether who does not know its kind loses nothing."""
        return bool(self.flags & _IGNORABLE)

    @property
    def point(self) -> int:
        return point_of(self.file, self.end)


def point_of(file: str, offset: int) -> int:
    """A place in the log as one number.

    >>> point_of("mysql-bin.000002", 4) == (2 << 32) + 4
    True
    """
    return (int(file.rpartition(".")[2]) << OFFSET_BITS) | offset


def dump_events(connection: Any, file: str, offset: int, *, with_files: bool = False) -> Iterator[Event]:  # noqa: C901
    """All events behind a place that the server has now. The connection is of no use afterwards.

    Server number 0 registers no replica, so the reader cannot be mistaken for another one.

    Args:
        with_files: also, before those of a file, the event that describes it: see `identity_of`.

    Raises:
        IngestError: `CHANGE_LOG_EVENT_DAMAGED`; `CHANGE_LOG_TRANSACTION_TOO_LARGE`.
        pymysql.Error: the server does not have the place, among others.
    """
    connection.query(
        "SET @master_binlog_checksum = 'CRC32', @source_binlog_checksum = 'CRC32', "
        "@mariadb_slave_capability = 4"
    )
    arguments = struct.pack("<IHI", offset, _NON_BLOCKING, 0) + file.encode()
    connection._execute_command(_COM_BINLOG_DUMP, arguments)  # noqa: SLF001
    has_checksum, end, version = False, offset, ""
    while True:
        packet = connection._read_packet()  # noqa: SLF001
        if packet.is_eof_packet():
            return
        data = packet.get_all_data()[1:]
        timestamp, kind, server, size, position, flags = _HEADER.unpack_from(data)
        if kind == Kind.FORMAT:
            # One byte says how the events of this file are protected; its own checksum is always there.
            has_checksum = data[-5] == 1
            version = data[_VERSION_OF_SERVER].partition(b"\0")[0].decode()
        if has_checksum or kind == Kind.ROTATE:
            data = _without_checksum(data, kind, file, position)
        if kind == Kind.ROTATE:
            named, start = data[27:].decode(), int.from_bytes(data[19:27], "little")
            if named != file or start > end:
                file, end = named, start
            continue
        if kind == Kind.FORMAT:
            if with_files:
                yield Event(kind, timestamp, server, file, end, end, data[19:], flags)
            continue
        if flags & _ARTIFICIAL or (kind in Kind.IGNORED and not position):
            continue
        # MariaDB since 11.4 gives positions to the first and last event of a transaction only.
        position = position or end + size
        if position < end or position > _MAX_OFFSET:
            raise IngestError(
                "CHANGE_LOG_TRANSACTION_TOO_LARGE",
                f"The binary log {file} is larger than 4 GiB, behind which places in it have no number",
                hint="copy the database again with --full-refresh-all, and write in smaller transactions",
            )
        end = position
        if kind == Kind.PAYLOAD:
            yield from _compressed_events(data[19:], file, end - size, end, version)
        else:
            yield Event(kind, timestamp, server, file, end - size, end, data[19:], flags, version)


def identity_of(event: Event) -> str:
    """Of a file, by the event that describes it: when it was begun, by which server of which version.

    A server that starts begins a new file, whatever files it was started with. So two logs with a common
    file are the same up to where it ends in either.
    """
    version = event.body[2:52].rstrip(b"\0")
    return hashlib.sha256(b"%d %d %s" % (event.timestamp, event.server, version)).hexdigest()[:16]


def _compressed_events(body: bytes, file: str, start: int, end: int, version: str) -> Iterator[Event]:
    """Of MySQL's `binlog_transaction_compression`. They have no checksums of their own.

    Raises:
        IngestError: `CHANGE_LOG_EVENT_NOT_SUPPORTED`.
    """
    at, uncompressed = 0, 0
    while True:
        field_type, at = _packed_number(body, at)
        if field_type == _PAYLOAD_HEADER_END:
            break
        length, at = _packed_number(body, at)
        value, _end = _packed_number(body, at)
        at += length
        if field_type == _PAYLOAD_COMPRESSION and value != _ZSTD:
            raise IngestError(
                "CHANGE_LOG_EVENT_NOT_SUPPORTED",
                f"The binary log has a transaction in the compression {value}, before {file} {end}",
                hint="captures read zstd; SET GLOBAL binlog_transaction_compression = OFF",
            )
        if field_type == _PAYLOAD_UNCOMPRESSED_SIZE:
            uncompressed = value
    events = pa.decompress(body[at:], uncompressed, codec="zstd", asbytes=True)
    at = 0
    while at < len(events):
        timestamp, kind, server, size, _position, flags = _HEADER.unpack_from(events, at)
        body = events[at + _HEADER.size : at + size]
        yield Event(kind, timestamp, server, file, start, end, body, flags, version)
        at += size


def _without_checksum(data: bytes, kind: int, file: str, position: int) -> bytes:
    """
    Raises:
        IngestError: `CHANGE_LOG_EVENT_DAMAGED`.
    """
    if zlib.crc32(data[:-4]) == int.from_bytes(data[-4:], "little"):
        return data[:-4]
    # The first rotation may have none.
    if kind == Kind.ROTATE:
        return data
    raise _damaged_log_error(file, position)


def _damaged_log_error(file: str, position: int) -> IngestError:
    return IngestError(
        "CHANGE_LOG_EVENT_DAMAGED",
        f"The event that ends at {position} of the binary log {file} does not fit its checksum",
        hint="mariadb-binlog --verify-binlog-checksum shows whether the file is damaged",
    )


@dataclass(frozen=True, slots=True)
class TableMap:
    """Which table the row events behind it are about.

    Attributes:
        types: number of each column's type; enums and sets as such.
        metadata: of each column, such as its length.
    """

    table_id: bytes
    schema: str
    table: str
    types: tuple[int, ...]
    metadata: tuple[tuple[int, ...], ...]

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"

    @classmethod
    def read(cls, body: bytes) -> TableMap:
        schema, at = _short_text(body, 8)
        table, at = _short_text(body, at)
        count, at = _packed_number(body, at)
        types = list(body[at : at + count])
        _length, at = _packed_number(body, at + count)
        metadata = []
        for number, kind in enumerate(types):
            size = _METADATA_BYTES.get(kind, 0)
            values = tuple(body[at : at + size])
            at += size
            if kind == _STRING and values[0] in (_ENUM, _SET):
                types[number] = values[0]
                values = values[1:]
            elif kind == _STRING:
                # Lengths over 255 borrow two bits of the type's byte.
                values = (values[1] | (((values[0] & 0x30) ^ 0x30) << 4),)
            elif kind == _VARCHAR:
                values = (values[0] | values[1] << 8,)
            metadata.append(values)
        return cls(body[:6], schema, table, tuple(types), tuple(metadata))


_VARCHAR, _ENUM, _SET, _STRING = 15, 247, 248, 254
_METADATA_BYTES = {
    4: 1,
    5: 1,
    15: 2,
    16: 2,
    17: 1,
    18: 1,
    19: 1,
    245: 1,
    246: 2,
    252: 1,
    254: 2,
    255: 1,
    242: 1,
}
_METADATA_BYTES |= {140: 1, 141: 2}  # compressed columns, which are refused


def complete_images(kind: int, body: bytes) -> bytes | None:
    """Those of an event's rows, one behind the other; None: they lack some columns."""
    at = 8
    if kind in Kind.VERSION_2:
        at += int.from_bytes(body[8:10], "little")
    count, at = _packed_number(body, at)
    width = (count + 7) // 8
    for _ in range(2 if kind in Kind.UPDATE else 1):
        present = int.from_bytes(body[at : at + width], "little") & ((1 << count) - 1)
        if present != (1 << count) - 1:
            return None
        at += width
    images = body[at:]
    return _uncompressed(images) if kind in Kind.COMPRESSED else images


@dataclass(frozen=True, slots=True)
class Query:
    """A statement in the log.

    Attributes:
        schema: the session's.
        text: in the character set of the session.
    """

    schema: str
    text: bytes
    session: Session

    @classmethod
    def read(cls, event: Event) -> Query:
        body = event.body
        schema_length, variables = body[8], int.from_bytes(body[11:13], "little")
        at = 13 + variables
        schema = body[at : at + schema_length].decode()
        text = body[at + schema_length + 1 :]
        if event.kind == Kind.QUERY_COMPRESSED:
            text = _uncompressed(text)
        return cls(schema, text, _session_of_query(body[13:at], event.version))


def _session_of_query(variables: bytes, version: str) -> Session:
    """From what is written before all that servers have added since."""
    charset = sql_mode = None
    at = 0
    while at < len(variables) and variables[at] in _VARIABLE_BYTES:
        kind, value = variables[at], variables[at + 1 :]
        if kind == _SQL_MODE:
            sql_mode = int.from_bytes(value[:8], "little")
        elif kind == _CHARSET:
            charset = int.from_bytes(value[:2], "little")
        at += 1 + (_VARIABLE_BYTES[kind] or 1 + value[0])
    return Session(charset, sql_mode, version)


_SQL_MODE, _CHARSET = 1, 4
_VARIABLE_BYTES = {0: 4, _SQL_MODE: 8, 3: 4, _CHARSET: 6, 6: 0}
"""Of options, the SQL mode, steps of automatic numbers, character sets and (0: with a length) the catalog."""


@dataclass(frozen=True, slots=True)
class MariaDBGtid:
    """
    Attributes:
        is_single: the group is one statement without an end of its own.
        is_prepared: it is committed by another group (`XA PREPARE`).
        takes_effect: False: an ALTER TABLE that begins, or that failed, when it is logged in two parts.
    """

    domain: str
    gtid: str
    is_single: bool
    is_prepared: bool
    takes_effect: bool

    @classmethod
    def read(cls, body: bytes, server: int) -> MariaDBGtid:
        sequence, domain, flags = struct.unpack_from("<QIB", body)
        at = 13 + (8 if flags & _GROUP_COMMIT else 0)
        if flags & (_PREPARED | _COMPLETED):
            at += 6 + body[at + 4] + body[at + 5]
        more_flags = body[at] if at < len(body) else 0
        return cls(
            str(domain),
            f"{domain}-{server}-{sequence}",
            bool(flags & _STANDALONE),
            bool(flags & _PREPARED),
            not more_flags & (_START_ALTER | _ROLLBACK_ALTER),
        )


_STANDALONE, _GROUP_COMMIT, _PREPARED, _COMPLETED = 1, 2, 64, 128
_START_ALTER, _ROLLBACK_ALTER = 2, 8


def _uncompressed(data: bytes) -> bytes:
    """MariaDB's `log_bin_compress`: a byte that says how long the length is, the length, zlib."""
    size = data[0] & 0x07
    return zlib.decompress(data[1 + size :])


def _short_text(body: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + body[at]
    return body[at + 1 : end].decode(), end + 1


def _packed_number(body: Sequence[int] | bytes, at: int) -> tuple[int, int]:
    """A number of variable length, and the place behind it."""
    first = body[at]
    if first < 251:
        return first, at + 1
    size = {252: 2, 253: 3, 254: 8}[first]
    return int.from_bytes(bytes(body[at + 1 : at + 1 + size]), "little"), at + 1 + size


@contextmanager
def events_from(connect: Callable[[], Any], file: str, offset: int) -> Iterator[Iterable[Event] | None]:
    """From an offset on, by a connection of its own; None: the server does not have the file any more."""
    connection = connect()
    try:
        events = dump_events(connection, file, offset)
        try:
            first = next(events, None)
        except pymysql.Error as error:
            if error.args and error.args[0] == BINLOG_NOT_READABLE:
                first = None
            else:
                raise
        yield None if first is None else _chained(first, events)
    finally:
        connection._force_close()  # noqa: SLF001


def _chained(first: Event, others: Iterator[Event]) -> Iterator[Event]:
    yield first
    yield from others

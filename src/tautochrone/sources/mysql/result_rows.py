"""Rows of a query as Arrow columns, one numpy step per column: the driver would make objects of each value.

A row is a packet of the server's text protocol: three bytes for its length, one for its number, then for each
value its length as a number of one to nine bytes, and its text; 251 stands for NULL. A row of 16 MB and more
comes in several packets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pymysql import err
from pymysql.constants import COMMAND, CR

from tautochrone.sources.capture.log_table import Bytes, Flags, Integers, require_offsets

__all__ = ["columns_of_rows"]

BATCH_BYTES = 2 * 1024 * 1024
"""So much text is held in memory at once, or one row."""
_RECEIVED_BYTES = 256 * 1024
_HEADER = 4
_LONGEST_PACKET = 0xFFFFFF
_ERROR, _END, _END_BYTES = 0xFF, 0xFE, 8
"""First bytes of the packets behind the last row, and how long the second kind is at most. A row that begins
with the same byte is longer."""
_NULL = 251
_LONG_LENGTHS = ((252, 2), (253, 3), (254, 8))
"""First byte → bytes of the number behind it."""
_PADDING = bytes(8)


def columns_of_rows(connection: Any, query: str) -> Iterator[list[pa.Array]]:
    """The columns of some rows, until there are no more. Whoever stops before can only close the connection.

    Raises:
        pymysql.Error
    """
    connection._execute_command(COMMAND.COM_QUERY, query)  # noqa: SLF001
    width = connection._read_packet().read_length_encoded_integer()  # noqa: SLF001
    # Of each column its description, and the end of these.
    for _ in range(width + 1):
        connection._read_packet()  # noqa: SLF001
    for buffer, starts in _batches(connection):
        yield _columns(buffer, starts, width)


def _batches(connection: Any) -> Iterator[tuple[bytes, Sequence[int]]]:
    """Rows as they were received, one after the other, and where each begins. PyMySQL would make an object of
    each, which takes longer than all the rest."""
    buffer = bytearray()
    starts: list[int] = []
    position = 0
    while True:
        buffer += _received_bytes(connection)
        while (following := _end_of_packet(buffer, position)) <= len(buffer):
            size, first = following - position - _HEADER, buffer[position + _HEADER]
            is_end = first == _ERROR or (first == _END and size <= _END_BYTES)
            if size < _LONGEST_PACKET and not is_end:
                starts.append(position + _HEADER)
                position = following
                continue
            if starts:
                yield bytes(buffer[:position]), starts
            if is_end:
                if first == _ERROR:
                    err.raise_mysql_exception(bytes(buffer[position + _HEADER : following]))
                return
            del buffer[:position]
            yield _long_row(connection, buffer), [0]
            starts, position = [], 0
        if position >= BATCH_BYTES:
            yield bytes(buffer[:position]), starts
            del buffer[:position]
            starts, position = [], 0


def _end_of_packet(buffer: bytearray, position: int) -> int:
    """Of the one that begins there; behind the buffer if not even its length was received."""
    if position + _HEADER > len(buffer):
        return position + _HEADER
    return position + _HEADER + int.from_bytes(buffer[position : position + 3], "little")


def _long_row(connection: Any, buffer: bytearray) -> bytes:
    """Takes a row of several packets from the beginning of a buffer, of which more is received."""
    row = bytearray()
    while True:
        while (following := _end_of_packet(buffer, 0)) > len(buffer):
            buffer += _received_bytes(connection)
        row += buffer[_HEADER:following]
        del buffer[:following]
        if following - _HEADER < _LONGEST_PACKET:
            return bytes(row)


def _received_bytes(connection: Any) -> bytes:
    """What the server sent, as much as there is."""
    try:
        data: bytes = connection._rfile.read1(_RECEIVED_BYTES)  # noqa: SLF001
    except OSError as error:
        connection._force_close()  # noqa: SLF001
        raise _connection_lost_error(str(error)) from error
    if not data:
        connection._force_close()  # noqa: SLF001
        raise _connection_lost_error("it was closed")
    return data


def _connection_lost_error(reason: str) -> err.OperationalError:
    return err.OperationalError(CR.CR_SERVER_LOST, f"Lost connection to MySQL server during query ({reason})")


def _columns(rows: bytes, row_starts: Sequence[int], width: int) -> list[pa.Array]:
    positions: Integers = np.array(row_starts, np.int64)
    buffer: Bytes = np.frombuffer(rows + _PADDING, np.uint8)
    columns = []
    for _ in range(width):
        first = buffer[positions]
        lengths: Integers = first.astype(np.int64)
        starts = positions + 1
        for marker, number_bytes in _LONG_LENGTHS:
            long = np.flatnonzero(first == marker)
            if len(long):
                lengths[long] = 0
                for byte in range(number_bytes):
                    lengths[long] |= buffer[starts[long] + byte].astype(np.int64) << (8 * byte)
                starts[long] += number_bytes
        is_null = first == _NULL
        lengths[is_null] = 0
        columns.append(_ascending_texts(buffer, starts, lengths, is_null))
        positions = starts + lengths
    return columns


def _ascending_texts(buffer: Bytes, starts: Integers, lengths: Integers, is_null: Flags) -> pa.Array:
    """As `text_column`, of pieces that follow each other in the buffer: every second one of the pieces that
    the buffer is cut into."""
    # The offsets of the last piece are those of the buffer.
    require_offsets(len(buffer))
    cuts = np.empty(2 * len(starts) + 1, np.int32)
    cuts[0] = 0
    cuts[1::2] = starts
    cuts[2::2] = starts + lengths
    pieces = pa.Array.from_buffers(
        pa.string(), len(cuts) - 1, [None, pa.py_buffer(cuts), pa.py_buffer(buffer)]
    )
    numbers = pa.array(np.arange(1, len(cuts) - 1, 2), mask=is_null)
    return pieces.take(numbers)

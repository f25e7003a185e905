"""Rows of a query as Arrow columns, one numpy step per column: the driver would make objects of each value.

A row is a packet of the server's text protocol: for each value its length as a number of one to nine bytes,
and its text; 251 stands for NULL.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pymysql.constants import COMMAND

from tautochrone.sources.capture.arrow_columns import Bytes, Integers, text_column

__all__ = ["columns_of_rows"]

BATCH_BYTES = 2 * 1024 * 1024
"""So much text is held in memory at once, or one row."""
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
    rows: list[bytes] = []
    size = 0
    while True:
        packet = connection._read_packet()  # noqa: SLF001
        if packet.is_eof_packet():
            break
        rows.append(packet.get_all_data())
        size += len(rows[-1])
        if size >= BATCH_BYTES:
            yield _columns(rows, width)
            rows, size = [], 0
    if rows:
        yield _columns(rows, width)


def _columns(rows: Sequence[bytes], width: int) -> list[pa.Array]:
    sizes = np.fromiter(map(len, rows), np.int64, len(rows))
    positions: Integers = np.cumsum(sizes) - sizes
    buffer: Bytes = np.frombuffer(b"".join(rows) + _PADDING, np.uint8)
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
        columns.append(text_column(buffer, starts, lengths, is_null))
        positions = starts + lengths
    return columns

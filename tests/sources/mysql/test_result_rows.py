"""Rows of a query, from the bytes that a server sends."""

from __future__ import annotations

import io
import random
from collections.abc import Sequence
from typing import Any

import pymysql
import pytest
from pymysql.connections import Connection

from tautochrone.sources.mysql import result_rows
from tautochrone.sources.mysql.result_rows import columns_of_rows

Row = tuple[bytes | None, ...]
_LONGEST = 0xFFFFFF
_END = b"\xfe\x00\x00\x02\x00"


class _Received(Connection):  # type: ignore[misc]
    """A connection whose server has sent everything already.

    Args:
        piece_bytes: so much is read at once.
    """

    def __init__(self, sent: bytes, piece_bytes: int) -> None:
        super().__init__(defer_connect=True)

        class Pieces(io.BytesIO):
            def read1(self, size: int | None = -1, /) -> bytes:
                return super().read1(piece_bytes)

        self._rfile = Pieces(sent)
        self._current_timeout = self._read_timeout
        self._next_seq_id = 1

    def _execute_command(self, command: int, sql: Any) -> None:
        pass


def packets(*payloads: bytes) -> bytes:
    """Of 16 MB at most, with their lengths and numbers."""
    sent, number = [], 1
    for payload in payloads:
        for begin in range(0, len(payload) + 1, _LONGEST):
            part = payload[begin : begin + _LONGEST]
            sent.append(len(part).to_bytes(3, "little") + bytes([number % 256]) + part)
            number += 1
    return b"".join(sent)


def as_packet(row: Row) -> bytes:
    return b"".join(map(_value, row))


def _value(value: bytes | None) -> bytes:
    if value is None:
        return b"\xfb"
    size = len(value)
    if size < 251:
        return bytes([size]) + value
    for first, size_bytes in ((0xFC, 2), (0xFD, 3), (0xFE, 8)):
        if size < 1 << (8 * size_bytes):
            return bytes([first]) + size.to_bytes(size_bytes, "little") + value
    raise AssertionError(size)


def received(rows: Sequence[Row], width: int, *, last: bytes = _END, piece_bytes: int = 100_000) -> list[Row]:
    sent = packets(bytes([width]), *[b"def"] * width, _END, *map(as_packet, rows), last)
    return _read(_Received(sent, piece_bytes))


def _read(connection: Connection[Any]) -> list[Row]:
    return [
        tuple(None if text is None else text.encode() for text in row)
        for columns in columns_of_rows(connection, "SELECT")
        for row in zip(*(column.to_pylist() for column in columns), strict=True)
    ]


@pytest.mark.parametrize("piece_bytes", [1, 7, 100_000])
def test_values_of_all_lengths(piece_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_rows, "BATCH_BYTES", 5_000)
    pick = random.Random(piece_bytes)
    sizes = (0, 1, 9, 250, 251, 252, 300) if piece_bytes < 10 else (0, 1, 250, 251, 65_535, 65_536, 70_000)
    rows: list[Row] = [
        tuple(None if pick.random() < 0.2 else "é".encode() * (pick.choice(sizes) // 2) for _ in range(3))
        for _ in range(200)
    ]
    assert received(rows, 3, piece_bytes=piece_bytes) == rows
    assert received([(None,)], 1, piece_bytes=piece_bytes) == [(None,)]
    assert received([], 3, piece_bytes=piece_bytes) == []


def test_rows_of_several_packets() -> None:
    # A packet of 16 MB says that another one follows, which may be empty; nine bytes are the length.
    sizes = (_LONGEST - 9, _LONGEST - 8, _LONGEST, 2 * _LONGEST - 9)
    rows: list[Row] = [(b"short",)]
    for size in sizes:
        rows += [(b"y" * size,), (b"",)]
    assert received(rows, 1, piece_bytes=5_000_000) == rows


def test_what_goes_wrong_behind_rows() -> None:
    rows: list[Row] = [(b"1",), (b"2",)]
    with pytest.raises(pymysql.err.OperationalError, match="Query execution was interrupted"):
        received(rows, 1, last=b"\xff\xed\x05#70100Query execution was interrupted")
    whole = packets(b"\x01", b"def", _END, *map(as_packet, rows), _END)
    for end in range(len(whole) - 1, len(whole) - 12, -1):
        with pytest.raises(pymysql.err.OperationalError, match="Lost connection"):
            _read(_Received(whole[:end], 100))

"""Values of row images as text, one numpy or Arrow step per column.

The formats are those of "Row event values" in the documentation of replication: big-endian times with a sign
bit, decimals in groups of nine digits. Texts are decoded from the bytes that the server has; an error says
which of them are no text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tautochrone.errors import IngestError
from tautochrone.sources.capture.log_table import Bytes, Flags, Integers, text_column
from tautochrone.sources.mysql.charsets import UTF8_CHARSETS, Charset, Charsets, UndecodableError
from tautochrone.sources.mysql.json_values import json_text
from tautochrone.sources.mysql.tables import CapturedTable, TableColumn
from tautochrone.sources.mysql.types import BINARIES

__all__ = [
    "PADDING",
    "Cells",
    "UndecodableValueError",
    "charset_of",
    "column_texts",
    "decimal_bytes",
    "decoded_texts",
    "hexadecimal",
    "shown_bytes",
    "undecodable_value_error",
]


_SHOWN_BYTES = 32
_HEX = np.frombuffer(b"".join(b"%02X" % byte for byte in range(256)), np.uint8).reshape(256, 2)


class UndecodableValueError(ValueError):
    """A value of a column is no text.

    Attributes:
        row: its number in the column.
    """

    def __init__(self, row: int, data: bytes, reason: str) -> None:
        super().__init__(reason)
        self.row, self.data, self.reason = row, data, reason


def shown_bytes(data: bytes) -> str:
    return f"0x{data[:_SHOWN_BYTES].hex().upper()}" + ("..." if len(data) > _SHOWN_BYTES else "")


def charset_of(column: TableColumn) -> str:
    return column.charset or "utf8mb4"


def decoded_texts(texts: pa.Array, charset: Charset, *, as_key: bool = False) -> pa.Array:
    """
    Args:
        texts: strings of the bytes of a character set, which need not be UTF-8.
        as_key: see `Charset.decode`.

    Raises:
        UndecodableValueError
    """
    # Arrow checks bytes that become strings.
    data = texts.cast(pa.binary())
    if charset.name in UTF8_CHARSETS:
        try:
            return data.cast(pa.string())
        except pa.ArrowInvalid:
            pass
    values: list[str | None] = []
    for row, value in enumerate(data.to_pylist()):
        try:
            values.append(None if value is None else charset.decode(value, as_key=as_key))
        except UndecodableError as error:
            raise UndecodableValueError(row, value, str(error)) from error
    return pa.array(values, pa.string())


def hexadecimal(data: pa.Array) -> pa.Array:
    """
    Args:
        data: strings of bytes, which need not be UTF-8.

    >>> hexadecimal(pa.array([b"\\x00\\xff", None]).view(pa.string())).to_pylist()
    ['00FF', None]
    """
    _validity, offsets, values = data.cast(pa.binary()).buffers()
    positions: Integers = np.frombuffer(offsets, np.int32)[data.offset :][: len(data) + 1].astype(np.int64)
    first, last = int(positions[0]), int(positions[-1])
    source: Bytes = np.frombuffer(values or b"", np.uint8)[first:last]
    starts = 2 * (positions[:-1] - first)
    lengths = 2 * np.diff(positions)
    is_null = data.is_null().to_numpy(zero_copy_only=False)
    return text_column(_HEX[source].reshape(-1), starts, lengths, is_null)


def undecodable_value_error(
    table: CapturedTable, column: TableColumn, key: Sequence[str | None], error: UndecodableValueError
) -> IngestError:
    """
    Args:
        key: of the row, as texts.
    """
    row = ", ".join(f"{name} = {value}" for name, value in zip(table.keys, key, strict=True))
    return IngestError(
        "CAPTURED_TEXT_NOT_DECODABLE",
        f"A value of {table.name} is no text: in {column.name} of the row with {row} the bytes "
        f"{shown_bytes(error.data)}: {error.reason}",
        hint=f"correct the row in the database, then run with --full-refresh {table.name}, which copies the "
        f"table again; or leave the table out with exclude=[…]",
        sqlstate="22021",
        parameters={"table": table.name, "column": column.name},
    )


PADDING = 80
"""Bytes behind the images, so that reads of fixed size stay inside of the buffer: NULLs have no bytes."""
_DECIMAL_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
"""How many bytes a group of so many digits has."""
_INTEGERS = {"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "bigint": 8}
_TEXTS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext")
_LABEL = re.compile(r"'((?:[^']|'')*)'")
_ESCAPED = re.compile(r"''|\\(.)")
_CONTROLS = {"0": "\0", "n": "\n", "r": "\r"}


class Cells:
    """The values of one column: where each is in the buffer.

    Attributes:
        metadata: of the column, from the table map.
    """

    def __init__(
        self, buffer: Bytes, metadata: Sequence[int], starts: Integers, lengths: Integers, is_null: Flags
    ) -> None:
        self.buffer, self.metadata = buffer, metadata
        self.starts, self.lengths, self.is_null = starts, lengths, is_null

    def little(self, size: int) -> Any:
        value = np.zeros(len(self.starts), np.uint64)
        for byte in range(size):
            value |= self.buffer[self.starts + byte].astype(np.uint64) << np.uint64(8 * byte)
        return value

    def big(self, size: int, skip: int = 0) -> Integers:
        value = np.zeros(len(self.starts), np.int64)
        for byte in range(skip, skip + size):
            value = (value << 8) | self.buffer[self.starts + byte]
        return value

    def matrix(self, size: int) -> Bytes:
        bytes_of_values: Bytes = np.ascontiguousarray(self.buffer[self.starts[:, None] + np.arange(size)])
        return bytes_of_values


def column_texts(column: TableColumn, cells: Cells, charsets: Charsets, *, as_key: bool = False) -> pa.Array:
    """A column of strings, as the server prints the values; binaries in hexadecimal digits.

    Raises:
        UndecodableValueError
    """
    kind = column.data_type
    if kind in BINARIES:
        return _hexadecimal(cells, column.octets if kind == "binary" else 0)
    if kind in _TEXTS:
        return decoded_texts(_bytes(cells), charsets[charset_of(column)], as_key=as_key)
    if kind in _INTEGERS:
        return _with_nulls(_integers(cells, _INTEGERS[kind], column.is_unsigned), cells)
    if kind in ("enum", "set"):
        return _with_nulls(_labels(column, cells), cells)
    return _with_nulls(_OTHERS[kind](cells), cells)


def _integers(cells: Cells, size: int, is_unsigned: bool) -> pa.Array:
    values = cells.little(size)
    if is_unsigned:
        return pa.array(values).cast(pa.string())
    shift = 64 - 8 * size
    return pa.array((values << np.uint64(shift)).view(np.int64) >> shift).cast(pa.string())


def _float(cells: Cells) -> pa.Array:
    return _floats(cells, cells.matrix(4).view("<f4"))


def _double(cells: Cells) -> pa.Array:
    return _floats(cells, cells.matrix(8).view("<f8"))


_PLAIN_POINT = 15
"""Numbers with their point at most so far from the first digit are printed without an exponent."""


def _floats(cells: Cells, values: Any) -> pa.Array:
    with np.errstate(invalid="ignore"):
        numbers = pa.array(np.where(cells.is_null, 0.0, values[:, 0].astype(np.float64)))
    texts = numbers.cast(pa.string())
    has_exponent = pc.match_substring(texts, "e")
    if not pc.any(has_exponent).as_py():
        return texts
    printed = [_number_text(text) for text in texts.filter(has_exponent).to_pylist()]
    return pc.replace_with_mask(texts, has_exponent, pa.array(printed, pa.string()))


def _number_text(text: str) -> str:
    """Of Arrow's text of a number the server's: it writes an exponent only for numbers that are much larger
    or smaller, and no plus sign.

    >>> _number_text("-1.5e+10"), _number_text("1.5e+20")
    ('-15000000000', '1.5e20')
    """
    sign = "-" if text.startswith("-") else ""
    mantissa, _, exponent = text.removeprefix("-").partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits, point = (whole + fraction).rstrip("0"), len(whole) + int(exponent)
    if not -_PLAIN_POINT < point <= _PLAIN_POINT:
        shown = f"{digits[0]}.{digits[1:]}".removesuffix(".")
        return f"{sign}{shown}e{point - 1}"
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    whole, fraction = digits[:point].ljust(point, "0"), digits[point:]
    return f"{sign}{whole}.{fraction}".removesuffix(".")


def _bits(cells: Cells) -> pa.Array:
    bits, whole = cells.metadata
    value = np.zeros(len(cells.starts), np.uint64)
    for byte in range(whole + (bits > 0)):
        value = (value << np.uint64(8)) | cells.buffer[cells.starts + byte].astype(np.uint64)
    return pa.array(value).cast(pa.string())


def _year(cells: Cells) -> pa.Array:
    years = cells.big(1)
    return pa.array(np.where(years == 0, 0, years + 1900)).cast(pa.string())


def _with_nulls(values: pa.Array, cells: Cells) -> pa.Array:
    return pc.if_else(pa.array(cells.is_null), pa.scalar(None, pa.string()), values)


def _digits(values: Integers, width: int) -> pa.Array:
    return pc.utf8_lpad(pa.array(values).cast(pa.string()), width, "0")


def _concatenated(*parts: pa.Array | str) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "")


def _fraction(values: Integers, digits: int) -> list[pa.Array | str]:
    """`values` count the digits of whole bytes: two of them for one byte."""
    if not digits:
        return []
    return [".", _digits(values // 10 ** (digits % 2), digits)]


def _date(cells: Cells) -> pa.Array:
    value = cells.little(3).astype(np.int64)
    return _concatenated(
        _digits(value >> 9, 4), "-", _digits((value >> 5) & 15, 2), "-", _digits(value & 31, 2)
    )


def _time(cells: Cells) -> pa.Array:
    digits = cells.metadata[0]
    bits = 8 * ((digits + 1) // 2)
    value = cells.big(3 + bits // 8) - (0x800000 << bits)
    sign = pc.if_else(pa.array(value < 0), "-", "")
    size = np.abs(value)
    seconds, fraction = size >> bits, size & ((1 << bits) - 1)
    hours, minutes = (seconds >> 12) & 1023, (seconds >> 6) & 63
    clock = (_digits(hours, 2), ":", _digits(minutes, 2), ":", _digits(seconds & 63, 2))
    # `utf8_lpad` leaves three digits of hours as they are.
    return _concatenated(sign, *clock, *_fraction(fraction, digits))


def _datetime(cells: Cells) -> pa.Array:
    digits = cells.metadata[0]
    value = cells.big(5) - 0x8000000000
    days, clock = value >> 17, value & 0x1FFFF
    months = days >> 5
    return _concatenated(
        _digits(months // 13, 4),
        "-",
        _digits(months % 13, 2),
        "-",
        _digits(days & 31, 2),
        " ",
        _digits(clock >> 12, 2),
        ":",
        _digits((clock >> 6) & 63, 2),
        ":",
        _digits(clock & 63, 2),
        *_fraction(cells.big((digits + 1) // 2, 5), digits),
    )


def _timestamp(cells: Cells) -> pa.Array:
    digits = cells.metadata[0]
    seconds = cells.big(4)
    clock = pa.array(np.where(cells.is_null, 0, seconds)).cast(pa.timestamp("s")).cast(pa.string())
    fraction = cells.big((digits + 1) // 2, 4)
    clock = pc.if_else(pa.array((seconds == 0) & (fraction == 0)), "0000-00-00 00:00:00", clock)
    return _concatenated(clock, *_fraction(fraction, digits), "+00:00")


def decimal_bytes(precision: int, scale: int) -> int:
    groups = [(precision - scale), scale]
    return sum(digits // 9 * 4 + _DECIMAL_BYTES[digits % 9] for digits in groups)


def _decimal(cells: Cells) -> pa.Array:
    precision, scale = cells.metadata
    data = cells.matrix(decimal_bytes(precision, scale))
    is_negative = (data[:, 0] & 0x80) == 0
    # The bytes of negative numbers are inverted, and the first bit of all.
    data = data ^ np.where(is_negative, 0xFF, 0).astype(np.uint8)[:, None]
    data[:, 0] ^= 0x80
    before, rest = _digit_groups(precision - scale, leading=True), _digit_groups(scale, leading=False)
    texts, at = [], 0
    for digits in (*before, *rest):
        value = np.zeros(len(data), np.int64)
        for byte in range(at, at + _DECIMAL_BYTES[digits]):
            value = (value << 8) | data[:, byte]
        at += _DECIMAL_BYTES[digits]
        # What a NULL has in its place may be longer.
        texts.append(_digits(np.where(cells.is_null, 0, value), digits))
    whole = pc.utf8_ltrim(_concatenated(*texts[: len(before)]), "0") if before else pa.array([""] * len(data))
    whole = pc.if_else(pc.equal(whole, ""), "0", whole)
    fraction = [".", *texts[len(before) :]] if scale else []
    return _concatenated(pc.if_else(pa.array(is_negative), "-", ""), whole, *fraction)


def _digit_groups(digits: int, *, leading: bool) -> list[int]:
    whole, part = [9] * (digits // 9), [digits % 9] if digits % 9 else []
    return part + whole if leading else whole + part


def _labels(column: TableColumn, cells: Cells) -> pa.Array:
    labels = [_ESCAPED.sub(_unescaped, label) for label in _LABEL.findall(column.column_type)]
    values = np.where(cells.is_null, np.uint64(0), cells.little(cells.metadata[0]))
    numbers, where = np.unique(values, return_inverse=True)
    _require_labels(column, labels, int(numbers.max(initial=0)))
    if column.data_type == "enum":
        # Number 0 stands for a value that was none of the labels.
        texts = [labels[number - 1] if number else "" for number in numbers.tolist()]
    else:
        texts = [
            ",".join(label for bit, label in enumerate(labels) if number >> bit & 1)
            for number in numbers.tolist()
        ]
    return pa.array(texts, pa.string()).take(pa.array(where))


def _require_labels(column: TableColumn, labels: Sequence[str], greatest: int) -> None:
    """
    Raises:
        IngestError: `CAPTURED_TABLE_CHANGED`: a number in the log stands for a label that is not there.
    """
    if greatest > (len(labels) if column.data_type == "enum" else (1 << len(labels)) - 1):
        raise IngestError(
            "CAPTURED_TABLE_CHANGED",
            f"The column {column.name} has the value {greatest} in the log, and {len(labels)} labels",
            hint="run again: a table that got other columns is copied; if it is refused again, copy the "
            "database again: --full-refresh of the log table and of the captured tables",
        )


def _unescaped(escaped: re.Match[str]) -> str:
    """As the server shows it in the type of a column, whatever the SQL mode is."""
    character = escaped[1]
    return "'" if character is None else _CONTROLS.get(character, character)


def _bytes(cells: Cells) -> pa.Array:
    lengths = np.where(cells.is_null, 0, cells.lengths)
    return text_column(cells.buffer, cells.starts, lengths, cells.is_null)


def _hexadecimal(cells: Cells, octets: int) -> pa.Array:
    column = hexadecimal(_bytes(cells))
    # The log leaves out the zeros at the end of BINARY(n).
    return pc.utf8_rpad(column, 2 * octets, "0") if octets else column


def _json(cells: Cells) -> pa.Array:
    """MySQL's; MariaDB's JSON is text.

    Raises:
        UndecodableValueError
    """
    pieces = zip(cells.starts.tolist(), cells.lengths.tolist(), cells.is_null.tolist(), strict=True)
    texts: list[str | None] = []
    for row, (start, length, null) in enumerate(pieces):
        data = bytes(cells.buffer[start : start + length])
        try:
            texts.append(None if null else json_text(data))
        except ValueError as error:
            raise UndecodableValueError(row, data, str(error)) from error
    return pa.array(texts, pa.string())


_OTHERS: dict[str, Callable[[Cells], pa.Array]] = {
    "float": _float,
    "double": _double,
    "decimal": _decimal,
    "bit": _bits,
    "json": _json,
    "year": _year,
    "date": _date,
    "time": _time,
    "datetime": _datetime,
    "timestamp": _timestamp,
}

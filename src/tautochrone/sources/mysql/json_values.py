"""MySQL's binary JSON as the text that MySQL prints.

The format is that of `sql-common/json_binary.h` in MySQL's source: arrays and objects have tables of
offsets to their keys and values, in two bytes each or, when they are large, in four.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Callable
from decimal import Decimal

__all__ = ["json_text"]

_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY, _LITERAL = range(5)
_DOUBLE, _STRING, _OPAQUE = 0x0B, 0x0C, 0x0F
_INTEGERS = {5: "<h", 6: "<H", 7: "<i", 8: "<I", 9: "<q", 10: "<Q"}
_INLINED = {False: frozenset({4, 5, 6}), True: frozenset({4, 5, 6, 7, 8})}
"""Types whose values stand in the table of offsets, in small and in large containers."""
_LITERALS = {0: "null", 1: "true", 2: "false"}
_ESCAPED = re.compile(r'["\\\x00-\x1f]')
_ESCAPES = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
_DATE, _TIME, _DATETIME, _TIMESTAMP, _DECIMAL = 10, 11, 12, 7, 246
_MAX_FIXED_DIGITS = 15


def json_text(data: bytes) -> str:
    """
    Raises:
        ValueError: the bytes are none of the format, or a text in them is no UTF-8.

    >>> json_text(bytes([0x0C, 2, 0x68, 0x69]))
    '"hi"'
    >>> json_text(bytes([2, 1, 0, 7, 0, 5, 0xFF, 0xFF]))
    '[-1]'
    """
    # A column NOT NULL that an UPDATE IGNORE set to NULL has no bytes.
    try:
        return _value(data[0], data[1:]) if data else "null"
    except (IndexError, KeyError, OverflowError, RecursionError, struct.error) as error:
        raise ValueError(f"it is no binary JSON ({type(error).__name__}: {error})") from error


def _value(kind: int, data: bytes) -> str:
    if kind in (_SMALL_OBJECT, _LARGE_OBJECT):
        return _container(data, is_large=kind == _LARGE_OBJECT, has_keys=True)
    if kind in (_SMALL_ARRAY, _LARGE_ARRAY):
        return _container(data, is_large=kind == _LARGE_ARRAY, has_keys=False)
    if kind == _LITERAL:
        return _LITERALS[data[0]]
    if kind in _INTEGERS:
        return str(struct.unpack_from(_INTEGERS[kind], data)[0])
    if kind == _DOUBLE:
        return _double(struct.unpack_from("<d", data)[0])
    if kind == _STRING:
        length, at = _length(data, 0)
        return _quoted(data[at : at + length].decode())
    if kind != _OPAQUE:
        raise ValueError(f"it is no binary JSON (unknown type {kind})")
    length, at = _length(data, 1)
    return _opaque(data[0], data[at : at + length])


def _container(data: bytes, *, is_large: bool, has_keys: bool) -> str:
    number, width = ("<I", 4) if is_large else ("<H", 2)

    def at(position: int) -> int:
        return int(struct.unpack_from(number, data, position)[0])

    count, first = at(0), 2 * width
    values = first + (count * (width + 2) if has_keys else 0)
    texts = []
    for item in range(count):
        entry = values + item * (width + 1)
        kind = data[entry]
        start = entry + 1 if kind in _INLINED[is_large] else at(entry + 1)
        text = _value(kind, data[start:])
        if has_keys:
            key = first + item * (width + 2)
            length = int(struct.unpack_from("<H", data, key + width)[0])
            text = f"{_quoted(data[at(key) : at(key) + length].decode())}: {text}"
        texts.append(text)
    joined = ", ".join(texts)
    return f"{{{joined}}}" if has_keys else f"[{joined}]"


def _length(data: bytes, at: int) -> tuple[int, int]:
    """A number in groups of seven bits, and the position behind it."""
    length = shift = 0
    while True:
        byte = data[at]
        length |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return length, at


def _quoted(text: str) -> str:
    return '"' + _ESCAPED.sub(lambda match: _ESCAPES.get(match[0], f"\\u{ord(match[0]):04x}"), text) + '"'


def _double(value: float) -> str:
    """
    >>> [_double(value) for value in (1.0, -0.5, 1e14, 1e-15, 2.5e22, 1e300)]
    ['1.0', '-0.5', '100000000000000.0', '0.000000000000001', '2.5e22', '1e300']
    """
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    if not isinstance(exponent, int):
        raise ValueError(f"it has a number that JSON does not have ({value})")
    minus, figures = "-" * sign, "".join(map(str, digits))
    point = len(figures) + exponent
    """Digits before the decimal point."""
    if value == 0:
        return f"{minus}0.0"
    if not -_MAX_FIXED_DIGITS < point <= max(_MAX_FIXED_DIGITS, len(figures) - 1):
        fraction = f".{figures[1:]}" if len(figures) > 1 else ""
        return f"{minus}{figures[0]}{fraction}e{point - 1}"
    if point <= 0:
        return f"{minus}0.{'0' * -point}{figures}"
    return f"{minus}{figures[:point].ljust(point, '0')}.{figures[point:] or '0'}"


def _opaque(kind: int, data: bytes) -> str:
    """Values that are no JSON, such as decimals and times; others are base64 with their type."""
    to_text = _OPAQUES.get(kind)
    if to_text is not None:
        return to_text(data)
    return f'"base64:type{kind}:{base64.b64encode(data).decode()}"'


def _decimal(data: bytes) -> str:
    precision, scale = data[0], data[1]
    body = bytearray(data[2:])
    is_negative = not body[0] & 0x80
    if is_negative:
        body = bytearray(byte ^ 0xFF for byte in body)
    body[0] ^= 0x80
    figures, at = "", 0
    whole = precision - scale
    groups = [whole % 9, *[9] * (whole // 9), *[9] * (scale // 9), scale % 9]
    for digits in filter(None, groups):
        size = (digits + 1) // 2 if digits < 9 else 4
        figures += str(int.from_bytes(body[at : at + size], "big")).zfill(digits)
        at += size
    integer = figures[:whole].lstrip("0") or "0"
    fraction = f".{figures[whole:]}" if scale else ""
    return f"{'-' * is_negative}{integer}{fraction}"


def _packed_time(data: bytes) -> tuple[bool, int, int, int, int]:
    """The sign, days with months, and the clock."""
    (packed,) = struct.unpack("<q", data)
    size = abs(packed)
    clock = size >> 24
    return packed < 0, clock >> 17, clock & 0x1FFFF, clock, size & 0xFFFFFF


def _date(data: bytes) -> str:
    _negative, days, _clock, _all, _fraction = _packed_time(data)
    return f'"{_days(days)}"'


def _datetime(data: bytes) -> str:
    _negative, days, clock, _all, fraction = _packed_time(data)
    return f'"{_days(days)} {clock >> 12:02}:{clock >> 6 & 63:02}:{clock & 63:02}.{fraction:06}"'


def _time(data: bytes) -> str:
    is_negative, _days_of, _clock, clock, fraction = _packed_time(data)
    text = f"{clock >> 12 & 1023:02}:{clock >> 6 & 63:02}:{clock & 63:02}.{fraction:06}"
    return f'"{"-" * is_negative}{text}"'


def _days(days: int) -> str:
    months = days >> 5
    return f"{months // 13:04}-{months % 13:02}-{days & 31:02}"


_OPAQUES: dict[int, Callable[[bytes], str]] = {
    _DECIMAL: _decimal,
    _DATE: _date,
    _DATETIME: _datetime,
    _TIMESTAMP: _datetime,
    _TIME: _time,
}

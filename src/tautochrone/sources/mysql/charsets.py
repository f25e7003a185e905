"""Bytes of a character set as text, by the server's own tables.

Other implementations of the same sets differ in thousands of characters, so each set is asked from the server
when it is first needed: which bytes are one character, and what the server makes of it in UTF-8. What the
server has no character for raises; the server itself would answer `?`. Where several characters of a set are
one in UTF-8, such as 396 of cp932, only that which the server makes of it again can be in a key.

The sets of Unicode have no tables: the server converts them by the same arithmetic as Python's codecs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pymysql

from tautochrone.errors import IngestError
from tautochrone.sources.mysql.connection import fetch

__all__ = ["UTF8_CHARSETS", "Charset", "Charsets", "UndecodableError"]

UTF8_CHARSETS = frozenset({"utf8mb4", "utf8mb3", "utf8"})
"""Their bytes are UTF-8."""
_CODECS = {
    **dict.fromkeys(UTF8_CHARSETS, "utf-8"),
    "ucs2": "utf-16-be",
    "utf16": "utf-16-be",
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
}
_LARGEST_OF_UCS2 = "\uffff"
_LONGEST = "SELECT CHARACTER_SET_NAME, MAXLEN FROM information_schema.CHARACTER_SETS"
_QUESTION_MARK = "3F"
_HEX = "(" + " UNION ALL ".join(f"SELECT '{digit:X}' h" for digit in range(16)) + ")"
_DECIMAL = "(" + " UNION ALL ".join(f"SELECT '3{digit}' h" for digit in range(10)) + ")"
_BYTE = (_HEX, _HEX)
_Sequences = tuple[tuple[str, tuple[str, ...]], ...]
_ONE: _Sequences = (("", _BYTE),)
_TWO: _Sequences = (*_ONE, ("", (*_BYTE, *_BYTE)))
_THREE: _Sequences = (*_TWO, ("8F", (*_BYTE, *_BYTE)))
_FOUR: _Sequences = (*_TWO, *((f"8{first}", (_DECIMAL, *_BYTE, _DECIMAL)) for first in range(1, 5)))
_SEQUENCES = {
    **dict.fromkeys(("big5", "euckr", "gb2312", "gbk", "sjis", "cp932"), _TWO),
    **dict.fromkeys(("ujis", "eucjpms"), _THREE),
    "gb18030": _FOUR,
}
"""Which bytes may be characters: how they begin, and the digits that follow. Of other sets single bytes."""
_FIRST_NUMBER = bytes.fromhex("90308130")
"""The four bytes of gb18030 from these on are a number: how far behind the first 65,536 a code point is."""
_LAST_NUMBER = 0x10FFFF - 0x10000
_COLLATIONS = (
    "SELECT ID, CHARACTER_SET_NAME FROM information_schema.COLLATIONS",
    # MariaDB has the collations of several sets here only; MySQL and older ones have no ID here.
    "SELECT ID, CHARACTER_SET_NAME FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY",
)
_BAD_FIELD = 1054
"""ER_BAD_FIELD_ERROR"""


class UndecodableError(ValueError):
    """Bytes that the server has no character for."""


@dataclass(frozen=True)
class Charset:
    """
    Attributes:
        characters: by their bytes; None: a set of Unicode.
        doubles: those that are the same in UTF-8 as another one.
        pattern: of one character, or of a byte that is none.
    """

    name: str
    characters: Mapping[bytes, str] | None = None
    doubles: frozenset[bytes] = frozenset()
    pattern: re.Pattern[bytes] = re.compile(b"")
    has_ascii: bool = False

    @classmethod
    def of(cls, name: str, characters: Mapping[bytes, str], doubles: Iterable[bytes] = ()) -> Charset:
        """
        >>> big5 = Charset.of("big5", {b"a": "a", b"\\xa4\\xa4": "中"})
        >>> big5.decode(b"a\\xa4\\xa4")
        'a中'
        """
        if name == "gb18030":
            characters = _WithNumbers(characters)
        has_ascii = all(characters.get(bytes([byte])) == chr(byte) for byte in range(128))
        return cls(name, characters, frozenset(doubles), _pattern(name, characters), has_ascii)

    def decode(self, data: bytes, *, as_key: bool = False) -> str:
        """
        Args:
            as_key: other bytes must be another text.

        Raises:
            UndecodableError
        """
        if self.characters is None:
            return self._decode_unicode(data)
        if self.has_ascii and data.isascii():
            return data.decode("ascii")
        sequences = self.pattern.findall(data)
        if as_key and not self.doubles.isdisjoint(sequences):
            double = next(sequence for sequence in sequences if sequence in self.doubles)
            raise UndecodableError(
                f"{double.hex().upper()} of {self.name} is the same in UTF-8 as another character of it"
            )
        try:
            return "".join(map(self.characters.__getitem__, sequences))
        except KeyError as error:
            raise UndecodableError(f"{error.args[0].hex().upper()} is no character of {self.name}") from error

    def _decode_unicode(self, data: bytes) -> str:
        try:
            text = data.decode(_CODECS[self.name])
        except UnicodeDecodeError as error:
            raise UndecodableError(
                f"{data[error.start : error.end].hex().upper()} is no character of {self.name}"
            ) from error
        if self.name == "ucs2" and max(text, default="") > _LARGEST_OF_UCS2:
            raise UndecodableError("the halves of a surrogate pair are no characters of ucs2")
        return text


class _WithNumbers(dict[bytes, str]):
    """The table of gb18030, without those of its characters that are numbers."""

    def __missing__(self, data: bytes) -> str:
        number = _number(data) - _number(_FIRST_NUMBER) if len(data) == len(_FIRST_NUMBER) else -1
        if not 0 <= number <= _LAST_NUMBER:
            raise KeyError(data)
        return chr(0x10000 + number)


def _number(data: bytes) -> int:
    first, second, third, fourth = data
    return (((first - 0x81) * 10 + second - 0x30) * 126 + third - 0x81) * 10 + fourth - 0x30


def _pattern(name: str, characters: Mapping[bytes, str]) -> re.Pattern[bytes]:
    """No character is the beginning of another one."""
    longer = []
    for size in sorted({len(data) for data in characters} - {1}, reverse=True):
        sequences = [data for data in characters if len(data) == size]
        longer.append(b"".join(_any_of({data[position] for data in sequences}) for position in range(size)))
    if name == "gb18030":
        longer[0] = b"[\x81-\xfe][0-9][\x81-\xfe][0-9]"
    return re.compile(b"|".join([*longer, b"."]), re.DOTALL)


def _any_of(values: set[int]) -> bytes:
    return b"[" + b"".join(b"\\x%02x" % byte for byte in sorted(values)) + b"]"


class Charsets:
    """The character sets of a server.

    Args:
        connect: opens a connection, which is closed again: the sets may be needed in the middle of a log.
    """

    def __init__(self, connect: Callable[[], Any]) -> None:
        self.connect = connect
        self._sets = {name: Charset(name) for name in _CODECS}
        self._names: dict[int, str] = {}

    def decode(self, charset: str | int, data: bytes) -> str:
        """
        Args:
            charset: its name, or the number of one of its collations, as the log has it.

        Raises:
            UndecodableError
            IngestError: `CAPTURED_TYPE_NOT_SUPPORTED`: the set is not known.
            pymysql.Error: see `connection.translated_errors`.
        """
        name = charset if isinstance(charset, str) else self.name_of(charset)
        return self[name].decode(data)

    def __getitem__(self, name: str) -> Charset:
        if name not in self._sets:
            self._sets[name] = self._ask(lambda connection: _charset(connection, name))
        return self._sets[name]

    def name_of(self, collation: int) -> str:
        """Of the set that has a collation with this number."""
        if not self._names:
            self._names = self._ask(_names_of_collations)
        try:
            return self._names[collation]
        except KeyError:
            raise _unsupported_charset_error(f"of the collation {collation}") from None

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        connection = self.connect()
        try:
            return question(connection)
        finally:
            connection._force_close()  # noqa: SLF001


def _charset(connection: Any, name: str) -> Charset:
    """
    Raises:
        IngestError: `CAPTURED_TYPE_NOT_SUPPORTED`.
    """
    longest = dict(fetch(connection, _LONGEST))
    if name not in longest or (longest[name] != "1" and name not in _SEQUENCES):
        raise _unsupported_charset_error(name)
    characters: dict[bytes, str] = {}
    candidates: dict[str, list[bytes]] = {}
    for prefix, digits in _SEQUENCES.get(name, _ONE):
        for hex_data, hex_text, hex_again in fetch(connection, _query(name, prefix, digits)):
            # No other character than the question mark is one in UTF-8. Of some the server makes nothing.
            if not hex_text or (hex_text == _QUESTION_MARK and hex_data != _QUESTION_MARK):
                continue
            data, text = bytes.fromhex(hex_data), bytes.fromhex(hex_text).decode()
            characters[data] = text
            if hex_again != hex_data:
                candidates.setdefault(text, []).append(data)
    counts = Counter(characters.values())
    doubles = {data for text, sequences in candidates.items() if counts[text] > 1 for data in sequences}
    return Charset.of(name, characters, doubles)


def _query(name: str, prefix: str, digits: tuple[str, ...]) -> str:
    tables = ", ".join(f"{table} t{number}" for number, table in enumerate(digits))
    data = f"CONCAT('{prefix}', {', '.join(f't{number}.h' for number in range(len(digits)))})"
    character = f"CONVERT(UNHEX({data}) USING {name})"
    # What is no character comes as other bytes, or as NULL.
    return (
        f"SELECT {data}, HEX(CONVERT({character} USING utf8mb4)), "
        f"HEX(CONVERT(CONVERT({character} USING utf8mb4) USING {name})) FROM {tables} "
        f"WHERE HEX({character}) = {data} AND CHAR_LENGTH({character}) = 1"
    )


def _names_of_collations(connection: Any) -> dict[int, str]:
    names: dict[int, str] = {}
    for query in _COLLATIONS:
        try:
            rows = fetch(connection, query)
        except pymysql.err.OperationalError as error:
            if error.args[0] != _BAD_FIELD:
                raise
            continue
        names |= {int(number): name for number, name in rows if number is not None and name is not None}
    return names


def _unsupported_charset_error(what: str) -> IngestError:
    return IngestError(
        "CAPTURED_TYPE_NOT_SUPPORTED",
        f"Texts of the character set {what} are not read from the log",
        hint="leave tables with such columns out with exclude=[…]",
    )

"""The tokens of a statement in the log, as the parser of the server that wrote it saw them.

What stands between them depends on the session: its character set (`SET NAMES gbk`: the second byte of a
character may be a backslash or a quote), its SQL mode (quoted names, backslashes) and the server's version
(comments that are executed). The rules are those of `sql_lex.cc` of both servers. A statement of which this
reader is not sure has no tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

__all__ = ["Decoder", "Session", "Token", "TokenKind", "readings_of"]

Decoder = Callable[[int, bytes], str | None]
"""From the number of a collation and bytes in its character set to what the server makes of them; None: not
known."""

_ANSI_QUOTES, _NO_BACKSLASH_ESCAPES = 1 << 2, 1 << 20
_UTF8 = 45
_UTF8_SETS = frozenset({33, 45, 46, 63, 83, 255})
"""Collations of `utf8mb3` and `utf8mb4`, and `binary`, whose names the server takes as they come."""
_NOT_ASCII = frozenset({10, 82})
"""Of `swe7`, in which quotes and brackets are letters."""
_NOPAD = 1024
"""MariaDB numbers collations without padding so much higher than those that they are like."""
_DOUBLE_BYTES: dict[int, bytes] = {
    **dict.fromkeys((28, 87, 248, 249, 250), rb"[\x81-\xfe][\x40-\x7e\x80-\xfe]"),  # gbk, gb18030
    **dict.fromkeys((1, 84), rb"[\xa1-\xf9][\x40-\x7e\xa1-\xfe]"),  # big5
    **dict.fromkeys((13, 88, 95, 96), rb"[\x81-\x9f\xe0-\xfc][\x40-\x7e\x80-\xfc]"),  # sjis, cp932
}
"""Characters of sets in which the second byte may be a quote or a backslash."""
_NO_CHARACTER = rb"(?!)"
_NO_BREAK_SPACE = "\xa0"
_VERSION = re.compile(rb"\d*")
_SERVER_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")
_COMMENT_BOUND = re.compile(rb"\*/|/\*")


@dataclass(frozen=True, slots=True)
class Session:
    """What a statement's event and its file say of how it is to be read.

    Attributes:
        charset: the number of the collation of `character_set_client`; None: not known.
        sql_mode: None: not known.
        version: of the server that wrote the file, as it names itself.
    """

    charset: int | None
    sql_mode: int | None
    version: str

    @property
    def is_mariadb(self) -> bool:
        return "mariadb" in self.version.lower()

    @property
    def version_number(self) -> int | None:
        """Such as 101119, as in comments."""
        # MariaDB may say 5.5.5 before its version, for replicas that know no version above 5.
        number = _SERVER_VERSION.match(self.version.removeprefix("5.5.5-"))
        return None if number is None else sum(int(n) * 100**i for i, n in enumerate(number.groups()[::-1]))


class TokenKind(Enum):
    """
    Attributes:
        WORD: a keyword, a number, or a name without quotes.
        NAME: a name in quotes.
        TEXT: a literal; its text is left out.
        SYMBOL: one character.
    """

    WORD = 0
    NAME = 1
    TEXT = 2
    SYMBOL = 3


@dataclass(frozen=True, slots=True)
class Token:
    """
    Attributes:
        text: without quotes; None: a name that is not known, which may be any.
    """

    kind: TokenKind
    text: str | None

    @property
    def word(self) -> str:
        """In capitals; empty: it is no word, so also no keyword."""
        return self.text.upper() if self.kind is TokenKind.WORD and self.text is not None else ""

    @property
    def symbol(self) -> str:
        return (self.text or "") if self.kind is TokenKind.SYMBOL else ""

    @property
    def is_name(self) -> bool:
        return self.kind in (TokenKind.WORD, TokenKind.NAME)


class _NotUnderstoodError(Exception):
    """The server may see other tokens."""


class _OpenQuoteError(_NotUnderstoodError):
    """No server takes such a statement."""


def readings_of(text: bytes, session: Session, decode: Decoder) -> list[Sequence[Token] | None]:
    """All ways in which a statement may be meant, without semicolons at its end; None: not understood.

    A server writes some statements itself, in UTF-8, and calls them by the session's character set: `CREATE
    TABLE … SELECT`. So other texts that are UTF-8 too are read both ways.
    """
    is_utf8 = session.charset in _UTF8_SETS
    own = _tokens_or_none(text, session, decode)
    if text.isascii() or is_utf8:
        return [None if isinstance(own, _NotUnderstoodError) else own]
    readings: list[Sequence[Token] | None] = []
    if not isinstance(own, _NotUnderstoodError):
        readings.append(own)
    in_utf8 = _tokens_or_none(text, replace(session, charset=_UTF8), decode) if _is_utf8(text) else own
    if not isinstance(in_utf8, _NotUnderstoodError):
        if in_utf8 is not own:
            readings.append(in_utf8)
        if isinstance(own, _NotUnderstoodError) and not isinstance(own, _OpenQuoteError):
            readings.append(None)
    return readings or [None]


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _tokens_or_none(text: bytes, session: Session, decode: Decoder) -> Sequence[Token] | _NotUnderstoodError:
    try:
        tokens = list(_tokens(text, session, decode))
    except _NotUnderstoodError as error:
        return error
    while tokens and tokens[-1].symbol == ";":
        tokens.pop()
    return tokens


def _tokens(text: bytes, session: Session, decode: Decoder) -> Iterator[Token]:
    pattern = _pattern(session, text)
    position, is_in_executed_comment = 0, False
    while position < len(text):
        if text.startswith(b"/*", position):
            position, is_executed = _end_of_comment(text, position, session)
            if is_executed and is_in_executed_comment:
                raise _NotUnderstoodError
            is_in_executed_comment |= is_executed
            continue
        if is_in_executed_comment and text.startswith(b"*/", position):
            position, is_in_executed_comment = position + 2, False
            continue
        match = pattern.match(text, position)
        if match is None:
            raise _NotUnderstoodError
        position = match.end()
        if match.lastgroup is not None:
            yield _token(match, session, decode)
    if is_in_executed_comment:
        raise _NotUnderstoodError


def _pattern(session: Session, text: bytes) -> re.Pattern[bytes]:
    charset = session.charset
    if session.sql_mode is None or (charset is None and not text.isascii()):
        raise _NotUnderstoodError
    base = -1 if charset is None else charset & ~_NOPAD if charset < 2 * _NOPAD else charset
    if base in _NOT_ASCII and re.search(rb"[@\[\\\]^`{|}~]", text):
        raise _NotUnderstoodError
    return _token_pattern(
        _DOUBLE_BYTES.get(base, _NO_CHARACTER),
        bool(session.sql_mode & _ANSI_QUOTES),
        bool(session.sql_mode & _NO_BACKSLASH_ESCAPES),
    )


_PATTERNS: dict[tuple[bytes, bool, bool], re.Pattern[bytes]] = {}


def _token_pattern(double: bytes, has_ansi_quotes: bool, has_no_escapes: bool) -> re.Pattern[bytes]:
    key = (double, has_ansi_quotes, has_no_escapes)
    if key not in _PATTERNS:
        quoted = _quoted(b"'", double, has_no_escapes)
        in_double_quotes = _quoted(b'"', double, has_no_escapes or has_ansi_quotes)
        name = _quoted(b"`", double, True)
        _PATTERNS[key] = re.compile(
            rb"[ \t\n\v\f\r]+"
            rb"|\#[^\n]*"
            rb"|--(?=[\0-\x20]|\Z)[^\n]*"
            rb"|(?P<name>" + name + (rb"|" + in_double_quotes if has_ansi_quotes else rb"") + rb")"
            rb"|(?P<text>" + quoted + (rb"" if has_ansi_quotes else rb"|" + in_double_quotes) + rb")"
            rb"|(?P<word>(?:" + double + rb"|[0-9A-Za-z_$\x80-\xff])++)"
            # A minus twice, of which the second one begins a comment in some character sets.
            rb"|(?P<symbol>(?!--[\x7f-\xff])[!%&()*+,./:;<=>?@\[\\\]^{|}~-])"
            rb"|(?P<open>[`'\"])",
            re.DOTALL,
        )
    return _PATTERNS[key]


def _quoted(quote: bytes, double: bytes, has_no_escapes: bool) -> bytes:
    """From quote to quote. What was taken as one character is never split again."""
    escape = rb"" if has_no_escapes else rb"|\\."
    other = rb"[^" + quote + (rb"" if has_no_escapes else rb"\\") + rb"]"
    return quote + rb"(?:" + double + rb"|" + quote + quote + escape + rb"|" + other + rb")*+" + quote


def _token(match: re.Match[bytes], session: Session, decode: Decoder) -> Token:
    """
    Raises:
        _NotUnderstoodError: the server may see a space in a word.
    """
    data, group = match[0], match.lastgroup
    if group == "open":
        raise _OpenQuoteError
    if group == "symbol":
        return Token(TokenKind.SYMBOL, data.decode())
    if group == "text":
        return Token(TokenKind.TEXT, "")
    if group == "name":
        quote = data[:1]
        return Token(TokenKind.NAME, _decoded(data[1:-1].replace(quote * 2, quote), session, decode))
    text = _decoded(data, session, decode)
    # In latin1 and others this is a space between words, in UTF-8 and others a part of them.
    if text is None or (_NO_BREAK_SPACE in text and session.charset not in _UTF8_SETS):
        raise _NotUnderstoodError
    return Token(TokenKind.WORD, text)


def _decoded(data: bytes, session: Session, decode: Decoder) -> str | None:
    if data.isascii():
        text: str | None = data.decode()
    elif session.charset is None:
        text = None
    elif session.charset in _UTF8_SETS:
        text = data.decode() if _is_utf8(data) else None
    else:
        text = decode(session.charset, data)
    # A table may also be called by the name of its file.
    return None if text is not None and text.lower().startswith("#mysql50#") else text


def _end_of_comment(text: bytes, position: int, session: Session) -> tuple[int, bool]:
    """Where the statement goes on, and whether what stands in the comment is a part of it.

    Raises:
        _NotUnderstoodError: its version, or where it ends, is not clear.
    """
    is_own = text.startswith(b"/*M!", position) and session.is_mariadb
    if not is_own and not text.startswith(b"/*!", position):
        end = text.find(b"*/", position + 2)
        if end < 0:
            raise _NotUnderstoodError
        return end + 2, False
    start = position + (4 if is_own else 3)
    digits = _version_digits(text, start, session)
    if not digits:
        return start, True
    written, server = int(digits), session.version_number
    if server is None:
        raise _NotUnderstoodError
    # Comments with versions of MySQL that MariaDB does not follow.
    is_foreign = session.is_mariadb and not is_own and 50700 <= written <= 99999
    if written <= server and not is_foreign:
        return start + len(digits), True
    return _end_of_ignored_comment(text, start), False


def _version_digits(text: bytes, start: int, session: Session) -> bytes:
    match = _VERSION.match(text, start)
    digits = b"" if match is None else match[0]
    if len(digits) < 5:
        # The server takes them as a part of the statement, which begins with no number.
        return b""
    if len(digits) > (6 if session.is_mariadb else 5):
        raise _NotUnderstoodError
    return digits


def _end_of_ignored_comment(text: bytes, start: int) -> int:
    """Behind a comment that is not executed, in which there may be others."""
    depth, position = 1, start
    while depth:
        bound = _COMMENT_BOUND.search(text, position)
        if bound is None or depth > 2:
            raise _NotUnderstoodError
        depth += 1 if bound[0] == b"/*" else -1
        position = bound.end()
    return position

"""SQL text without a grammar: tokens, statements, names. Spark's parser interprets the statements.

Only two tasks need text instead of a plan: splitting a file at its semicolons, and renaming tables in place
(so that lines and columns in messages stay right).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

__all__ = ["Renamed", "StatementText", "Token", "rename", "split", "split_name", "tokens", "unquote"]

_TOKEN = re.compile(
    r"""
      (?P<comment> --[^\n]* )
    | (?P<bracket> /\* )
    | (?P<string>  [rR]'[^']*' | [rR]"[^"]*" | '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" )
    | (?P<name>    `(?:[^`]|``)*` | \w+ )
    | (?P<end>     ; )
    | (?P<dot>     \. )
    | (?P<space>   \s+ )
    | (?P<other>   . )
    """,
    re.VERBOSE | re.DOTALL,
)


_CELL_END = "-- COMMAND ----"
"""In an exported notebook: one statement does not go over its cell."""


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of SQL text; `start` is its place in the text."""

    kind: str
    text: str
    start: int


@dataclass(frozen=True, slots=True)
class StatementText:
    """One statement: its text without the semicolon, from its first word on, and the line of that word."""

    text: str
    line: int


def tokens(text: str) -> Iterator[Token]:
    """All of the text, piece by piece: comments, strings, names, ends of statements, dots, spaces, others."""
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        assert match is not None
        assert match.lastgroup is not None
        kind, end = match.lastgroup, match.end()
        if kind == "bracket":
            end = _comment_end(text, position)
            # A hint is part of the query.
            kind = "other" if text.startswith("/*+", position) else "comment"
        yield Token(kind, text[position:end], position)
        position = end


def _comment_end(text: str, start: int) -> int:
    """Spark's bracketed comments nest."""
    depth = 0
    for mark in re.finditer(r"/\*|\*/", text[start:]):
        depth += 1 if mark.group() == "/*" else -1
        if depth == 0:
            return start + mark.end()
    return len(text)


def split(text: str) -> list[StatementText]:
    """Split a file into statements, without empty ones."""
    chunks: list[StatementText] = []
    start = end = -1
    for token in tokens(text):
        if token.kind == "end" or (token.kind == "comment" and token.text.startswith(_CELL_END)):
            if start >= 0:
                chunks.append(StatementText(text[start:end], text.count("\n", 0, start) + 1))
            start = -1
        elif token.kind not in ("space", "comment"):
            start = token.start if start < 0 else start
            end = token.start + len(token.text)
    if start >= 0:
        chunks.append(StatementText(text[start:end], text.count("\n", 0, start) + 1))
    return chunks


def split_name(text: str) -> tuple[str, ...]:
    """The parts of a name such as `` a.`b.c`.d ``; empty when the text is not a name."""
    parts: list[str] = []
    expect_name = True
    for token in tokens(text.strip()):
        # Hyphens are allowed: names in Spark's messages have them without quotes.
        if token.kind == "dot" and not expect_name:
            expect_name = True
        elif token.kind in ("name", "other", "space") and (
            expect_name or token.text == "-" or parts[-1].endswith("-")
        ):
            part = unquote(token.text)
            if expect_name:
                parts.append(part)
            else:
                parts[-1] += part
            expect_name = False
        else:
            return ()
    return () if expect_name else tuple(parts)


@dataclass(frozen=True, slots=True)
class Renamed:
    """SQL with replaced names. `edits` are (start, stop, length): the replaced part and its new length."""

    text: str
    edits: tuple[tuple[int, int, int], ...]

    def before(self, start: int, stop: int) -> tuple[int, int]:
        """The position of a part of the new text in the old one; for a new name, the whole old name."""
        return self._old(start, at_end=False), self._old(stop, at_end=True)

    def _old(self, position: int, *, at_end: bool) -> int:
        shift = 0
        for start, stop, length in self.edits:
            first, last = start + shift, start + shift + length
            if position < first or (at_end and position == first):
                break
            if position < last or (at_end and position == last):
                return stop if at_end else start
            shift += length - (stop - start)
        return position - shift


def rename(text: str, replace: Callable[[tuple[str, ...], Sequence[str]], tuple[int, str] | None]) -> Renamed:
    """Replace dotted names.

    Args:
        text: SQL.
        replace: gets the parts of each dotted name (two or more) and the words before it, without spaces
            and comments; returns how many leading parts to replace and by which text, or None.
    """
    result: list[str] = []
    edits: list[tuple[int, int, int]] = []
    words: list[str] = []
    name_tokens: list[Token] = []

    def flush() -> None:
        names = [token for token in name_tokens if token.kind == "name"]
        parts = tuple(unquote(token.text) for token in names)
        replacement = replace(parts, words) if len(names) > 1 else None
        words.extend(token.text for token in name_tokens)
        if replacement is None:
            result.extend(token.text for token in name_tokens)
        else:
            last = name_tokens.index(names[replacement[0] - 1])
            edits.append(
                (
                    name_tokens[0].start,
                    name_tokens[last].start + len(name_tokens[last].text),
                    len(replacement[1]),
                )
            )
            result.append(replacement[1])
            result.extend(token.text for token in name_tokens[last + 1 :])
        name_tokens.clear()

    for token in tokens(text):
        expected_kind = "name" if not name_tokens or name_tokens[-1].kind == "dot" else "dot"
        if token.kind == expected_kind:
            name_tokens.append(token)
            continue
        flush()
        if token.kind == "name":
            name_tokens.append(token)
        else:
            result.append(token.text)
            if token.kind not in ("space", "comment"):
                words.append(token.text)
    flush()
    return Renamed("".join(result), tuple(edits))


def unquote(text: str) -> str:
    """A name without its backticks."""
    return text[1:-1].replace("``", "`") if text.startswith("`") else text

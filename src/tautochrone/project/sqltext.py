"""SQL text without a grammar: tokens, statements, names. What a statement *means* Spark's parser says.

Only three things need text instead of a plan: cutting a file at its semicolons, a fingerprint that
ignores layout, and renaming tables in place (so that lines and columns in messages stay true).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

__all__ = ["Chunk", "Renamed", "normalise", "rename", "split", "split_name"]

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


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """One statement: its text without the semicolon, from its first word on, and that word's line."""

    text: str
    line: int


def _tokens(text: str) -> Iterator[_Token]:
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
        yield _Token(kind, text[position:end], position)
        position = end


def _comment_end(text: str, start: int) -> int:
    """Spark's bracketed comments nest."""
    depth = 0
    for mark in re.finditer(r"/\*|\*/", text[start:]):
        depth += 1 if mark.group() == "/*" else -1
        if depth == 0:
            return start + mark.end()
    return len(text)


def split(text: str) -> list[Chunk]:
    """Cut a file into statements; empty ones vanish."""
    chunks: list[Chunk] = []
    start = end = -1
    for token in _tokens(text):
        if token.kind == "end":
            if start >= 0:
                chunks.append(Chunk(text[start:end], text.count("\n", 0, start) + 1))
            start = -1
        elif token.kind not in ("space", "comment"):
            start = token.start if start < 0 else start
            end = token.start + len(token.text)
    if start >= 0:
        chunks.append(Chunk(text[start:end], text.count("\n", 0, start) + 1))
    return chunks


def normalise(text: str) -> str:
    """The text without comments and with single spaces; strings stay as they are."""
    words: list[str] = []
    for token in _tokens(text):
        if token.kind in ("space", "comment"):
            if words and words[-1] != " ":
                words.append(" ")
        else:
            words.append(token.text)
    return "".join(words).strip()


def split_name(text: str) -> tuple[str, ...]:
    """`` a.`b.c`.d `` as its parts; empty when it is no such name."""
    parts: list[str] = []
    expect_name = True
    for token in _tokens(text.strip()):
        # Lenient with hyphens, which names in messages carry without quotes.
        if token.kind == "dot" and not expect_name:
            expect_name = True
        elif token.kind in ("name", "other", "space") and (
            expect_name or token.text == "-" or parts[-1].endswith("-")
        ):
            part = _unquote(token.text)
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
    """SQL with other names. `edits` are (start, stop, length): what of the old text became how long."""

    text: str
    edits: tuple[tuple[int, int, int], ...]

    def before(self, start: int, stop: int) -> tuple[int, int]:
        """Where a part of the new text was in the old one; of a new name, the whole old name."""
        return self._old(start, at_end=False), self._old(stop, at_end=True)

    def _old(self, position: int, *, at_end: bool) -> int:
        grown = 0
        for start, stop, length in self.edits:
            first, last = start + grown, start + grown + length
            if position < first or (at_end and position == first):
                break
            if position < last or (at_end and position == last):
                return stop if at_end else start
            grown += length - (stop - start)
        return position - grown


def rename(text: str, replace: Callable[[tuple[str, ...]], tuple[int, str] | None]) -> Renamed:
    """Replace dotted names.

    Args:
        text: SQL.
        replace: gets the parts of each dotted name (two or more); answers how many leading parts to
            replace and by which text, or None.
    """
    result: list[str] = []
    edits: list[tuple[int, int, int]] = []
    chain: list[_Token] = []

    def flush() -> None:
        names = [token for token in chain if token.kind == "name"]
        answer = replace(tuple(_unquote(token.text) for token in names)) if len(names) > 1 else None
        if answer is None:
            result.extend(token.text for token in chain)
        else:
            last = chain.index(names[answer[0] - 1])
            edits.append((chain[0].start, chain[last].start + len(chain[last].text), len(answer[1])))
            result.append(answer[1])
            result.extend(token.text for token in chain[last + 1 :])
        chain.clear()

    for token in _tokens(text):
        wanted = "name" if not chain or chain[-1].kind == "dot" else "dot"
        if token.kind == wanted:
            chain.append(token)
            continue
        flush()
        if token.kind == "name":
            chain.append(token)
        else:
            result.append(token.text)
    flush()
    return Renamed("".join(result), tuple(edits))


def _unquote(text: str) -> str:
    return text[1:-1].replace("``", "`") if text.startswith("`") else text

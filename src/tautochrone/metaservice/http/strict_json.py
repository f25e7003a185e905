"""JSON as the store can keep it: Python's parser takes much that no database and no other program does.

Refused are duplicate keys, NaN and infinities, integers of more than 64 bits, NUL and halves of characters,
what is nested too deep, and lists and texts that are too long.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["JsonLimits", "UnfitJsonError", "checked_json"]

SMALLEST, BIGGEST = -(2**63), 2**63 - 1
_LONGEST_NUMBER = 400
# A text, ended or not, or a bracket. Nothing can match in two ways: its time grows with the body only.
_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"?|[\[\]{}]', re.DOTALL)


class UnfitJsonError(ValueError):
    """What came in is not JSON as it is wanted: half a sentence that says why."""


@dataclass(frozen=True, slots=True)
class JsonLimits:
    """How deep values may be nested, how many items a list or an object has, how many characters a text."""

    depth: int
    items: int
    text: int


def checked_json(body: bytes, limits: JsonLimits) -> Any:
    """The value of a body.

    Raises:
        UnfitJsonError: it is none, or not within the limits.
    """
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise UnfitJsonError("is no UTF-8") from None
    if text.startswith("\ufeff"):
        raise UnfitJsonError("begins with a byte order mark")
    _check_depth(body, limits.depth)
    try:
        value = json.loads(
            text, object_pairs_hook=_object, parse_constant=_constant, parse_int=_integer, parse_float=_float
        )
    except json.JSONDecodeError as error:
        raise UnfitJsonError(f"is no JSON: {error.msg} at character {error.pos}") from None
    for part in _parts(value):
        _check(part, limits)
    return value


def _check_depth(body: bytes, most: int) -> None:
    """Before the parser, which makes a call for each level. Brackets inside of texts don't count."""
    depth = 0
    for token in _BRACKETS.finditer(body):
        sign = token[0]
        if sign in (b"[", b"{"):
            depth += 1
            if depth > most:
                raise UnfitJsonError(f"is nested deeper than {most} levels")
        elif sign in (b"]", b"}"):
            depth -= 1


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise UnfitJsonError("has a key twice")
    return found


def _constant(name: str) -> Any:
    raise UnfitJsonError(f"holds {name}, which is no JSON")


def _integer(digits: str) -> int:
    number = int(digits) if len(digits) <= 20 else BIGGEST + 1
    if not SMALLEST <= number <= BIGGEST:
        raise UnfitJsonError("holds an integer of more than 64 bits")
    return number


def _float(digits: str) -> float:
    number = float(digits) if len(digits) <= _LONGEST_NUMBER else math.inf
    if not math.isfinite(number):
        raise UnfitJsonError("holds a number that is too large")
    return number


def _parts(value: Any) -> Iterator[Any]:
    waiting = [value]
    while waiting:
        part = waiting.pop()
        yield part
        if isinstance(part, dict):
            waiting += part.keys()
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part


def _check(part: Any, limits: JsonLimits) -> None:
    if isinstance(part, str):
        if len(part) > limits.text:
            raise UnfitJsonError(f"holds a text of more than {limits.text} characters")
        if "\0" in part:
            raise UnfitJsonError("holds a NUL character")
        if not part.isascii() and any("\ud800" <= sign <= "\udfff" for sign in part):
            raise UnfitJsonError("holds half a character")
    elif isinstance(part, dict | list) and len(part) > limits.items:
        raise UnfitJsonError(f"holds a list of more than {limits.items} items")

"""Checks of what requests hold: names, and JSON whose values the store can keep.

Python's own JSON parser accepts more than databases do. This one refuses duplicate keys, NaN and infinities,
integers of more than 64 bits, NUL characters and surrogates, deep nesting, and lists and texts that are too
long.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tautochrone.errors import QueryError
from tautochrone.model.names import TableName

__all__ = [
    "OWNER_LENGTH",
    "InvalidJsonError",
    "JsonLimits",
    "checked_owner",
    "checked_text",
    "parse_job_name",
    "parse_json",
    "parse_table_name",
    "table_of_path",
]

MIN_INTEGER, MAX_INTEGER = -(2**63), 2**63 - 1
_MAX_DIGITS = 400
# A text, complete or not, or a bracket. Each alternative matches in one way only, so time is linear.
_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"?|[\[\]{}]', re.DOTALL)


class InvalidJsonError(ValueError):
    """The body is not acceptable JSON: the second half of a sentence that says why."""


@dataclass(frozen=True, slots=True)
class JsonLimits:
    """How deep values may be nested, how many items a list or an object has, how many characters a text."""

    depth: int
    items: int
    text: int


def parse_json(body: bytes, limits: JsonLimits) -> Any:
    """The value of a body.

    Raises:
        InvalidJsonError: it is not JSON, or exceeds the limits.
    """
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidJsonError("is no UTF-8") from None
    if text.startswith("\ufeff"):
        raise InvalidJsonError("begins with a byte order mark")
    _check_depth(body, limits.depth)
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_constant,
            parse_int=_integer,
            parse_float=_finite_float,
        )
    except json.JSONDecodeError as error:
        raise InvalidJsonError(f"is no JSON: {error.msg} at character {error.pos}") from None
    for nested in _values(value):
        _check_value(nested, limits)
    return value


def _check_depth(body: bytes, max_depth: int) -> None:
    """Check the nesting before parsing, because the parser recurses. Brackets in texts do not count."""
    depth = 0
    for token in _BRACKETS.finditer(body):
        character = token[0]
        if character in (b"[", b"{"):
            depth += 1
            if depth > max_depth:
                raise InvalidJsonError(f"is nested deeper than {max_depth} levels")
        elif character in (b"]", b"}"):
            depth -= 1


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise InvalidJsonError("has a key twice")
    return content


def _constant(name: str) -> Any:
    raise InvalidJsonError(f"holds {name}, which is no JSON")


def _integer(digits: str) -> int:
    number = int(digits) if len(digits) <= 20 else MAX_INTEGER + 1
    if not MIN_INTEGER <= number <= MAX_INTEGER:
        raise InvalidJsonError("holds an integer of more than 64 bits")
    return number


def _finite_float(digits: str) -> float:
    number = float(digits) if len(digits) <= _MAX_DIGITS else math.inf
    if not math.isfinite(number):
        raise InvalidJsonError("holds a number that is too large")
    return number


def _values(value: Any) -> Iterator[Any]:
    pending = [value]
    while pending:
        current = pending.pop()
        yield current
        if isinstance(current, dict):
            pending += current.keys()
            pending += current.values()
        elif isinstance(current, list):
            pending += current


def _check_value(value: Any, limits: JsonLimits) -> None:
    if isinstance(value, str):
        if len(value) > limits.text:
            raise InvalidJsonError(f"holds a text of more than {limits.text} characters")
        if "\0" in value:
            raise InvalidJsonError("holds a NUL character")
        if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            raise InvalidJsonError("holds half a character")
    elif isinstance(value, dict | list) and len(value) > limits.items:
        raise InvalidJsonError(f"holds a list of more than {limits.items} items")


_MAX_TABLE_NAME = 1_000
_MAX_JOB_NAME = 255
OWNER_LENGTH = 255


def checked_text(text: str, label: str, max_length: int) -> str:
    """A text that every database can store. `label` names it in errors.

    Raises:
        QueryError: `NAME_INVALID`: empty, too long, with control characters or surrogates.
    """
    if not text or len(text) > max_length:
        raise QueryError("NAME_INVALID", f"{label} has 1 to {max_length} characters, not {len(text)}")
    if any(ord(c) < 32 or ord(c) == 127 or 0xD800 <= ord(c) < 0xE000 for c in text):
        raise QueryError("NAME_INVALID", f"{label} must not hold control characters or halves of characters")
    return text


def parse_job_name(text: str) -> str:
    return checked_text(text, "A job's name", _MAX_JOB_NAME)


def table_of_path(catalog: str, database: str, table: str) -> TableName:
    """The table of a path's parts. `database` may have several levels, separated by dots.

    Raises:
        QueryError: `NAME_INVALID`.
    """
    if "." in catalog or "." in table:
        raise QueryError("NAME_INVALID", "The names of catalogs and tables hold no dots")
    return parse_table_name(f"{catalog}.{database}.{table}")


def parse_table_name(text: str) -> TableName:
    """The table `catalog.database.table`.

    Raises:
        QueryError: `NAME_INVALID`.
    """
    checked_text(text, "A table's name", _MAX_TABLE_NAME)
    try:
        return TableName.parse(text)
    except ValueError:
        raise QueryError(
            "NAME_INVALID", "A table's name has a catalog, a database and a table, with dots between"
        ) from None


def checked_owner(owner: str) -> str:
    """The name of a pin's owner, as the store accepts it.

    Raises:
        QueryError: `NAME_INVALID`.
    """
    return checked_text(owner, "An owner", OWNER_LENGTH)

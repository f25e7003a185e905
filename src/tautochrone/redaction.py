"""The secrets of this process, and how to keep them out of text.

Secrets come from settings and can appear in any text: a driver's message with its URL, a Spark plan, an
exception of a library. So their values are registered here once per process, and all text for people or for
the store goes through `redacted`: errors, events, failures.

Rows are not redacted: what a query returns is the user's own data.
"""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote, quote_plus

__all__ = ["MASK", "keep_secret", "redacted", "redacted_fields", "without_literals"]

MASK = "***"
_LITERAL = re.compile(
    r"""(?P<before>(?:secret|passw(?:or)?d|token|credential|(?:access|api|private)[._-]?key)[\w.-]*"""
    r"""["'`]?\s*(?::\s*\w+\s*(?==))?(?:=>|==?|:|,)\s*)(?P<quote>["'])(?:(?!(?P=quote)).)*(?P=quote)""",
    re.IGNORECASE | re.DOTALL,
)
_SHORTEST = 4
"""Masking shorter values would mask parts of ordinary words, and so reveal the value."""

_known: tuple[str, ...] = ()


def keep_secret(value: str) -> None:
    """Make `redacted` mask this value, also as it is encoded in URLs and in JSON.

    Values of under four characters are not masked within text.
    """
    global _known
    if len(value) < _SHORTEST:
        return
    spellings = {value, quote(value, safe=""), quote_plus(value), json.dumps(value)[1:-1]}
    # Longest first, because a secret may be part of another one.
    _known = tuple(sorted(spellings | set(_known), key=len, reverse=True))


def redacted(text: str) -> str:
    """`text` with `***` in place of every known secret."""
    for secret in _known:
        text = text.replace(secret, MASK)
    return text


def without_literals(text: str) -> str:
    """`redacted`, and `***` also for quoted text that a definition gives to something called like a secret:
    `.option("password", "hunter2")`, `api_key = 'abc'`. What such names are is Spark's own idea of it."""
    return _LITERAL.sub(
        lambda match: f"{match['before']}{match['quote']}{MASK}{match['quote']}", redacted(text)
    )


def redacted_fields(value: Any) -> Any:
    """The same for all text in lists, tuples and mappings; other values are left as they are."""
    if isinstance(value, str):
        # Enumerations of text have names that mean something: only what changes is replaced.
        hidden = redacted(value)
        return value if hidden == value else hidden
    if isinstance(value, dict):
        return {key: redacted_fields(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(redacted_fields(item) for item in value)
    return value

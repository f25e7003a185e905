"""How long the log table of a capture keeps its rows: a property of the table."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tautochrone.errors import DefinitionError

__all__ = ["LOG_RETENTION", "RELATION_COLUMN", "duration_ms", "log_retention_ms", "parse_log_retention"]

LOG_RETENTION = "tautochrone.log-retention"
RELATION_COLUMN = "relation"
"""The column of a log table that says to which relation a row belongs."""

_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(s|m|h|d|seconds?|minutes?|hours?|days?)\s*")


def log_retention_ms(properties: Mapping[str, str], location: str) -> int | None:
    """From the properties of a streaming table; None: it keeps all its rows.

    Raises:
        DefinitionError: `INVALID_LOG_RETENTION`.
    """
    text = properties.get(LOG_RETENTION)
    return None if text is None else parse_log_retention(text, location)


def parse_log_retention(text: str, location: str | None = None) -> int:
    """Milliseconds of a duration; 0: rows go as soon as all captured tables have them.

    Raises:
        DefinitionError: `INVALID_LOG_RETENTION`.

    >>> parse_log_retention("7 days"), parse_log_retention("90m"), parse_log_retention("0s")
    (604800000, 5400000, 0)
    """
    milliseconds = duration_ms(text)
    if milliseconds is None:
        raise DefinitionError(
            "INVALID_LOG_RETENTION",
            f"{text!r} is no duration for which a log table keeps its rows",
            location=location,
            hint="such as '7 days', '12h' or '0s'",
        )
    return milliseconds


def duration_ms(text: str) -> int | None:
    """Milliseconds; None: the text is no duration."""
    match = _TEXT.fullmatch(text)
    return None if match is None else round(float(match[1]) * _UNITS_MS[match[2][0]])

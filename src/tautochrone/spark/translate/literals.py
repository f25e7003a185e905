"""Python values and sets of values as conditions in SQL that Spark can compare with file statistics.

Few values are compared one by one, many as ranges.
"""

from __future__ import annotations

import datetime as dt
import decimal
import re
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any

from tautochrone.model import limits

__all__ = ["UNORDERED_TYPE", "are_exact", "has_literals", "in_list", "in_ranges", "key_ranges", "literals"]

UNORDERED_TYPE = "timestamp"
"""The prefix of types whose values are texts here. Texts sort in another order than timestamps."""

_MIN_GAP_FRACTION = 100
"""A gap between two values separates ranges if it is at least one hundredth of the span of all values."""

_SUFFIXES = {"tinyint": "Y", "smallint": "S", "int": "", "bigint": "L"}

_PLAIN = re.compile(r"[^'\\$\x00-\x1f]*")
"""Texts that a parser reads as they are. How it reads the others depends on its settings: escapes, and
`${name}`, which is replaced by the value of a setting."""

_TIMESTAMPS = {"timestamp": "TIMESTAMP_LTZ '{} UTC'", "timestamp_ntz": "TIMESTAMP_NTZ '{}'"}


def has_literals(kind: str) -> bool:
    """Whether a type, given as its catalog string, has exact literals. Floats do not."""
    return kind in (*_SUFFIXES, *_TIMESTAMPS, "string", "date") or kind.startswith("decimal")


def are_exact(values: Collection[Any], kind: str) -> bool:
    """Whether values are what Spark has: in texts, it hands out bytes that are no UTF-8 as U+FFFD."""
    return kind != "string" or not any("\ufffd" in value for value in values if value)


def literals(values: Collection[Any], kind: str) -> str:
    """`a, b, c` for `IN (…)`, without NULLs; empty when there is no other value.

    The text has no function calls: a condition with one is unresolved until Spark's analyzer has looked the
    function up, and renewed column ids are not passed on above an unresolved condition.

    Args:
        values: values as PySpark returns them; those of a `timestamp` as text in UTC, because offsets of old
            times have seconds, which Python's offsets have not.
        kind: the type's catalog string.

    >>> literals([1, None, 2], "bigint"), literals(["tea", "it's"], "string")
    ('1L, 2L', "'tea', CAST(X'69742773' AS STRING)")
    """
    return ", ".join(_literal(value, kind) for value in values if value is not None)


def in_list(name: str, values: Collection[Any], kind: str) -> str:
    """`name IN (…)` as SQL, without NULLs."""
    texts = literals(values, kind)
    return f"{name} IN ({texts})" if texts else "false"


def in_ranges(name: str, values: Collection[Any], kind: str) -> str:
    """The ranges that contain all values, as an SQL condition that is also true of other values."""
    not_null = [value for value in values if value is not None]
    if kind.startswith(UNORDERED_TYPE) or not not_null:
        return f"{name} IS NOT NULL"
    bounds = (
        literals([low], kind) + f" AND {literals([high], kind)}" for low, high in key_ranges(sorted(not_null))
    )
    return " OR ".join(f"{name} BETWEEN {pair}" for pair in bounds)


def key_ranges(values: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Ranges that contain all sorted values and leave out the widest gaps between them. Texts have no
    distance, so they are one range.

    >>> key_ranges([1, 2, 3, 900, 901])
    [(1, 3), (900, 901)]
    """
    if isinstance(values[0], str):
        return [(values[0], values[-1])]
    span = values[-1] - values[0]
    gaps = [(high - low, index) for index, (low, high) in enumerate(pairwise(values), 1)]
    wide = sorted((gap for gap in gaps if gap[0] * _MIN_GAP_FRACTION >= span), reverse=True)
    starts = [0, *sorted(index for _, index in wide[: limits.MAX_KEY_RANGES - 1])]
    return [(values[a], values[b - 1]) for a, b in zip(starts, [*starts[1:], len(values)], strict=True)]


def _literal(value: Any, kind: str) -> str:
    if kind in _TIMESTAMPS:
        return _TIMESTAMPS[kind].format(value)
    match value:
        case str():
            return f"'{value}'" if _PLAIN.fullmatch(value) else f"CAST(X'{value.encode().hex()}' AS STRING)"
        case dt.date():
            return f"DATE '{value.isoformat()}'"
        case decimal.Decimal():
            return f"CAST({value:f}BD AS {kind})"
        case _:
            return f"{value}{_SUFFIXES[kind]}"

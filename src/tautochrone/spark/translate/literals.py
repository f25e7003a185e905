"""Python values as SQL literals of a Spark type, for conditions that reach the files' statistics."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any

from tautochrone.model import limits

__all__ = ["UNORDERED_TYPE", "has_literals", "in_list", "in_ranges", "key_ranges", "literals"]

UNORDERED_TYPE = "timestamp"
"""Values of types that begin so are texts here, which have another order."""

_WORTH_A_SPLIT = 100
"""A gap between values that is at least this part of all that they span parts two ranges."""

_SUFFIXES = {"tinyint": "Y", "smallint": "S", "int": "", "bigint": "L"}


_MOMENTS = {"timestamp": "TIMESTAMP_LTZ '{} UTC'", "timestamp_ntz": "TIMESTAMP_NTZ '{}'"}


def has_literals(kind: str) -> bool:
    """Whether values of a type (its catalog string) have exact literals. Floats have not."""
    return kind in (*_SUFFIXES, *_MOMENTS, "string", "date") or kind.startswith("decimal")


def literals(values: Collection[Any], kind: str) -> str:
    """`a, b, c` for `IN (…)`, NULLs left out; empty when there is no other value.

    No function is called in it: Spark's analyser would have to look that up, and until then it does not carry
    renewed ids of columns past the condition.

    Args:
        values: of a `timestamp` as text in UTC (Python has no offsets with seconds, as old times have), of
            others as PySpark gives them.
        kind: the type's catalog string.
    """
    return ", ".join(_literal(value, kind) for value in values if value is not None)


def in_list(name: str, values: Collection[Any], kind: str) -> str:
    """`name IN (…)` as SQL; NULL is none of the values."""
    texts = literals(values, kind)
    return f"{name} IN ({texts})" if texts else "false"


def in_ranges(name: str, values: Collection[Any], kind: str) -> str:
    """What is true of all values, as SQL: the ranges in which they lie."""
    known = [value for value in values if value is not None]
    if kind.startswith(UNORDERED_TYPE) or not known:
        return f"{name} IS NOT NULL"
    bounds = (
        literals([low], kind) + f" AND {literals([high], kind)}" for low, high in key_ranges(sorted(known))
    )
    return " OR ".join(f"{name} BETWEEN {pair}" for pair in bounds)


def key_ranges(values: Sequence[Any]) -> list[tuple[Any, Any]]:
    """The fewest ranges that leave out the widest gaps between sorted values. Texts have no distance."""
    if isinstance(values[0], str):
        return [(values[0], values[-1])]
    span = values[-1] - values[0]
    gaps = [(high - low, place) for place, (low, high) in enumerate(pairwise(values), 1)]
    wide = sorted((gap for gap in gaps if gap[0] * _WORTH_A_SPLIT >= span), reverse=True)
    starts = [0, *sorted(place for _, place in wide[: limits.MAX_KEY_RANGES - 1])]
    return [(values[a], values[b - 1]) for a, b in zip(starts, [*starts[1:], len(values)], strict=True)]


def _literal(value: Any, kind: str) -> str:
    if kind in _MOMENTS:
        return _MOMENTS[kind].format(value)
    match value:
        case str():
            # Spark's parser would put the value of a setting where ${…} stands.
            escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("${", "$\\{")
            return f"'{escaped}'"
        case dt.date():
            return f"DATE '{value.isoformat()}'"
        case decimal.Decimal():
            return f"CAST({value:f}BD AS {kind})"
        case _:
            return f"{value}{_SUFFIXES[kind]}"

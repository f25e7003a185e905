"""Python values as SQL literals of a Spark type, for conditions that reach the files' statistics."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Collection
from typing import Any

__all__ = ["LITERALS", "literals", "suits"]

LITERALS = 1000
"""More distinct values than these are joined instead of written out."""

_SUFFIXES = {"tinyint": "Y", "smallint": "S", "int": "", "bigint": "L"}


_MOMENTS = {"timestamp": "TIMESTAMP_LTZ '{} UTC'", "timestamp_ntz": "TIMESTAMP_NTZ '{}'"}


def suits(kind: str) -> bool:
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

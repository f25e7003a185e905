"""Python values as SQL literals of a Spark type, for conditions that reach the files' statistics."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Collection
from typing import Any

__all__ = ["LITERALS", "Moment", "literals", "suits"]

LITERALS = 1000
"""More distinct values than these are joined instead of written out."""

_SUFFIXES = {"tinyint": "Y", "smallint": "S", "int": "", "bigint": "L"}


class Moment(int):
    """A timestamp in microseconds since 1970."""

    __slots__ = ()


def suits(kind: str) -> bool:
    """Whether values of a type (its catalog string) have exact literals. Floats have not."""
    return kind in (*_SUFFIXES, "string", "date", "timestamp") or kind.startswith("decimal")


def literals(values: Collection[Any], kind: str) -> str:
    """`a, b, c` for `IN (…)`, NULLs left out; empty when there is no other value."""
    return ", ".join(_literal(value, kind) for value in values if value is not None)


def _literal(value: Any, kind: str) -> str:
    match value:
        case Moment():
            return f"timestamp_micros({int(value)})"
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

"""The text of a value by which a definition is recognised as changed: the same in every process."""

from __future__ import annotations

from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

from pyspark.sql.types import DataType

__all__ = ["constant_text"]

_CONSTANTS = (str, bytes, int, float, bool, type(None), date, time, timedelta, Decimal)


def constant_text(value: Any) -> str | None:
    """None: the value is no constant, or its `repr` would name an address.

    >>> constant_text(date(2026, 1, 2))
    'datetime.date(2026, 1, 2)'
    """
    if isinstance(value, _CONSTANTS):
        return repr(value)
    if isinstance(value, Enum):
        text = constant_text(value.value)
        return text and f"{type(value).__qualname__}.{value.name} = {text}"
    return value.json() if isinstance(value, DataType) else None

"""Moments, in epoch milliseconds, and as text."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Literal, overload

__all__ = ["iso_timestamp", "now_ms"]


def now_ms() -> int:
    """By the clock of this machine."""
    return time.time_ns() // 1_000_000


@overload
def iso_timestamp(at_ms: int, timespec: Literal["seconds", "milliseconds"] = "milliseconds") -> str: ...


@overload
def iso_timestamp(
    at_ms: int | None, timespec: Literal["seconds", "milliseconds"] = "milliseconds"
) -> str | None: ...


def iso_timestamp(
    at_ms: int | None, timespec: Literal["seconds", "milliseconds"] = "milliseconds"
) -> str | None:
    """ISO 8601, UTC, with `seconds` in sentences; None stays None.

    >>> iso_timestamp(1_777_636_984_120), iso_timestamp(1_777_636_984_120, "seconds")
    ('2026-05-01T12:03:04.120Z', '2026-05-01T12:03:04Z')
    """
    if at_ms is None:
        return None
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec=timespec).replace("+00:00", "Z")

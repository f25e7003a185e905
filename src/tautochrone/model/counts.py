"""Counts as people read them."""

from __future__ import annotations

__all__ = ["counted"]


def counted(number: float, noun: str, plural: str | None = None) -> str:
    """A number with what it counts.

    >>> counted(1, "record"), counted(1200, "record"), counted(0, "batch", "batches")
    ('1 record', '1,200 records', '0 batches')
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"

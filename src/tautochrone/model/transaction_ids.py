"""The order of transaction ids that differ in their numbers only, such as `load-16` and `load-17`.

The store can stop keeping ids of ended transactions: of each series it remembers the highest position. An
unknown id that is not above it counts as used, so a late repeat is never taken for a new transaction.
"""

from __future__ import annotations

import re

__all__ = ["series_of"]

_DIGITS = re.compile("[0-9]+")


def series_of(transaction: str) -> tuple[str, tuple[int, ...]]:
    """The id with `#` for each of its numbers, and these numbers.

    >>> series_of("orders-2026-11-26@3")
    ('orders-#-#-#@#', (2026, 11, 26, 3))
    >>> series_of("load")
    ('load', ())
    """
    numbers = tuple(map(int, _DIGITS.findall(transaction)))
    return _DIGITS.sub("#", transaction), numbers

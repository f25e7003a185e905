"""Pairing rows of floats that are equal except for the last few bits, in plain Python."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

__all__ = ["FLOAT_TOLERANCE", "Floats", "count_close_pairs", "is_close"]

FLOAT_TOLERANCE = 1e-9
"""The relative tolerance: a billionth of the larger of two numbers."""

Floats = tuple[float | None, ...]


def is_close(left: float | None, right: float | None) -> bool:
    """Whether two values count as equal. NULL equals NULL, NaN equals NaN, and only 0 is close to 0.

    >>> is_close(1.0, 1.0 + 1e-12), is_close(1.0, 1.0 + 1e-6), is_close(None, 0.0)
    (True, False, False)
    """
    if left is None or right is None:
        return left is right
    if math.isnan(left) or math.isnan(right):
        return math.isnan(left) and math.isnan(right)
    return math.isclose(left, right, rel_tol=FLOAT_TOLERANCE, abs_tol=0.0)


def count_close_pairs(left: Sequence[tuple[Floats, int]], right: Sequence[tuple[Floats, int]]) -> int:
    """The number of copies of `left` rows that have a partner of their own among the `right` rows.

    Each side lists distinct rows with their numbers of copies. Rows are visited in the order of one column,
    and each takes the first free partners that are close. That pairs as many rows as possible, except in
    chains of numbers of which each is close to the next but not to the one after it. Sums of the same numbers
    form no such chains.

    >>> count_close_pairs([((1.0,), 3)], [((1.0 + 1e-12,), 2)])
    2
    """
    if not left or not right:
        return 0
    width = len(left[0][0])
    # The column with the most distinct values: with many equal ones the loop below would be quadratic.
    pivot = max(range(width), key=lambda column: len({row[column] for row, _ in right}))
    partners = sorted(right, key=lambda part: _rank(part[0][pivot]))
    ranks = [_rank(row[pivot]) for row, _ in partners]
    copies = [count for _, count in partners]
    pairs = 0
    for row, count in sorted(left, key=lambda part: _rank(part[0][pivot])):
        low, high = _near(row[pivot])
        for index in range(bisect_left(ranks, low), bisect_right(ranks, high)):
            if count == 0:
                break
            if copies[index] and all(map(is_close, row, partners[index][0])):
                taken = min(count, copies[index])
                count -= taken
                copies[index] -= taken
                pairs += taken
    return pairs


def _rank(value: float | None) -> tuple[int, float]:
    """A total order: NULL, numbers, NaN."""
    if value is None:
        return 0, 0.0
    return (2, 0.0) if math.isnan(value) else (1, value)


def _near(value: float | None) -> tuple[tuple[int, float], tuple[int, float]]:
    """The range of ranks that contains all values close to a value, and a few others."""
    if value is None or not math.isfinite(value):
        return _rank(value), _rank(value)
    margin = abs(value) * 2 * FLOAT_TOLERANCE
    return (1, value - margin), (1, value + margin)

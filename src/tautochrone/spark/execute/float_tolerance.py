"""Pairing rows of floating point numbers that are equal up to the last few bits. Plain Python."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

__all__ = ["FLOAT_TOLERANCE", "Floats", "count_close_pairs", "is_close"]

FLOAT_TOLERANCE = 1e-9
"""Relative: a billionth of the larger of two numbers."""

Floats = tuple[float | None, ...]


def is_close(left: float | None, right: float | None) -> bool:
    """Whether two values count as equal. NULL equals NULL and NaN equals NaN; nothing is near 0 but 0.

    >>> close(1.0, 1.0 + 1e-12), close(1.0, 1.0 + 1e-6), close(None, 0.0), close(math.nan, math.nan)
    (True, False, False, True)
    """
    if left is None or right is None:
        return left is right
    if math.isnan(left) or math.isnan(right):
        return math.isnan(left) and math.isnan(right)
    return math.isclose(left, right, rel_tol=FLOAT_TOLERANCE, abs_tol=0.0)


def count_close_pairs(left: Sequence[tuple[Floats, int]], right: Sequence[tuple[Floats, int]]) -> int:
    """How many copies of `left` rows find a partner of their own among `right` rows.

    Each side lists distinct rows with their numbers of copies. Rows are taken in the order of one column
    and each takes the first partners that are close: the most possible unless numbers stand in chains,
    each nearer to the next than the tolerance, which sums of the same numbers do not.
    """
    if not left or not right:
        return 0
    width = len(left[0][0])
    # The column that tells most rows apart, or many equal values would be tried against each other.
    pivot = max(range(width), key=lambda column: len({row[column] for row, _ in right}))
    partners = sorted(right, key=lambda part: _rank(part[0][pivot]))
    ranks = [_rank(row[pivot]) for row, _ in partners]
    copies = [count for _, count in partners]
    found = 0
    for row, count in sorted(left, key=lambda part: _rank(part[0][pivot])):
        low, high = _near(row[pivot])
        for place in range(bisect_left(ranks, low), bisect_right(ranks, high)):
            if count == 0:
                break
            if copies[place] and all(map(is_close, row, partners[place][0])):
                taken = min(count, copies[place])
                count -= taken
                copies[place] -= taken
                found += taken
    return found


def _rank(value: float | None) -> tuple[int, float]:
    """A total order: NULL, numbers, NaN."""
    if value is None:
        return 0, 0.0
    return (2, 0.0) if math.isnan(value) else (1, value)


def _near(value: float | None) -> tuple[tuple[int, float], tuple[int, float]]:
    """Ranks between which everything close to a value lies, and a little more."""
    if value is None or not math.isfinite(value):
        return _rank(value), _rank(value)
    margin = abs(value) * 2 * FLOAT_TOLERANCE
    return (1, value - margin), (1, value + margin)

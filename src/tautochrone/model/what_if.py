"""What a view's refreshes would have taken with a longer interval or another policy, as its history tells.

    following a change of d rows    fixed + per_row · d      fitted to the refreshes that followed one
    computing all rows              full                     the median of those that did

An interval that is k times as long merges k changes into one: the fixed part is paid once, the rows all the
same, though a row that changes twice between two checkpoints need not count twice. This module reads nothing
and decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from tautochrone.model.checkpoint import Refresh, RefreshMode, computed_all
from tautochrone.model.reason import ReasonCode

__all__ = ["INTERVALS", "LOOKED_AT", "WhatIf", "what_if"]

INTERVALS = (2, 10)
"""So many times as long intervals are estimated."""
LOOKED_AT = 100
"""So many of the newest refreshes of a view are looked at."""
_FEWEST = 3
"""Fewer changes that were followed tell neither part of the costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Estimates for the refreshes of one view, in milliseconds of wall time; None: too few tell it.

    Attributes:
        followed: refreshes that followed a change, from which it is estimated.
        computed: those that computed all rows.
        took_ms: what all of them took together.
        longer_ms: with an interval that is so many times as long.
        full_ms: had each computed all rows.
        followed_ms: had each followed the change.
    """

    followed: int
    computed: int
    took_ms: int
    longer_ms: Mapping[int, int | None]
    full_ms: int | None
    followed_ms: int | None


def what_if(refreshes: Sequence[Refresh]) -> WhatIf | None:
    """Estimates from the refreshes of one view, in the order of time or against it.

    Refreshes without news, and those that took over the rows of a plan, are left out.

    Returns:
        None: there is no refresh.

    Example:
        Ten refreshes that each followed a change in 200 ms, whatever its number of rows: with an interval
        that is ten times as long one refresh would have taken 200 ms.
    """
    past = [each for each in refreshes if each.mode is not RefreshMode.NO_DATA and not _took_over(each)]
    if not past:
        return None
    computed = [float(each.duration_ms) for each in past if computed_all(each)]
    followed = [each for each in past if not computed_all(each)]
    full = median(computed) if computed else None
    line = _fitted(followed) if len(followed) >= _FEWEST else None
    rows = sum(each.delta_rows for each in past)
    return WhatIf(
        followed=len(followed),
        computed=len(computed),
        took_ms=sum(each.duration_ms for each in past),
        longer_ms={times: _longer(past, times, full, line) for times in INTERVALS},
        full_ms=None if full is None else round(full * len(past)),
        followed_ms=None if line is None else round(line[0] * len(past) + line[1] * rows),
    )


def _took_over(refresh: Refresh) -> bool:
    reasons = [refresh.reason, *(node.reason for node in refresh.nodes)]
    return any(reason.code is ReasonCode.BUILD_APPLIED for reason in reasons)


def _fitted(followed: Sequence[Refresh]) -> tuple[float, float]:
    """The fixed part and that of each row, by the median of slopes (Theil and Sen): one slow refresh does not
    move it. Neither is negative."""
    points = [(each.delta_rows, float(each.duration_ms)) for each in followed]
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2) if a[0] != b[0]]
    per_row = max(0.0, median(slopes)) if slopes else 0.0
    return max(0.0, median(took - per_row * rows for rows, took in points)), per_row


def _longer(
    past: Sequence[Refresh], times: int, full: float | None, line: tuple[float, float] | None
) -> int | None:
    """What refreshes would have taken that are each `times` neighbours in one. One that has a neighbour which
    computed all rows does so."""
    total = 0.0
    for first in range(0, len(past), times):
        merged = past[first : first + times]
        if any(map(computed_all, merged)):
            total += full or 0.0
        elif line is None:
            return None
        else:
            total += line[0] + line[1] * sum(each.delta_rows for each in merged)
    return round(total)

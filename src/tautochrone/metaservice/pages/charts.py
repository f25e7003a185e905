"""Charts of a dataset's refreshes and of checkpoints: geometry only, a template makes the SVG of it.

One bar per refresh, oldest left, however long it was until the next: gaps of hours would squeeze what
happened into lines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tautochrone.meta import CheckpointLine
from tautochrone.metaservice.pages.words import clock, count, duration
from tautochrone.model.checkpoint import RefreshRecord

__all__ = ["Bar", "Chart", "Tick", "checkpoint_chart", "delay_chart", "duration_chart", "rows_chart"]

_NARROW, _WIDE, _HEIGHT = 430, 1240, 160
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 8, 20, 24
_PLOT = _HEIGHT - _TOP - _BOTTOM
_WIDEST = 26
_OUTLIER = 4
"""A bar this many times higher than nine of ten others is cut off: it would flatten all of them."""

_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
_TIMES = tuple(
    size * factor
    for size, factors in (
        (1, (1, 2, 5, 10, 20, 50, 100, 200, 500)),
        (_SECOND, (1, 2, 5, 10, 20, 30)),
        (_MINUTE, (1, 2, 5, 10, 20, 30)),
        (_HOUR, (1, 2, 3, 6, 12)),
        (_DAY, (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)),
    )
    for factor in factors
)
_COUNTS = tuple(factor * 10**power for power in range(16) for factor in (1, 2, 5))


@dataclass(frozen=True, slots=True)
class Bar:
    """A rectangle; `look` is a class of the style sheet, `says` what it stands for, `cut` its value when it
    is higher than the chart."""

    x: float
    y: float
    width: float
    height: float
    look: str
    says: str
    cut: str | None = None


@dataclass(frozen=True, slots=True)
class Tick:
    """A line across at height `y` with its label."""

    y: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Pixels of a box of `width` × `height`. `summary` says in a sentence what it shows."""

    title: str
    summary: str
    bars: tuple[Bar, ...]
    ticks: tuple[Tick, ...]
    first: str
    last: str
    width: int
    height: int = _HEIGHT
    left: int = _LEFT


@dataclass(frozen=True, slots=True)
class _Value:
    up: float
    down: float
    look: str
    says: str
    at_ms: int


def delay_chart(records: Sequence[RefreshRecord], cuts: Mapping[int, int]) -> Chart | None:
    """From the cut to the end of the refresh, for records newest first; None when nothing is known."""
    values = [
        _Value(
            max(0, record.finished_at_ms - cuts[record.checkpoint]),
            0,
            _look(record),
            f"checkpoint {record.checkpoint}: {duration(record.finished_at_ms - cuts[record.checkpoint])} "
            + ("until it failed" if record.error else "after its cut"),
            record.finished_at_ms,
        )
        for record in reversed(records)
        if record.checkpoint in cuts
    ]
    return _chart("Delay: from the cut to the end of the refresh", values, _TIMES, duration)


def rows_chart(records: Sequence[RefreshRecord]) -> Chart | None:
    """Rows that came (up) and went (down) with each refresh."""
    values = [
        _Value(
            record.refresh.rows_inserted,
            record.refresh.rows_deleted,
            "in",
            f"checkpoint {record.checkpoint}: {count(record.refresh.rows_inserted)} rows in, "
            f"{count(record.refresh.rows_deleted)} out",
            record.finished_at_ms,
        )
        for record in reversed(records)
        if record.refresh is not None and record.error is None
    ]
    return _chart("Rows in (up) and out (down) per refresh", values, _COUNTS, lambda n: count(round(n)))


def duration_chart(records: Sequence[RefreshRecord]) -> Chart | None:
    """How long each refresh took, coloured by mode."""
    values = [
        _Value(
            record.refresh.duration_ms,
            0,
            _look(record),
            f"checkpoint {record.checkpoint}: {duration(record.refresh.duration_ms)}, {record.refresh.mode}",
            record.finished_at_ms,
        )
        for record in reversed(records)
        if record.refresh is not None and record.error is None
    ]
    return _chart("Time taken per refresh", values, _TIMES, duration)


def checkpoint_chart(lines: Sequence[CheckpointLine]) -> Chart | None:
    """From the cut to the publication of each checkpoint, for lines newest first."""
    values = [
        _Value(
            max(0, line.published_at_ms - line.cut_at_ms),
            0,
            "error" if line.failed else "published",
            f"checkpoint {line.number}: published {duration(line.published_at_ms - line.cut_at_ms)} after "
            f"its cut" + (f", {line.failed} datasets failed or waited" if line.failed else ""),
            line.published_at_ms,
        )
        for line in reversed(lines)
        if line.published_at_ms is not None
    ]
    return _chart("From cut to publication, per checkpoint", values, _TIMES, duration, _WIDE)


def _look(record: RefreshRecord) -> str:
    if record.error is not None or record.refresh is None:
        return "error"
    return f"mode-{record.refresh.mode}"


def _chart(
    title: str,
    values: Sequence[_Value],
    steps: Sequence[float],
    label: Callable[[float], str],
    width: int = _NARROW,
) -> Chart | None:
    if not values:
        return None
    top, bottom = _highest([v.up for v in values]), _highest([v.down for v in values])
    step = next((s for s in steps if (top + bottom) / s <= 4), steps[-1])
    high = max(step, -(-top // step) * step)
    low = -(-bottom // step) * step
    scale = _PLOT / (high + low)
    zero = _TOP + high * scale
    slot = (width - _LEFT - _RIGHT) / max(len(values), 12)
    wide = min(slot * 0.8, _WIDEST)
    bars = []
    for at, value in enumerate(values):
        x = round(_LEFT + at * slot + (slot - wide) / 2, 1)
        # A refresh that took no time, or changed no row, is still one: a hair is left of it.
        up, down = max(min(value.up, high) * scale, 1.5), min(value.down, low) * scale
        over = label(value.up) if value.up > high else None
        bars.append(Bar(x, round(zero - up, 1), round(wide, 1), round(up, 1), value.look, value.says, over))
        if down:
            bars.append(Bar(x, round(zero, 1), round(wide, 1), round(down, 1), "out", value.says))
    levels = [n * step for n in range(-round(low / step), round(high / step) + 1)]
    peak = max(values, key=lambda v: v.up + v.down)
    return Chart(
        title=title,
        summary=f"{len(values)} bars; the highest: {peak.says}; the newest: {values[-1].says}",
        bars=tuple(bars),
        ticks=tuple(Tick(round(zero - n * scale, 1), label(abs(n)) if n else "0") for n in levels),
        first=clock(values[0].at_ms),
        last=clock(values[-1].at_ms) if len(values) > 1 else "",
        width=width,
    )


def _highest(sizes: Sequence[float]) -> float:
    """The highest value that is drawn in full."""
    ordered = sorted(sizes)
    usual = ordered[(len(ordered) - 1) * 9 // 10]
    return usual if usual and ordered[-1] > _OUTLIER * usual else ordered[-1]

"""The geometry of charts of refreshes and checkpoints; a template renders the SVG.

There is one bar per refresh, oldest left. The axis is not time: gaps of hours would make bars too thin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tautochrone.meta import CheckpointLine
from tautochrone.metaservice.pages.rendering import axis_time, count, duration, short_count
from tautochrone.model.checkpoint import RefreshRecord
from tautochrone.model.counts import counted

__all__ = ["Bar", "Chart", "Tick", "checkpoint_chart", "delay_chart", "duration_chart", "rows_chart"]

_NARROW, _WIDE, _HEIGHT = 430, 1240, 160
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 8, 20, 24
_LABEL_HEIGHT = 12
_PLOT = _HEIGHT - _TOP - _BOTTOM
_MAX_BAR_WIDTH = 26
_OUTLIER_FACTOR = 4
"""Where a bar is this many times higher than the 90th percentile the axis is logarithmic: no bar is cut off,
and none flattens all others."""

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
    """A rectangle; `css_class` is a class of the style sheet, `title` its tooltip."""

    x: float
    y: float
    width: float
    height: float
    css_class: str
    title: str


@dataclass(frozen=True, slots=True)
class Tick:
    """A horizontal line at height `y` with its label."""

    y: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart in pixels, in a box of `width` × `height`. `summary` describes it in a sentence."""

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
    css_class: str
    title: str
    at_ms: int


def delay_chart(records: Sequence[RefreshRecord], cuts: Mapping[int, int]) -> Chart | None:
    """The time from the cut to the end of each refresh, for records newest first; None without data."""
    values = [
        _Value(
            max(0, record.finished_at_ms - cuts[record.checkpoint]),
            0,
            _css_class(record),
            f"checkpoint {record.checkpoint}: {duration(record.finished_at_ms - cuts[record.checkpoint])} "
            + ("until it failed" if record.error else "after its cut"),
            record.finished_at_ms,
        )
        for record in reversed(records)
        if record.checkpoint in cuts
    ]
    return _chart("Delay: from the cut to the end of the refresh", values, _TIMES, duration)


def rows_chart(records: Sequence[RefreshRecord]) -> Chart | None:
    """Rows that each refresh inserted (up) and deleted (down)."""
    values = [
        _Value(
            record.refresh.rows_inserted,
            record.refresh.rows_deleted,
            "in",
            f"checkpoint {record.checkpoint}: {counted(record.refresh.rows_inserted, 'row')} added, "
            f"{count(record.refresh.rows_deleted)} removed",
            record.finished_at_ms,
        )
        for record in reversed(records)
        if record.refresh is not None and record.error is None
    ]
    return _chart("Rows added (up) and removed (down) per refresh", values, _COUNTS, short_count)


def duration_chart(records: Sequence[RefreshRecord]) -> Chart | None:
    """The duration of each refresh, coloured by mode."""
    values = [
        _Value(
            record.refresh.duration_ms,
            0,
            _css_class(record),
            f"checkpoint {record.checkpoint}: {duration(record.refresh.duration_ms)}, {record.refresh.mode}",
            record.finished_at_ms,
        )
        for record in reversed(records)
        if record.refresh is not None and record.error is None
    ]
    return _chart("Time taken per refresh", values, _TIMES, duration)


def checkpoint_chart(lines: Sequence[CheckpointLine]) -> Chart | None:
    """The time from the cut to the publication of each checkpoint, for lines newest first."""
    values = [
        _Value(
            max(0, line.published_at_ms - line.cut_at_ms),
            0,
            "error" if line.failed else "published",
            f"checkpoint {line.number}: published {duration(line.published_at_ms - line.cut_at_ms)} after "
            f"its cut" + (f", {counted(line.failed, 'dataset')} failed or waited" if line.failed else ""),
            line.published_at_ms,
        )
        for line in reversed(lines)
        if line.published_at_ms is not None
    ]
    return _chart("From cut to publication, per checkpoint", values, _TIMES, duration, _WIDE)


def _css_class(record: RefreshRecord) -> str:
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
    axis = _axis([v.up for v in values], [v.down for v in values], steps)
    scale = _PLOT / (axis.height(axis.top) + axis.height(axis.bottom))
    zero = _TOP + axis.height(axis.top) * scale
    slot = (width - _LEFT - _RIGHT) / max(len(values), 12)
    bar_width = min(slot * 0.8, _MAX_BAR_WIDTH)
    bars = []
    for index, value in enumerate(values):
        x = round(_LEFT + index * slot + (slot - bar_width) / 2, 1)
        # A bar of height 0 would be invisible.
        up, down = max(axis.height(value.up) * scale, 1.5), axis.height(value.down) * scale
        bars.append(
            Bar(x, round(zero - up, 1), round(bar_width, 1), round(up, 1), value.css_class, value.title)
        )
        if down:
            bars.append(Bar(x, round(zero, 1), round(bar_width, 1), round(down, 1), "out", value.title))
    peak = max(values, key=lambda v: v.up + v.down)
    return Chart(
        title=f"{title} (logarithmic)" if axis.unit else title,
        summary=f"{len(values)} bars; the highest: {peak.title}; the newest: {values[-1].title}",
        bars=tuple(bars),
        ticks=tuple(_ticks(axis, zero, scale, label)),
        first=axis_time(values[0].at_ms),
        last=axis_time(values[-1].at_ms) if len(values) > 1 else "",
        width=width,
    )


def _ticks(axis: _Axis, zero: float, scale: float, label: Callable[[float], str]) -> Iterator[Tick]:
    """Zero, and from the ends of the axis inwards the levels whose labels do not stand in each other."""
    yield Tick(round(zero, 1), "0")
    for end, sign in ((axis.top, -1), (axis.bottom, 1)):
        outer = math.inf
        for level in sorted(axis.levels, reverse=True):
            height = axis.height(level) * scale
            if level <= end and min(height, outer - height) >= _LABEL_HEIGHT:
                outer = height
                yield Tick(round(zero + sign * height, 1), label(level))


@dataclass(frozen=True, slots=True)
class _Axis:
    """From `bottom` below zero to `top` above it, with ticks at `levels`, which include both.

    `unit` is None for a linear axis; a logarithmic one is linear below its unit, so that it has a zero.
    """

    levels: tuple[float, ...]
    top: float
    bottom: float
    unit: float | None

    def height(self, value: float) -> float:
        """How far from zero a value is drawn, in a unit of the axis' own."""
        return value if self.unit is None else math.log10(1 + value / self.unit)


def _axis(ups: Sequence[float], downs: Sequence[float], steps: Sequence[float]) -> _Axis:
    highest, lowest = max(ups), max(downs)
    ordered = sorted(value for value in (*ups, *downs) if value)
    unit: float | None = None
    usual = ordered[(len(ordered) - 1) * 9 // 10] if ordered else 0
    if usual and ordered[-1] > _OUTLIER_FACTOR * usual:
        unit = max((step for step in steps if step <= max(ordered[0], usual / 100)), default=steps[0])
        levels = _decades(unit, ordered[-1], steps)
    else:
        step = next((s for s in steps if (highest + lowest) / s <= 4), steps[-1])
        number_of_steps = max(1, -(-max(highest, lowest) // step))
        levels = tuple(step * number for number in range(int(number_of_steps) + 1))
    top = next((level for level in levels[1:] if level >= highest), levels[-1])
    bottom = next((level for level in levels if level >= lowest), levels[-1])
    return _Axis(levels, top, bottom, unit)


def _decades(unit: float, highest: float, steps: Sequence[float]) -> tuple[float, ...]:
    """Zero, and round values that are some powers of ten apart, up to one that is not below the highest."""
    exponents = math.ceil(math.log10(max(highest / unit, 1))) + 1
    stride = -(-exponents // 4)
    levels = [0.0]
    for power in range(0, exponents, stride):
        goal = unit * 10**power
        level = next((step for step in steps if step >= goal), goal)
        # The last level is not much higher than the highest bar.
        if levels[-1] < level < highest / 3:
            levels.append(level)
    levels.append(next((step for step in steps if step >= highest), highest))
    return tuple(levels)

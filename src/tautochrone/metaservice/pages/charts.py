"""The geometry of charts of refreshes and checkpoints; a template renders the SVG.

There is one bar per refresh, oldest left. The axis is not time: gaps of hours would make bars too thin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tautochrone.meta import CheckpointLine
from tautochrone.metaservice.pages.rendering import axis_time, count, duration
from tautochrone.model.checkpoint import RefreshRecord

__all__ = ["Bar", "Chart", "Tick", "checkpoint_chart", "delay_chart", "duration_chart", "rows_chart"]

_NARROW, _WIDE, _HEIGHT = 430, 1240, 160
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 8, 20, 24
_PLOT = _HEIGHT - _TOP - _BOTTOM
_MAX_BAR_WIDTH = 26
_OUTLIER_FACTOR = 4
"""A bar this many times higher than the 90th percentile is cut off, as it would flatten all others."""

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
    """A rectangle; `css_class` is a class of the style sheet, `title` its tooltip, `clipped_label` the value
    of a bar that is cut off."""

    x: float
    y: float
    width: float
    height: float
    css_class: str
    title: str
    clipped_label: str | None = None


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
            f"checkpoint {record.checkpoint}: {count(record.refresh.rows_inserted)} rows in, "
            f"{count(record.refresh.rows_deleted)} out",
            record.finished_at_ms,
        )
        for record in reversed(records)
        if record.refresh is not None and record.error is None
    ]
    return _chart("Rows in (up) and out (down) per refresh", values, _COUNTS, lambda n: count(round(n)))


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
            f"its cut" + (f", {line.failed} datasets failed or waited" if line.failed else ""),
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
    top, bottom = _shown_maximum([v.up for v in values]), _shown_maximum([v.down for v in values])
    step = next((s for s in steps if (top + bottom) / s <= 4), steps[-1])
    y_max = max(step, -(-top // step) * step)
    y_min = -(-bottom // step) * step
    scale = _PLOT / (y_max + y_min)
    zero = _TOP + y_max * scale
    slot = (width - _LEFT - _RIGHT) / max(len(values), 12)
    bar_width = min(slot * 0.8, _MAX_BAR_WIDTH)
    bars = []
    for index, value in enumerate(values):
        x = round(_LEFT + index * slot + (slot - bar_width) / 2, 1)
        # A bar of height 0 would be invisible.
        up, down = max(min(value.up, y_max) * scale, 1.5), min(value.down, y_min) * scale
        clipped = label(value.up) if value.up > y_max else None
        bars.append(
            Bar(
                x,
                round(zero - up, 1),
                round(bar_width, 1),
                round(up, 1),
                value.css_class,
                value.title,
                clipped,
            )
        )
        if down:
            bars.append(Bar(x, round(zero, 1), round(bar_width, 1), round(down, 1), "out", value.title))
    levels = [n * step for n in range(-round(y_min / step), round(y_max / step) + 1)]
    peak = max(values, key=lambda v: v.up + v.down)
    return Chart(
        title=title,
        summary=f"{len(values)} bars; the highest: {peak.title}; the newest: {values[-1].title}",
        bars=tuple(bars),
        ticks=tuple(Tick(round(zero - n * scale, 1), label(abs(n)) if n else "0") for n in levels),
        first=axis_time(values[0].at_ms),
        last=axis_time(values[-1].at_ms) if len(values) > 1 else "",
        width=width,
    )


def _shown_maximum(sizes: Sequence[float]) -> float:
    """The highest value that is drawn without being cut off."""
    ordered = sorted(sizes)
    percentile_90 = ordered[(len(ordered) - 1) * 9 // 10]
    return percentile_90 if percentile_90 and ordered[-1] > _OUTLIER_FACTOR * percentile_90 else ordered[-1]

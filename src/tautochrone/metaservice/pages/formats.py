"""Numbers and times as people read them: the filters of the templates. They never touch the store."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["ago", "axis_time", "count", "duration", "iso", "moment"]

_STEPS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"))


def duration(ms: float | None) -> str:
    """Milliseconds in one or two units: `850 ms`, `3.2 s`, `2 min 5 s`, `1 d 4 h`."""
    if ms is None:
        return "–"
    if ms < 0:
        return f"−{duration(-ms)}"
    if ms < 1_000:
        return f"{ms:.0f} ms"
    if ms < 10_000:
        return f"{ms / 1000:.1f} s".replace(".0 ", " ")
    if ms < 60_000:
        return f"{ms / 1000:.0f} s"
    for index, (size, unit) in enumerate(_STEPS):
        if ms >= size:
            lower, name = _STEPS[index + 1] if index + 1 < len(_STEPS) else (1_000, "s")
            whole, rest = int(ms // size), int(ms % size // lower)
            return f"{whole} {unit} {rest} {name}" if rest else f"{whole} {unit}"
    raise AssertionError(ms)


def ago(at_ms: int | None, now_ms: int) -> str:
    """How long ago; what lies ahead (clocks of two machines) is `just now`."""
    if at_ms is None:
        return "never"
    passed = now_ms - at_ms
    return "just now" if passed < 1_000 else f"{duration(passed)} ago"


def iso(at_ms: int) -> str:
    """For `<time datetime>`."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def moment(at_ms: int | None) -> str:
    """`2026-05-01 12:03:04 UTC`."""
    if at_ms is None:
        return "–"
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def axis_time(at_ms: int) -> str:
    """For axes: `05-01 12:03:04`."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%m-%d %H:%M:%S")


def count(number: int | None) -> str:
    """With thin spaces between thousands: `1 234 567`."""
    return "–" if number is None else f"{number:,}".replace(",", "\u202f")

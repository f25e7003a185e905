"""Durations as people read them."""

from __future__ import annotations

__all__ = ["duration"]

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

"""How the texts of events show datasets, sinks, durations, hints and long lists."""

from __future__ import annotations

from collections.abc import Sequence

from tautochrone.model.definitions import ExpectationCount

__all__ = [
    "dataset_line",
    "done_or_planned",
    "hint_lines",
    "seconds",
    "short",
    "sink_line",
    "some_of",
    "violated",
]

_SHOWN_NAMES = 8


def short(dataset: str) -> str:
    """A dataset's name without its catalog, which is the same for all."""
    return dataset.partition(".")[2] or dataset


def dataset_line(dataset: str, text: str) -> str:
    """What happened to a dataset: names in one column, texts in the next.

    >>> dataset_line("lake.a.t", "columns added")
    '  a.t                              columns added'
    """
    return f"  {short(dataset):<32} {text}"


def sink_line(sink: str, text: str) -> str:
    """The same for a sink."""
    return f"  {f'sink {sink}':<32} {text}"


def hint_lines(hint: str | None, indent: str = "    ") -> list[str]:
    """The line of a hint, if there is one."""
    return [f"{indent}hint: {hint}"] if hint else []


def seconds(duration_ms: int) -> str:
    """A duration with one decimal."""
    return f"{duration_ms / 1000:.1f} s"


def done_or_planned(word: str, *, dry_run: bool) -> str:
    """What became of something, or would become of it."""
    return f"would be {word}" if dry_run else word


def some_of(names: Sequence[str]) -> str:
    """The names, or the first ones of many; the event has all.

    >>> some_of([f"t{number}" for number in range(20)])
    't0, t1, t2, t3, t4, t5, t6, t7 and 12 others'
    """
    others = len(names) - _SHOWN_NAMES
    return ", ".join(names[:_SHOWN_NAMES]) + (f" and {others} others" if others > 0 else "")


def violated(expectations: Sequence[ExpectationCount]) -> str:
    """The expectations of a dataset that rows violate, as the end of a line."""
    counts = [f"{count.name!r} {count.violations:,}" for count in expectations if count.violations]
    return f"  violations: {', '.join(counts)}" if counts else ""

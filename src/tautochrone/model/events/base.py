"""What all events have in common: their names, their form as JSON, and how their texts show datasets, sinks,
durations, hints and long lists.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, fields, is_dataclass, replace
from enum import Enum
from typing import Any, ClassVar, Self

from tautochrone.model.counts import counted
from tautochrone.model.definitions import ExpectationCount
from tautochrone.model.names import TableName
from tautochrone.model.reason import Reason, reason_fields

__all__ = [
    "DatasetReason",
    "Emit",
    "Event",
    "dataset_line",
    "done_or_planned",
    "hint_lines",
    "seconds",
    "short",
    "sink_line",
    "some_of",
    "violated",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened. Its fields hold what JSON can hold, reasons, and dataclasses of these.

    Attributes:
        name: its name in JSON, from that of the class: `FlowFailed` is `flow_failed`.
        failure: people see it also when they want to see failures only.
    """

    name: ClassVar[str]
    failure: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        cls.name = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def as_json(self) -> dict[str, Any]:
        """The object of a line of `taut run --json`: the name as `event`, and the fields."""
        return {"event": self.name, **self.json_fields()}

    def json_fields(self) -> dict[str, Any]:
        """The fields as JSON. A reason is its text, with its code and parameters beside it. A field with a
        default is left out while it has it."""
        return _json_fields(self, [part for part in fields(self) if getattr(self, part.name) != part.default])

    def text(self) -> str:
        """The text for people; empty for an event without news. Here it is the name and all fields."""
        pairs = " ".join(
            f"{name}={value}"
            for name, value in self.json_fields().items()
            # The text of a reason says what its code and its parameters say.
            if value not in (None, "", []) and not name.endswith(("_code", "_params", "_reasons"))
        )
        return f"{self.name.replace('_', ' ')}: {pairs}".rstrip(": ")

    def map_texts(self, change: Callable[[str], str]) -> Self:
        """The same event with every text in its fields changed, such as by redaction."""
        event: Self = _map_texts(self, change)
        return event


Emit = Callable[[Event], None]
"""Reports an event to all listeners. Never raises, never blocks for long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetReason:
    """Why something was done with one dataset."""

    dataset: str
    reason: Reason


def json_name(part: Field[Any]) -> str:
    """The name of a field in JSON: `json` in its metadata, else its own."""
    return str(part.metadata.get("json", part.name))


def _json_fields(owner: Any, parts: Iterable[Field[Any]]) -> dict[str, Any]:
    json_fields: dict[str, Any] = {}
    for part in parts:
        name, value = json_name(part), getattr(owner, part.name)
        json_fields |= reason_fields(name, value) if isinstance(value, Reason) else {name: _json(value)}
    return json_fields


def _json(value: Any) -> Any:
    if isinstance(value, TableName):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return _json_fields(value, fields(value))
    if isinstance(value, Mapping):
        return {key: _json(item) for key, item in value.items()}
    return [_json(item) for item in value] if isinstance(value, list | tuple) else value


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        # What an enumeration can hold is known before, and listeners decide by it.
        return value if isinstance(value, Enum) else change(value)
    if isinstance(value, Reason):
        return value.map_texts(change)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{p.name: _map_texts(getattr(value, p.name), change) for p in fields(value)})
    if isinstance(value, Mapping):
        return {key: _map_texts(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_map_texts(item, change) for item in value)
    return value


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
    return ", ".join(names[:_SHOWN_NAMES]) + (f" and {counted(others, 'other')}" if others > 0 else "")


def violated(expectations: Sequence[ExpectationCount]) -> str:
    """The expectations of a dataset that rows violate, as the end of a line."""
    counts = [f"{count.name!r} {count.violations:,}" for count in expectations if count.violations]
    return f"  violations: {', '.join(counts)}" if counts else ""

"""What all events have in common: their names, their form as JSON, and a text that shows all fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, fields, is_dataclass, replace
from enum import Enum
from typing import Any, ClassVar, Self

from tautochrone.model.names import TableName
from tautochrone.model.reason import Reason, reason_fields

__all__ = ["DatasetReason", "Emit", "Event"]


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

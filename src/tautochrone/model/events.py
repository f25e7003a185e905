"""What happens, as it happens: one event is a name and fields that JSON can hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from tautochrone.model.reason import Reason, reason_fields

__all__ = ["Emit", "Field", "as_json_fields"]

Field = (
    str
    | int
    | float
    | bool
    | Reason
    | None
    | list[dict[str, Any]]
    | list[str]
    | dict[str, str]
    | dict[str, int]
)


class Emit(Protocol):
    """Reports an event to all listeners. Never raises, never blocks for long."""

    def __call__(self, event: str, /, **fields: Field) -> None: ...


def as_json_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an event as JSON: a reason is its text, with its code and parameters beside it."""
    json_fields: dict[str, Any] = {}
    for name, value in fields.items():
        json_fields |= reason_fields(name, value) if isinstance(value, Reason) else {name: value}
    return json_fields

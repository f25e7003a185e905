"""What happens, as it happens: one event is a name and fields that JSON can hold."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Emit", "Field"]

Field = str | int | float | bool | None | list[dict[str, str]] | list[str] | dict[str, str]


class Emit(Protocol):
    """Tell whoever listens. Never raises, never blocks for long."""

    def __call__(self, event: str, /, **fields: Field) -> None: ...

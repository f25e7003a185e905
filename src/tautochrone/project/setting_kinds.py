"""The types of settings' values: how each is read, refused and described.

A value comes from TOML, or as text from a flag or a variable; `parse_flag_text` converts text into TOML's
form first, so that `parse` has one kind of input.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

__all__ = [
    "Boolean",
    "Choice",
    "Duration",
    "DurationOrNone",
    "Kind",
    "NameList",
    "PropertyValue",
    "Secret",
    "Size",
    "Text",
    "WholeNumber",
]

_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h)?\s*")
_UNIT_MS = {"ms": 1, "s": 1_000, None: 1_000, "m": 60_000, "h": 3_600_000}
_SIZE = re.compile(r"\s*(\d+)\s*(?:([kmgt]?)i?b?)?\s*", re.IGNORECASE)
_UNITS = "kmgt"


class Kind(ABC):
    """The type of a setting's values."""

    __slots__ = ()

    @property
    def error_class(self) -> str:
        """The class of the error for an invalid value."""
        return "INVALID_SETTING"

    @property
    @abstractmethod
    def description(self) -> str:
        """A description of valid values: "a whole number from 1 on"."""

    def parse_flag_text(self, text: str) -> Any:
        """The text of a flag or a variable as a TOML value."""
        return text

    @abstractmethod
    def parse(self, value: Any) -> Any:
        """The value that the program uses.

        Raises:
            ValueError: it is invalid.
        """

    @abstractmethod
    def schema(self) -> Mapping[str, Any]:
        """The JSON Schema of valid values."""


@dataclass(frozen=True, slots=True)
class Secret(Kind):
    """A text that may not be in the project's files or on the command line: by reference only."""

    error_class: str = "SECRET_IN_PLAIN_TEXT"
    description = "no plain text"

    def parse(self, value: Any) -> Any:  # noqa: ARG002
        raise ValueError

    def schema(self) -> Mapping[str, Any]:
        return {"not": {}}


@dataclass(frozen=True, slots=True)
class Text(Kind):
    """Any text that is not empty."""

    description = "text"

    def parse(self, value: Any) -> str:
        if not isinstance(value, str) or not value:
            raise ValueError
        return value

    def schema(self) -> Mapping[str, Any]:
        return {"type": "string", "minLength": 1}


@dataclass(frozen=True, slots=True)
class NameList(Kind):
    """A list of names, not empty; in flags and variables they are separated by commas."""

    description = "a list of names"

    def parse_flag_text(self, text: str) -> Any:
        return [part.strip() for part in text.split(",")]

    def parse(self, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list) or not value:
            raise ValueError
        if not all(isinstance(name, str) and name for name in value):
            raise ValueError
        return tuple(value)

    def schema(self) -> Mapping[str, Any]:
        return {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}}


@dataclass(frozen=True, slots=True)
class PropertyValue(Kind):
    """A value of a Spark or Iceberg property: text, a number, true or false."""

    description = "text, a number, true or false"

    def parse(self, value: Any) -> str:
        if isinstance(value, bool):
            return "true" if value else "false"
        if not isinstance(value, str | int | float):
            raise ValueError
        return str(value)

    def schema(self) -> Mapping[str, Any]:
        return {"type": ["string", "number", "boolean"]}


@dataclass(frozen=True, slots=True)
class WholeNumber(Kind):
    """A whole number."""

    at_least: int

    @property
    def description(self) -> str:
        return f"a whole number from {self.at_least} on"

    def parse_flag_text(self, text: str) -> Any:
        return int(text)

    def parse(self, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < self.at_least:
            raise ValueError
        return value

    def schema(self) -> Mapping[str, Any]:
        return {"type": "integer", "minimum": self.at_least}


@dataclass(frozen=True, slots=True)
class Boolean(Kind):
    """On or off."""

    description = "true or false"

    def parse_flag_text(self, text: str) -> Any:
        return {"true": True, "false": False}.get(text.strip().lower(), text)

    def parse(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise ValueError
        return value

    def schema(self) -> Mapping[str, Any]:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Duration(Kind):
    """A duration of at least `at_least`; parsed to milliseconds."""

    at_least: str | None = None
    error_class: str = "INVALID_DURATION"

    @property
    def description(self) -> str:
        least = "" if self.at_least is None else f" of at least {self.at_least}"
        return f"a duration{least}: 500ms, 5s, 2m, 1h, or seconds as a number"

    def parse(self, value: Any) -> int:
        match = None if isinstance(value, bool) else _DURATION.fullmatch(str(value))
        if match is None:
            raise ValueError
        span_ms = round(float(match[1]) * _UNIT_MS[match[2]])
        if self.at_least is not None and span_ms < Duration().parse(self.at_least):
            raise ValueError
        return span_ms

    def schema(self) -> Mapping[str, Any]:
        pattern = r"^\s*\d+(\.\d+)?\s*(ms|s|m|h)?\s*$"
        return {"anyOf": [{"type": "string", "pattern": pattern}, {"type": "number", "minimum": 0}]}


@dataclass(frozen=True, slots=True)
class DurationOrNone(Kind):
    """A duration as in `Duration`, or the word `none`."""

    span: Duration = Duration()
    error_class: str = "INVALID_DURATION"

    @property
    def description(self) -> str:
        return f"none, or {self.span.description}"

    def parse(self, value: Any) -> int | None:
        return None if str(value).strip().lower() == "none" else self.span.parse(value)

    def schema(self) -> Mapping[str, Any]:
        return {"anyOf": [{"const": "none"}, *self.span.schema()["anyOf"]]}


@dataclass(frozen=True, slots=True)
class Size(Kind):
    """An amount of data, at least one byte; parsed to bytes. Units are powers of 1024, as in Spark."""

    description = "a size from one byte on: 64MB, 1g, or bytes as a number"

    def parse(self, value: Any) -> int:
        match = None if isinstance(value, bool | float) else _SIZE.fullmatch(str(value))
        if match is None:
            raise ValueError
        unit = (match[2] or "").lower()
        size: int = int(match[1]) * 1024 ** (_UNITS.index(unit) + 1 if unit else 0)
        if size < 1:
            raise ValueError
        return size

    def schema(self) -> Mapping[str, Any]:
        pattern = r"^\s*\d+\s*([kKmMgGtT]?[iI]?[bB]?)\s*$"
        return {"anyOf": [{"type": "string", "pattern": pattern}, {"type": "integer", "minimum": 1}]}


@dataclass(frozen=True, slots=True)
class Choice(Kind):
    """One of a few words; case does not matter."""

    choices: type[StrEnum]
    error_class: str = "INVALID_SETTING"

    @property
    def description(self) -> str:
        return f"one of {', '.join(self.choices)}"

    def parse(self, value: Any) -> StrEnum:
        if not isinstance(value, str):
            raise ValueError
        return self.choices(value.strip().lower())

    def schema(self) -> Mapping[str, Any]:
        return {"enum": [str(choice) for choice in self.choices]}

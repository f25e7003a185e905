"""What runs and alarms say, as the JSON that the store keeps. What another release wrote and cannot be read
here is left out: only people read it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

from cattrs import Converter
from cattrs.errors import BaseValidationError

from tautochrone.model.alarms import Notified
from tautochrone.model.reason import Reason
from tautochrone.model.run_report import RunEnd, RunReport

__all__ = ["as_json", "end_from_json", "notified_from_json", "report_from_json"]

T = TypeVar("T")


@cache
def _converter() -> Converter:
    converter = Converter()
    converter.register_structure_hook(Reason, lambda data, _: Reason.from_json(data))
    converter.register_unstructure_hook(Reason, Reason.to_json)
    return converter


def as_json(value: RunReport | RunEnd | Notified) -> dict[str, Any]:
    """The value as an object of JSON."""
    data: dict[str, Any] = _converter().unstructure(value)
    return data


def report_from_json(data: Any) -> RunReport | None:
    """A report; None when there is none, or another release wrote it."""
    return _from_json(data, RunReport)


def end_from_json(data: Any) -> RunEnd | None:
    """How a run ended; None likewise."""
    return _from_json(data, RunEnd)


def notified_from_json(data: Mapping[str, Any]) -> dict[str, Notified]:
    """By target what it was sent."""
    parsed = {target: _from_json(sent, Notified) for target, sent in data.items()}
    return {target: sent for target, sent in parsed.items() if sent is not None}


def _from_json(data: Any, kind: type[T]) -> T | None:
    if data is None:
        return None
    try:
        return _converter().structure(data, kind)
    except (BaseValidationError, TypeError, ValueError, KeyError):
        return None

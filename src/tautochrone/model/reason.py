"""Why something was done, or not done: a code and its parameters. Code decides by these, never by texts.

    reason = Reason.of(ReasonCode.NEW_INPUT, input="lake.default.orders")
    reason.code               # what a program looks at
    describe(reason)          # 'lake.default.orders is a new input', for people
    Reason.from_json(reason.to_json()) == reason

Parameters are JSON values. A reason that another release wrote with a code that is not known here reads as
`UNKNOWN`, with its text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from string import Formatter
from typing import Any

from tautochrone.model.counts import counted
from tautochrone.model.reason_codes import ReasonCode
from tautochrone.model.reason_texts import COMPUTED_FROM, TEXTS

__all__ = ["Reason", "ReasonCode", "describe", "joined_reasons", "reason_fields", "unclassified"]

_CODES = frozenset(ReasonCode)


@dataclass(frozen=True, slots=True)
class Reason:
    """A code and what it is about. `str(reason)` is its text.

    Raises:
        ValueError: a parameter is missing that the text of the code needs.
    """

    code: ReasonCode
    params: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        missing = sorted(parameters_of(self.code) - self.params.keys())
        if missing:
            raise ValueError(f"a reason {self.code} needs {', '.join(missing)}")

    @classmethod
    def of(cls, code: ReasonCode, **params: Any) -> Reason:
        """A reason with these parameters; all of them must be JSON values."""
        return cls(code, params)

    @classmethod
    def stored(cls, text: str, code: str | None, params: Mapping[str, Any] | None) -> Reason:
        """A reason from what the store keeps: `UNKNOWN` with its text if this release does not know it."""
        if code not in _CODES:
            return unclassified(text)
        try:
            reason = cls(ReasonCode(str(code)), params or {})
            describe(reason)
        except (ValueError, TypeError, LookupError, AttributeError):
            # The parameters are those of another release.
            return unclassified(text)
        return reason

    @classmethod
    def from_json(cls, data: Any) -> Reason:
        """The other way of `to_json`.

        Raises:
            TypeError: it is no object with a text.
        """
        if not isinstance(data, Mapping) or not isinstance(data.get("text"), str):
            raise TypeError(f"{data!r:.80} is no reason")
        params = data.get("params")
        if params is not None and not isinstance(params, Mapping):
            raise TypeError(f"{params!r:.80} are no parameters of a reason")
        return cls.stored(data["text"], data.get("code"), params)

    def to_json(self) -> dict[str, Any]:
        """Code, parameters and text. A release that does not know the code shows the text."""
        return {"code": str(self.code), "params": dict(self.params), "text": describe(self)}

    def map_texts(self, change: Callable[[str], str]) -> Reason:
        """The same reason with every text in its parameters changed, such as by redaction."""
        return Reason(self.code, _map_texts(self.params, change))

    def __str__(self) -> str:
        return describe(self)

    def __hash__(self) -> int:
        return hash((self.code, json.dumps(self.params, sort_keys=True, default=str)))


def unclassified(text: str) -> Reason:
    """A reason of which only the text is known."""
    return Reason(ReasonCode.UNKNOWN, {"text": text})


def joined_reasons(reasons: Sequence[Reason]) -> Reason:
    """Several reasons as one; the first is the most important one.

    Raises:
        ValueError: there is none.
    """
    if not reasons:
        raise ValueError("no reasons")
    if len(reasons) == 1:
        return reasons[0]
    return Reason(ReasonCode.SEVERAL, {"reasons": [reason.to_json() for reason in reasons]})


def describe(reason: Reason) -> str:
    """The text of a reason, one sentence without a full stop."""
    if reason.code is ReasonCode.SEVERAL:
        return "; ".join(str(Reason.from_json(part)) for part in reason.params["reasons"])
    text = TEXTS[reason.code]
    return _Text().vformat(text, (), reason.params) if isinstance(text, str) else text(reason.params)


_NOUN = "#"


class _Text(Formatter):
    """Formats texts in which `{records:#record}` is a number of records: `1 record`, `2 records`. Other
    formats are Python's."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if not format_spec:
            return str(value)
        if not format_spec.startswith(_NOUN):
            return str(super().format_field(value, format_spec))
        noun = format_spec.removeprefix(_NOUN)
        # Another release may store a count as a text.
        return counted(value, noun) if isinstance(value, int) else f"{value} {noun}s"


def reason_fields(name: str, reason: Reason | None) -> dict[str, Any]:
    """A reason as fields of an event, as fields of a line of `--json`, or as columns.

    Its text is `name`, with its code and its parameters beside it. Without a reason all of them are None.
    """
    if reason is None:
        return {name: None, f"{name}_code": None, f"{name}_params": None}
    return {name: describe(reason), f"{name}_code": str(reason.code), f"{name}_params": dict(reason.params)}


@cache
def parameters_of(code: ReasonCode) -> frozenset[str]:
    """The parameters that every reason of a code has."""
    text = TEXTS.get(code)
    if not isinstance(text, str):
        return COMPUTED_FROM[code]
    return frozenset(name for _, name, _, _ in Formatter().parse(text) if name)


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _map_texts(part, change) for key, part in value.items()}
    if isinstance(value, Sequence):
        return [_map_texts(part, change) for part in value]
    return value

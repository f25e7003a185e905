"""The expectation decorators, and which expectations each query function carries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pyspark.pipelines.graph_element_registry import get_active_graph_element_registry

from tautochrone.errors import DefinitionError
from tautochrone.model.definitions import Expectation, ViolationAction

__all__ = ["DECORATORS", "ExpectationsByFunction", "expectations_from"]

F = TypeVar("F")
_ARGUMENTS = {"description": "name", "constraint": "inv"}
"""How newer releases call the arguments of a decorator."""


class ExpectationsByFunction:
    """What the decorators said of query functions."""

    def __init__(self) -> None:
        self._entries: list[tuple[object, Expectation]] = []

    def add(self, function: object, expectations: list[Expectation]) -> None:
        self._entries += [(function, expectation) for expectation in expectations]

    def of(self, function: object) -> tuple[Expectation, ...]:
        """The expectations of a function, and of functions that it wraps, in the order they are written."""
        expectations: list[Expectation] = []
        while function is not None:
            expectations += [expectation for owner, expectation in self._entries if owner is function]
            function = getattr(function, "__wrapped__", None)
        # Python applies the lowest decorator first.
        return tuple(reversed(expectations))


def expectations_from(
    warn: Mapping[str, str] | None = None,
    drop: Mapping[str, str] | None = None,
    fail: Mapping[str, str] | None = None,
) -> list[Expectation]:
    """Expectations by what happens to rows that violate them; each maps a name to a condition.

    Raises:
        DefinitionError: `INVALID_EXPECTATION`, a name or condition is no text.
    """
    by_action = {ViolationAction.WARN: warn, ViolationAction.DROP: drop, ViolationAction.FAIL: fail}
    result = []
    for action, conditions in by_action.items():
        if not isinstance(conditions or {}, Mapping):
            raise _invalid_expectation_error(
                f"Expectations are a dictionary of names and conditions, not {conditions!r}"
            )
        for name, condition in (conditions or {}).items():
            if not isinstance(name, str) or not isinstance(condition, str) or not condition.strip():
                raise _invalid_expectation_error(
                    f"The expectation {name!r} has the condition {condition!r}, which is no SQL text"
                )
            result.append(Expectation(name, condition.strip(), action))
    return result


def _invalid_expectation_error(sentence: str) -> DefinitionError:
    return DefinitionError(
        "INVALID_EXPECTATION", sentence, hint='Write @dlt.expect("name", "column IS NOT NULL").'
    )


def _decorator(action: ViolationAction, example: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def expect(*arguments: str, **by_name: str) -> Callable[[F], F]:
        given = dict(zip(("name", "inv"), arguments, strict=False))
        given |= {_ARGUMENTS.get(key, key): text for key, text in by_name.items()}
        if len(arguments) > 2 or given.keys() != {"name", "inv"}:
            raise _invalid_expectation_error(f"@{example} takes a name and a condition, not {given!r}")
        return _attach(expectations_from(**{action.value: {given["name"]: given["inv"]}}), example)

    def expect_all(expectations: Mapping[str, str]) -> Callable[[F], F]:
        return _attach(expectations_from(**{action.value: expectations}), example)

    return expect, expect_all


def _attach(expectations: list[Expectation], example: str) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        if not callable(function):
            raise DefinitionError(
                "INVALID_EXPECTATION",
                f"@{example} stands above a decorator that returns no function",
                hint=f"Write @{example} below @table, @materialized_view or @temporary_view.",
            )
        registry: Any = get_active_graph_element_registry()
        registry.expectations.add(function, list(reversed(expectations)))
        return function

    return decorate


_WARN, _WARN_ALL = _decorator(ViolationAction.WARN, "expect")
_DROP, _DROP_ALL = _decorator(ViolationAction.DROP, "expect_or_drop")
_FAIL, _FAIL_ALL = _decorator(ViolationAction.FAIL, "expect_or_fail")

DECORATORS: Mapping[str, Callable[..., Any]] = {
    "expect": _WARN,
    "expect_all": _WARN_ALL,
    "expect_or_drop": _DROP,
    "expect_all_or_drop": _DROP_ALL,
    "expect_or_fail": _FAIL,
    "expect_all_or_fail": _FAIL_ALL,
}

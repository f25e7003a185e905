"""The counts of expectations as the store keeps them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tautochrone.model.definitions import ExpectationCount, ViolationAction

__all__ = ["expectations_json", "stored_expectations"]


def expectations_json(expectations: Iterable[ExpectationCount]) -> list[dict[str, Any]]:
    """What is stored."""
    return [
        {
            "name": count.name,
            "action": str(count.action),
            "violations": count.violations,
            "change": count.change,
        }
        for count in expectations
    ]


def stored_expectations(stored: Sequence[dict[str, Any]] | None) -> tuple[ExpectationCount, ...]:
    """What was stored; None: nothing."""
    return tuple(
        ExpectationCount(
            name=fields["name"],
            action=ViolationAction(fields["action"]),
            violations=fields["violations"],
            change=fields["change"],
        )
        for fields in stored or ()
    )

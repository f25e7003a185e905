"""Expectations: conditions that a dataset's rows should meet, and what happens to rows that do not."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Expectation", "ExpectationCount", "ViolationAction"]


class ViolationAction(StrEnum):
    """What happens to a row that violates an expectation.

    `WARN`: it is written and counted. `DROP`: it is counted and not written. `FAIL`: nothing is written.
    """

    WARN = "warn"
    DROP = "drop"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Expectation:
    """A condition on the rows of a dataset's query, in SQL. A row meets it only if it is true: NULL violates.

    `name` is unique in its dataset.
    """

    name: str
    condition: str
    action: ViolationAction


@dataclass(frozen=True, slots=True)
class ExpectationCount:
    """How many rows violate an expectation.

    `violations` counts rows of a view's query at its checkpoint, or all rows that a streaming table's flows
    took in since its last full refresh. `change` is what the last refresh or batch added to it.
    """

    name: str
    action: ViolationAction
    violations: int
    change: int

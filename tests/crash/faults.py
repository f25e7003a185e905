"""Crashes and lost answers inside one process: many in the time that one real process takes to start.

After a simulated crash the door stays shut: whatever code still runs (handlers, other threads) leaves
no trace, as if it had died too.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tautochrone.errors import CommitOutcomeUnknownError
from tautochrone.model.effects import Step

__all__ = ["Crash", "Strike", "StrikingEffects"]

T = TypeVar("T")


class Crash(Exception):  # noqa: N818
    """The process is dead. Nobody may catch it and go on: the next durable step raises it again."""


@dataclass(frozen=True, slots=True)
class Strike:
    """`when` is before or after, `kind` crash or lose; `nth` counts the step (on a table) from 1."""

    step: Step
    when: str
    kind: str
    nth: int = 1
    on: str | None = None

    def __str__(self) -> str:
        return f"{self.step}-{self.when}-{self.kind}-{self.on or ''}{self.nth}"


class StrikingEffects:
    """Performs actions until the strike's moment comes. Without one it only counts."""

    def __init__(self, strike: Strike | None = None) -> None:
        self._strike = strike
        self._lock = threading.Lock()
        self.dead = False
        self.struck = 0
        self._hits = 0
        self.seen: Counter[Step] = Counter()

    def perform(self, step: Step, subject: str, action: Callable[[], T]) -> T:
        with self._lock:
            self._alive()
            self.seen[step] += 1
            is_due = self._is_due(step, subject)
        if not is_due:
            return action()
        assert self._strike is not None
        result = None if self._strike.when == "before" else action()
        with self._lock:
            self.struck += 1
            if self._strike.kind == "lose":
                raise CommitOutcomeUnknownError("COMMIT_OUTCOME_UNKNOWN", f"{self._strike} on {subject}")
            self.dead = True
            raise Crash(f"{self._strike} with {result}")

    def _is_due(self, step: Step, subject: str) -> bool:
        strike = self._strike
        if strike is None or step is not strike.step:
            return False
        if strike.on is not None and not subject.endswith(f".{strike.on}"):
            return False
        self._hits += 1
        return self._hits == strike.nth

    def _alive(self) -> None:
        if self.dead:
            raise Crash("dead")

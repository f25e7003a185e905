"""Implementations of `Effects`, through which every durable write goes.

`DirectEffects` performs the step. `CountingEffects` also counts the steps, for tests of step budgets.
The crash suite describes faults in `TAUTOCHRONE_FAULT`:

    <step>[@<subject>]:<when>:<kind>[:<nth>]

with `when` = `before | after`, `kind` = `kill | lose | pause`, `nth` counting from 1. `kill` is SIGKILL to
this very process, `lose` raises "commit outcome unknown" after the action took place (a lost answer),
`pause` stops the process with SIGSTOP until somebody continues it (a zombie); never while another thread
takes a step, for a database of one file would stay locked for everybody.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tautochrone.errors import CommitOutcomeUnknownError, SettingsError
from tautochrone.model.effects import Step

__all__ = [
    "FAULT_VARIABLE",
    "CountingEffects",
    "DirectEffects",
    "Fault",
    "effects_from_environment",
]

T = TypeVar("T")
FAULT_VARIABLE = "TAUTOCHRONE_FAULT"


class DirectEffects:
    """Performs each action and nothing else."""

    def perform(self, step: Step, subject: str, action: Callable[[], T]) -> T:  # noqa: ARG002
        return action()


class CountingEffects:
    """Counts the steps taken, by step and by (step, subject)."""

    def __init__(self) -> None:
        self.steps: Counter[Step] = Counter()
        self.by_subject: Counter[tuple[Step, str]] = Counter()
        self._lock = threading.Lock()

    def perform(self, step: Step, subject: str, action: Callable[[], T]) -> T:
        result = action()
        with self._lock:
            self.steps[step] += 1
            self.by_subject[step, subject] += 1
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Which step fails, and how. See the module docstring for the text form."""

    step: Step
    subject: str | None
    before: bool
    kind: str
    nth: int = 1

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Parse the text form.

        Raises:
            SettingsError: `INVALID_FAULT`.
        """
        try:
            target, when, kind, *rest = text.split(":")
            step, _, subject = target.partition("@")
            if when not in ("before", "after") or kind not in ("kill", "lose", "pause"):
                raise ValueError(text)
            nth = int(rest[0]) if rest else 1
            return cls(
                step=Step(step),
                subject=subject or None,
                before=when == "before",
                kind=kind,
                nth=nth,
            )
        except ValueError as error:
            raise SettingsError(
                "INVALID_FAULT",
                f"{FAULT_VARIABLE} is {text!r}, expected "
                "<step>[@<subject>]:before|after:kill|lose|pause[:<nth>]",
            ) from error


class FaultyEffects(CountingEffects):
    """Performs steps until the fault's step comes."""

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self._fault = fault
        self._seen = 0
        self._acting: Counter[int] = Counter()
        self._changed = threading.Condition()

    def perform(self, step: Step, subject: str, action: Callable[[], T]) -> T:
        with self._changed:
            hit = step is self._fault.step and self._fault.subject in (None, subject)
            self._seen += hit
            is_due = hit and self._seen == self._fault.nth
        if is_due and self._fault.before:
            self._strike(subject)
        this_thread = threading.get_ident()
        with self._changed:
            self._acting[this_thread] += 1
        try:
            result = super().perform(step, subject, action)
        finally:
            with self._changed:
                self._acting[this_thread] -= 1
                self._changed.notify_all()
        if is_due and not self._fault.before:
            self._strike(subject)
        return result

    def _strike(self, subject: str) -> None:
        if self._fault.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self._fault.kind == "pause":
            with self._changed:
                this_thread = threading.get_ident()
                self._changed.wait_for(
                    lambda: not any(count for thread, count in self._acting.items() if thread != this_thread)
                )
                # Sent to this thread, not to the process: another thread may receive that one, and this
                # thread would go on until the scheduler runs the other.
                signal.pthread_kill(this_thread, signal.SIGSTOP)
        else:
            raise CommitOutcomeUnknownError(
                "COMMIT_OUTCOME_UNKNOWN", f"The answer of {self._fault.step} on {subject} was lost"
            )


def effects_from_environment() -> DirectEffects | CountingEffects:
    """Direct effects, or faulty ones if `TAUTOCHRONE_FAULT` is set."""
    text = os.environ.get(FAULT_VARIABLE)
    return FaultyEffects(Fault.parse(text)) if text else DirectEffects()

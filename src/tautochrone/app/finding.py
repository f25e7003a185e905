"""The result of one check of `taut doctor`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from tautochrone.errors import TautochroneError

__all__ = ["Finding", "State", "check", "skipped"]


class State(StrEnum):
    """`SKIPPED`: it cannot be checked, or there is nothing to check; its finding says why."""

    OK = "ok"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check. A failed one has an error class in `error`, and a hint."""

    check: str
    state: State
    detail: str
    error: str | None = None
    hint: str | None = None


def check(name: str, run: Callable[[], str]) -> Finding:
    """Run one check: what it returns is the detail of an OK finding, what it raises makes a failed one."""
    try:
        return Finding(check=name, state=State.OK, detail=run())
    except TautochroneError as error:
        location = f" ({error.location})" if error.location else ""
        return Finding(
            check=name,
            state=State.FAILED,
            detail=f"{error.message.rstrip('.')}{location}",
            error=error.error_class,
            hint=error.hint or "see `docs/settings.md` for what this check reads",
        )
    except Exception as error:
        # A defect of one check must not end the others.
        return Finding(
            check=name,
            state=State.FAILED,
            detail=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}",
            error="UNEXPECTED",
            hint="run again with --debug; when this is no fault of the machine, report it",
        )


def skipped(name: str, reason: str) -> Finding:
    """The finding of a check that was not run."""
    return Finding(check=name, state=State.SKIPPED, detail=reason)

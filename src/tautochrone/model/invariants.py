"""Invariants: queries over several tables that must return no row, else a checkpoint is not published."""

from __future__ import annotations

from dataclasses import dataclass

from tautochrone.errors import InvariantError
from tautochrone.model.names import TableName

__all__ = ["BrokenInvariant", "InvariantEntry"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InvariantEntry:
    """An invariant as the topology records it, with the job that checks it.

    `location` is its file, `definition` the fingerprint of its query, `tables` what it reads,
    clocks included.
    """

    name: str
    location: str
    definition: str
    tables: frozenset[TableName]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenInvariant:
    """What an invariant said of a checkpoint that was not published.

    `rows` counts the rows that break it, `at_least` when counting stopped there; `sample` is a few of them as
    text. With `problem` the query failed, so that nothing is known of its rows.
    """

    name: str
    location: str
    rows: int
    at_least: bool = False
    sample: tuple[str, ...] = ()
    problem: str | None = None

    @property
    def error(self) -> str:
        """One sentence with the error class, without any row."""
        return str(self._as_error())

    def _as_error(self) -> InvariantError:
        if self.problem is not None:
            return InvariantError(
                "INVARIANT_FAILED",
                f"The invariant {self.name} could not be checked: {self.problem}",
                location=self.location,
                hint="correct the query or the data; until then readers stay at the checkpoint before",
            )
        count = f"{'at least ' if self.at_least else ''}{self.rows:,} {'row' if self.rows == 1 else 'rows'}"
        return InvariantError(
            "INVARIANT_BROKEN",
            f"The invariant {self.name} returned {count} instead of none",
            location=self.location,
            hint="`taut checkpoints --json` has some of the rows; correct the data, until then "
            "readers stay at the checkpoint before",
        )

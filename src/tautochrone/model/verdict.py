"""The answer of a verification: what `runtime.views.verify` finds, a service sends and a client receives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tautochrone.model.names import CheckpointNumber, TableName
from tautochrone.model.query import QueryRunner

__all__ = ["Verdict", "Verification", "Verifier"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One view's answer. `equal` is None when the question has no answer, and `reason` says why.

    `missing` rows are in the recomputation and not in the view, `unexpected` ones the other way round.
    """

    dataset: TableName
    checkpoint: CheckpointNumber | None
    equal: bool | None
    missing: int
    unexpected: int
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The verdicts of views, one after the other as they are found.

    Attributes:
        named: the datasets that were asked for by name; empty: all views are verified.
        verdicts: may raise what `Verifier.verify` raises.
        stop: ends a verdict that is being computed, from another thread; the next one is not begun.
    """

    named: Sequence[TableName]
    verdicts: Iterator[Verdict]
    stop: Callable[[], None] = lambda: None


@runtime_checkable
class Verifier(QueryRunner, Protocol):
    """Answers queries, and recomputes the views of the job that it is part of."""

    def verify(self, names: Sequence[str], checkpoint: int | None) -> Verification:
        """Begin to recompute views; see `runtime.views.verify`.

        Args:
            names: as people type them; none: all views.
            checkpoint: None: each view at the newest one where it is complete.

        Raises:
            DefinitionError: a name is no dataset.
            CheckpointUnavailableError: it is no published checkpoint.
            QueryError: `TOO_MANY_QUERIES` (retryable).
        """

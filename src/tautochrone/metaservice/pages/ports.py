"""The protocols behind the forms of the pages: running queries and revisions. Either may be missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tautochrone.model.checkpoint import Consistency
from tautochrone.model.revision import RevisionPlan
from tautochrone.runtime.revision.plan import RevisionRequest

__all__ = ["Answer", "Forms", "Revisions", "Runner"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The first rows of a query's result, each value as text (None: NULL; a text that is cut ends with `…`).

    `checkpoint` was read; None: the newest version of each table. `more`: there are more rows than these.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str | None, ...], ...]
    checkpoint: int | None
    more: bool


class Runner(Protocol):
    """Runs queries that only read."""

    @property
    def started(self) -> bool:
        """Whether Spark runs already; if not, the first query starts it."""

    def run(self, sql: str, consistency: Consistency, checkpoint: int | None, limit: int) -> Answer:
        """At most `limit` rows of a query, at one checkpoint or at the newest version of each table.

        Raises:
            QueryError: the query is wrong, would write (`QUERY_NOT_READ_ONLY`) or took too long.
            CheckpointUnavailableError: no such checkpoint.
        """


class Revisions(Protocol):
    """Plans and executes revisions."""

    def plan(self, request: RevisionRequest) -> RevisionPlan:
        """What the revision would do; changes nothing.

        Raises:
            TautochroneError: it is not possible.
        """

    def carry_out(self, request: RevisionRequest, accepted: RevisionPlan) -> str:
        """Execute the accepted plan. Returns the revision's id when all tables are taken back.

        Raises:
            TautochroneError: nothing was taken back.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Forms:
    """What the forms use: `runner` for queries and previews. `unavailable_reason` says why there is none."""

    runner: Runner | None = None
    revisions: Revisions | None = None
    unavailable_reason: str = ""

"""What the pages need of others and may have to do without: somebody who queries, somebody who revises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tautochrone.model.checkpoint import Consistency
from tautochrone.model.revision import RevisionPlan
from tautochrone.runtime.revision.plan import RevisionRequest

__all__ = ["Answer", "Forms", "Revisions", "Runner"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The first rows of a query's answer, each value as text (None is NULL; `…` ends a long one).

    `checkpoint` is where it was read; None for the newest version of each table. `more`: there are rows
    beyond these.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str | None, ...], ...]
    checkpoint: int | None
    more: bool


class Runner(Protocol):
    """Answers queries that only read."""

    @property
    def started(self) -> bool:
        """Whether Spark runs already; if not, the first query starts it."""

    def run(self, sql: str, consistency: Consistency, checkpoint: int | None, limit: int) -> Answer:
        """At most `limit` rows of a query, at one checkpoint or at the newest version of each table.

        Raises:
            QueryError: the query is wrong, it would write (`QUERY_NOT_READ_ONLY`), or it took too long.
            CheckpointUnavailableError: no such checkpoint.
        """


class Revisions(Protocol):
    """Plans revisions and carries them out."""

    def plan(self, request: RevisionRequest) -> RevisionPlan:
        """What the revision would do; changes nothing.

        Raises:
            TautochroneError: it cannot be done, and why.
        """

    def carry_out(self, request: RevisionRequest, accepted: RevisionPlan) -> str:
        """Do what was accepted, and return the revision's id when all tables are taken back.

        Raises:
            TautochroneError: nothing was taken back, and why.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Forms:
    """Who stands behind the forms: `runner` behind queries and previews. `why_not`: why nobody does."""

    runner: Runner | None = None
    revisions: Revisions | None = None
    why_not: str = ""

"""`store.revisions`. Revisions: decided in one transaction, carried out by the jobs, then confirmed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from tautochrone.meta.protocols.marks import reads, writes
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.revision import Revision, RevisionPlan, RevisionState

__all__ = ["Revisions"]


class Revisions(Protocol):
    """Revisions: decided in one transaction, carried out by the jobs, then confirmed."""

    @writes
    def decide(self, revision: str, plan: RevisionPlan, fences: Mapping[str, Fence]) -> Revision:
        """Record the decision and revoke checkpoints, in one transaction. Repeatable.

        Args:
            revision: a new id.
            plan: what to do with each table.
            fences: by job of the plan the fence with which the caller took it over.

        Returns:
            The decided revision. Its plan names exactly the checkpoints that were revoked.

        Raises:
            FencedError: a job was taken over meanwhile; nothing happened.
            CheckpointUnavailableError: the checkpoint that should stay is not readable (any more).
            MetaError: `REVISION_PENDING`, another one has to be finished first.
            ConflictError: `REVISION_PLAN_CHANGED`, a table of the plan has another job, or a reader that
                the plan does not know.
        """

    @writes
    def complete(self, revision: str) -> None:
        """Record that all tables are taken back. Repeatable."""

    @writes
    def confirm(self, revision: str) -> None:
        """Record that the revision's tags in the lake are deleted. Repeatable."""

    @reads
    def get(self, revision: str) -> Revision:
        """One revision.

        Raises:
            MetaError: `REVISION_NOT_FOUND`.
        """

    @reads
    def find(self, states: Collection[RevisionState] = ()) -> tuple[Revision, ...]:
        """The revisions in one of these states (or all), oldest first."""

    @reads
    def pending(self, job: str) -> tuple[Revision, ...]:
        """Decided and unfinished revisions that change a table of the job."""

    @reads
    def newest_decision(self) -> int:
        """When the newest revision was decided, in epoch milliseconds; 0 for none."""

    @reads
    def decided_after(self, at_ms: int) -> tuple[Revision, ...]:
        """The revisions decided after `at_ms` (epoch milliseconds), oldest first."""

    @reads
    def published_after(self, number: int, jobs: Iterable[str]) -> tuple[CheckpointNumber, ...]:
        """The readable checkpoints of these jobs that a revision to `number` would revoke, oldest first."""

    @reads
    def last_complete(
        self, number: int, tables: Iterable[TableName]
    ) -> dict[TableName, tuple[CheckpointNumber, Version]]:
        """By table the newest checkpoint up to `number` that shows it, and its version there. Tables that no
        checkpoint shows are left out."""

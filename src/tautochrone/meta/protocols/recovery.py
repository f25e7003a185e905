"""`store.recovery`. A store that was lost or is an older copy, compared with what the lake's commits say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from tautochrone.meta.protocols.marks import reads, writes
from tautochrone.model.lake import CommitMetadata
from tautochrone.model.names import CheckpointNumber, TableName, Version

__all__ = ["Comparison", "Lake", "LakeVersion", "Reconciled", "Recovery", "StoreRelation"]


class StoreRelation(StrEnum):
    """What a store is to the lake's commit metadata: the one that they name, one without checkpoints, an
    older copy of one that they name, another one."""

    CURRENT = "current"
    EMPTY = "empty"
    RESTORED = "restored"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How the store stands to the lake; `table` and `reason` say by what that is seen."""

    relation: StoreRelation
    reason: str = ""
    table: TableName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled:
    """What became of the store. Numbers are of checkpoints; `last_number` is the highest that was given."""

    relation: StoreRelation
    reason: str
    incarnation: str
    last_number: int
    published: tuple[CheckpointNumber, ...] = ()
    revoked: tuple[CheckpointNumber, ...] = ()
    given_up: tuple[CheckpointNumber, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeVersion:
    """One commit of ours as the lake shows it; `commit_metadata` is None for a commit without one."""

    version: Version
    commit_metadata: CommitMetadata | None
    committed_at_ms: int

    @property
    def checkpoint(self) -> int | None:
        """The checkpoint that the commit was made for, if it is a derived one."""
        return None if self.commit_metadata is None else self.commit_metadata.checkpoint


Lake = Mapping[TableName, Sequence[LakeVersion]]
"""By table its commits, oldest first."""


class Recovery(Protocol):
    """A store that was lost or is an older copy, compared with what the lake's commits say."""

    @reads
    def is_empty(self) -> bool:
        """Whether the store never recorded a checkpoint."""

    @writes
    def rebuild(self, lake: Mapping[TableName, Sequence[LakeVersion]]) -> tuple[CheckpointNumber, ...]:
        """Fill an empty store from the lake; returns the checkpoints published again.

        Called when a run finds an empty store beside tables with commit metadata of ours. Filling it
        again from the same lake while nothing else happened (a lost answer) gives the same checkpoints
        again.

        Args:
            lake: for each table of ours, of all jobs that can be found, its commits, oldest first, newest
                last. External tables are known from their readers' inputs.

        Raises:
            MetaError: `META_STORE_NOT_EMPTY`.
        """

    @reads
    def compare(self, job: str, lake: Lake) -> Comparison:
        """Hold the store against the lake's commit metadata; changes nothing.

        Args:
            job: who asks. Tables of other jobs count as far as those are known here.
            lake: for each table of ours at least its newest commit metadata, as of `rebuild`.
        """

    @writes
    def reconcile(self, job: str, lake: Lake) -> Reconciled:
        """Bring a store that is an older copy, or another one, into agreement with the lake. Repeatable: a
        store that is in agreement is left as it is.

        Args:
            job: as of `compare`.
            lake: all commits of all tables, as of `rebuild`.

        Raises:
            MetaError: `JOB_NAME_TAKEN`, `DATASET_OWNED_BY_ANOTHER_JOB`; nothing was changed.
        """

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
    """How a store relates to the lake's commit metadata: it is the store that they name, one without
    checkpoints, an older copy of the store that they name, or another one."""

    CURRENT = "current"
    EMPTY = "empty"
    RESTORED = "restored"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How the store relates to the lake; `table` and `reason` say by which commit that was recognised."""

    relation: StoreRelation
    reason: str = ""
    table: TableName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled:
    """The result of `reconcile`. Numbers are those of checkpoints; `last_number` is the highest ever given,
    `given_up` are open checkpoints that were aborted."""

    relation: StoreRelation
    reason: str
    incarnation: str
    last_number: int
    published: tuple[CheckpointNumber, ...] = ()
    revoked: tuple[CheckpointNumber, ...] = ()
    given_up: tuple[CheckpointNumber, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeVersion:
    """One commit of a table; `commit_metadata` is None for a commit that Tautochrone did not make."""

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
        """Fill an empty store from the lake's commit metadata.

        Called when a run finds an empty store and tables with commit metadata. A repeated call (a lost
        answer) returns the same checkpoints, unless something was recorded in between.

        Args:
            lake: by table of all known jobs its commits, oldest first. Versions of external tables are read
                from the inputs that these commits name.

        Returns:
            The numbers of the checkpoints that are published again, in order.

        Raises:
            MetaError: `META_STORE_NOT_EMPTY`.
        """

    @reads
    def compare(self, job: str, lake: Lake) -> Comparison:
        """Compare the store with the lake's commit metadata.

        Args:
            job: the job that asks. Tables of other jobs count only if this store knows those jobs.
            lake: as in `rebuild`, with at least the newest commit of each table.
        """

    @writes
    def reconcile(self, job: str, lake: Lake) -> Reconciled:
        """Bring a store that is an older copy, or another one, into agreement with the lake. Repeatable: a
        store that agrees is not changed.

        Args:
            job: as in `compare`.
            lake: as in `rebuild`, with all commits of all tables.

        Raises:
            MetaError: `JOB_NAME_TAKEN`, `DATASET_OWNED_BY_ANOTHER_JOB`; nothing was changed.
        """

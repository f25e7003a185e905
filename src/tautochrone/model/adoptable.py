"""The port of a lake table that somebody else made and that a pipeline takes over as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tautochrone.model.lake import CommitMetadata, Committed, Fork, TableDefinition
from tautochrone.model.names import TableName, Version

__all__ = ["AdoptableTable"]


class AdoptableTable(Protocol):
    """What can be asked of such a table, and the one commit that makes it ours."""

    @property
    def name(self) -> TableName: ...

    def fork(self) -> Fork:
        """As of `model.lake.LakeTable`."""

    def stream_batches(self) -> Mapping[str, int]:
        """The newest batch that each streaming query committed to main, by query id, as far as the table's
        history is kept. Only what Spark's own sink of the format wrote tells its query."""

    def has_read(self, offset: str, version: Version) -> bool:
        """Whether a stream of this table that stands at `offset`, in Spark's spelling, has read all rows up
        to `version`; False for offsets of anything else."""

    def adopt(self, fork: Fork, definition: TableDefinition, commit_metadata: CommitMetadata) -> Committed:
        """Make the table ours: the commit metadata, and the format version and properties that our own
        tables have. One catalog commit. Rows, files and versions stay; only a table without any version
        gets its first, empty one. Repeatable: older commit metadata of ours is replaced, nothing of it
        is carried forward.

        Raises:
            ConflictError: main moved since `fork`.
            FencedError: a newer owner is seen.
        """

"""The catalog of lake tables, as the commit protocol needs it. Tables are Iceberg; tests put others here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tautochrone.model.adoptable import AdoptableTable
from tautochrone.model.lake import CommitMetadata, LakeTable, Rows, TableDefinition
from tautochrone.model.names import TableName
from tautochrone.model.read_points import FullSnapshotRead

__all__ = ["Beginning", "LakeCatalog"]


@dataclass(frozen=True, slots=True)
class Beginning:
    """What the sources of a stream must be told so that it misses nothing."""

    offsets: Mapping[int, str]
    """Number of a source → the initial offset that it must be given."""
    whole: tuple[FullSnapshotRead, ...] = ()
    """Versions in which the stream stands and that it takes whole: its sources must be shown them so."""


class LakeCatalog(Protocol):
    """A catalog of lake tables of one format."""

    def exists(self, name: TableName) -> bool: ...

    def create(self, definition: TableDefinition, commit_metadata: CommitMetadata) -> LakeTable:
        """Create the table (and its namespace) with a first fence snapshot. Existing: returned."""

    def put_view_if_supported(self, name: TableName, query: str, schema: Any, fingerprint: str) -> bool:
        """Create or replace the persisted view `name` with `query`, unless it has this fingerprint already.

        Returns:
            False: the catalog has no views, nothing was done.
        """

    def load(self, name: TableName) -> LakeTable:
        """Raises TableMissingError when it is not there."""

    def adoptable(self, name: TableName) -> AdoptableTable:
        """A table as it is before we own it. Raises TableMissingError when it is not there."""

    def beginning(
        self,
        rows: Rows,
        remembered: Mapping[int, str],
        reached: Mapping[int, str],
        known: Sequence[FullSnapshotRead] = (),
    ) -> Beginning:
        """Where a stream begins.

        Only sources that expired versions would mislead are given offsets: a new stream would begin in
        the middle of a table, and one that goes on is refused when its first version is gone.

        Args:
            rows: the streaming query, its tables as they are.
            remembered: number of a source → the initial offset that it has written down.
            reached: number of a source → where the stream stands; empty for a new one.
            known: answers of before, whose manifests are still there.

        Raises:
            LakeError: `STREAM_HISTORY_EXPIRED`, a table that cannot be read from the beginning any more.
        """

    def tables(self) -> Sequence[TableName]:
        """All tables of the catalog, external tables included."""

    def folders(self) -> Mapping[TableName, str]:
        """Where each table of the catalog keeps its files, external tables included.

        Raises:
            LakeError: a table cannot be read.
        """

    def schema(self, name: TableName) -> Any:
        """The newest schema as a pyspark StructType."""

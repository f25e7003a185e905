"""The catalog of lake tables as the commit protocol needs it, tables that are taken over, and read points.

Tables are Iceberg; tests put others here. A table that somebody else made is taken over as it is.

A read point is a name for the versions of all tables that one reader sees: `strong` (the newest published
checkpoint), `weak` (each table at its newest version), `checkpoint-42`, or a name that this process
registered with a `Lookup` of its own. The read-only REST catalog serves each read point as a warehouse.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Protocol

from tautochrone.model.dataset_change import StoredTable
from tautochrone.model.lake import CommitMetadata, Committed, Fork, LakeTable, Rows, TableDefinition
from tautochrone.model.names import Fence, TableName, Version
from tautochrone.model.project_build import BuildableTable

__all__ = [
    "NEWEST",
    "AdoptableTable",
    "Beginning",
    "FullSnapshotRead",
    "LakeCatalog",
    "Lookup",
    "ReadPointServer",
    "Streamed",
    "Unwritten",
    "Widened",
    "job_read_point",
]


NEWEST = "newest"
"""What a `Lookup` answers for a table that it does not care about: its newest version."""


@dataclass(frozen=True, slots=True)
class FullSnapshotRead:
    """A version of which a stream takes all rows, and not only those that it added."""

    version: Version
    files: int
    """Data files of the table at the version."""
    manifests: str | None = None
    """Location of a list of them that remembers no deleted files; None: the version's own does."""


@dataclass(frozen=True, slots=True)
class Streamed:
    """A table as a stream is shown it: the versions that it takes whole as appends of all their files.

    Iceberg's source asks a version what it added even where it is told to take everything.
    """

    version: Version | str
    whole: tuple[FullSnapshotRead, ...]
    folder: str
    """Where the metadata files go that are written for this stream alone."""


@dataclass(frozen=True, slots=True)
class Widened:
    """A version of a table with columns that it does not have yet: they are NULL in its rows."""

    version: Version
    columns: str
    """All columns, as the JSON of an Iceberg schema."""


@dataclass(frozen=True, slots=True)
class Unwritten:
    """A table that does not exist yet: it has columns and no row."""

    metadata: str
    """As JSON, what it would be created with."""


Lookup = Callable[[TableName], Version | str | Streamed | Widened | Unwritten | None]
"""From a table to its version at the read point; None: it has none there."""


class ReadPointServer(Protocol):
    """Serves read points as a read-only Iceberg REST catalog."""

    @property
    def uri(self) -> str: ...

    def show(self, read_point: str, lookup: Lookup) -> None:
        """Make an internal read point readable; asked anew at each table load."""


def job_read_point(purpose: str, job: str) -> str:
    """The read point that a job registers for one of its purposes.

    Iceberg's REST client puts a read point into URLs as it is, so a name with other characters than
    letters, digits, `-` and `_` is replaced by its digest.

    >>> job_read_point("refresh", "orders")
    'refresh-orders'
    """
    plain = re.fullmatch(r"[A-Za-z0-9_-]{1,100}", job)
    return f"{purpose}-{job}" if plain else f"{purpose}.{sha256(job.encode()).hexdigest()[:32]}"


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

    def stored_table(self, name: TableName) -> StoredTable:
        """Where a table is. Raises TableMissingError when it is not there."""

    def bytes_of(self, stored: StoredTable) -> int | None:
        """The bytes of all its files; None: the storage does not tell."""

    def drop(self, stored: StoredTable) -> None:
        """Take the table out of the catalog; another one of its name, and its files, stay. Repeatable."""

    def delete_files(self, stored: StoredTable) -> TableName | None:
        """Delete the files of a table that has left the catalog. Repeatable.

        Returns:
            The name by which the catalog has this very table all the same, because somebody gave it another
            one: nothing was deleted.
        """

    def release(self, stored: StoredTable, fence: Fence) -> None:
        """Make the table one of nobody: it keeps rows and versions and loses the commit metadata. Another
        one of its name stays as it is. Repeatable.

        Raises:
            FencedError: a newer owner is seen.
        """

    def require_renaming(self) -> None:
        """Raises LakeError, `CATALOG_CANNOT_RENAME`, where tables cannot get other names."""

    def rename(self, stored: StoredTable, new: TableName) -> None:
        """Give the table another name; its files stay where they are. Repeatable.

        Raises:
            LakeError: `RENAME_TARGET_EXISTS`, another table has the new name.
        """

    def buildable(self, name: TableName) -> BuildableTable:
        """A table of which rows are built beside main."""

    def adoptable(self, name: TableName) -> AdoptableTable:
        """A table as it is before we own it. Raises TableMissingError when it is not there."""

    def beginning(
        self,
        rows: Rows,
        initial_offsets: Mapping[int, str],
        current_offsets: Mapping[int, str],
        known: Sequence[FullSnapshotRead] = (),
    ) -> Beginning:
        """Where a stream begins.

        Only sources that expired versions would mislead are given offsets: a new stream would begin in
        the middle of a table, and one that goes on is refused when its first version is gone.

        Args:
            rows: the streaming query, its tables as they are.
            initial_offsets: number of a source → the initial offset that it has written down.
            current_offsets: number of a source → where the stream stands; empty for a new one.
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

"""The commit protocol of a lake table in types, and what is asked of a table to stay small.

The protocol is `fork → stage → prepare → commit`, each step repeatable.

1. `fork()` reads the table's metadata once: main, fence, positions. Everything after it is built
   on exactly that version, never on "current".
2. `stage(fork, rows)` writes data files. They belong to no version yet; a crash leaves orphans only.
3. `prepare(fork, staged, commit_metadata)` makes the batch durable beside main, with its commit
   metadata: from now on it can be committed without its source (*recommit*).
4. `commit(prepared)` moves main from the forked version to the prepared one, in one catalog commit.
   `commit_staged` is 3 and 4 in one for work that can be computed again.

A commit fails with `ConflictError` only when main moved, with `FencedError` when a newer owner is
seen, with `CommitOutcomeUnknownError` when the catalog gave no answer; `outcome(prepared)` resolves
the last one by reading the table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tautochrone.model.foreign import Followed, ForeignTable
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.reason import Reason
from tautochrone.model.source_position import SourcePosition

__all__ = [
    "FILE_COLUMN",
    "NO_VERSION",
    "POSITION_COLUMN",
    "RESERVED_COLUMNS",
    "AppendedRows",
    "ChangeKind",
    "CollectedChange",
    "ColumnStatistics",
    "CommitMetadata",
    "Committed",
    "Compacted",
    "DataFile",
    "DeletionVector",
    "Dropped",
    "Expired",
    "Fork",
    "LakeTable",
    "Orphans",
    "Outcome",
    "Prepared",
    "ReadableTable",
    "Retention",
    "RowChange",
    "Rows",
    "Staged",
    "TableChange",
    "TableDefinition",
    "TableVersion",
    "TaskStage",
    "TaskWriter",
    "VersionFiles",
    "local_folder",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Which versions of a table somebody may still need.

    `readable` are versions that must stay, each on its own. `followed` are versions from which a reader
    still has to get to main: everything between the oldest of them and main stays too. So does what was
    committed at `after_ms` (epoch milliseconds) or later. Versions that the table does not have are ignored.
    """

    readable: frozenset[Version] = frozenset()
    followed: frozenset[Version] = frozenset()
    after_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """What left a table: its number of versions, and of files that only these had."""

    table: TableName
    versions: int = 0
    files: int = 0
    kept: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """Files that were rewritten, as how many, and their bytes before. No version: nothing was worth it."""

    table: TableName
    version: Version | None = None
    files_before: int = 0
    files_after: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """Files that left the newest version of a log table, and their rows."""

    table: TableName
    version: Version
    files: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphans:
    """Files in a table's folder that nothing refers to, as their locations in order, and their bytes."""

    table: TableName
    files: tuple[str, ...] = ()
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitMetadata:
    """What a commit says about itself. Carried in the commit, positions carried forward for ever.

    `inputs` maps each input table to its version (derived datasets only), `companions` maps
    companion tables to the snapshot ids that belong to this commit. `reset` forgets the positions of
    earlier commits (a full refresh) instead of carrying them forward. `violations` are of the table's
    expectations, by name, as `model.definitions.ExpectationCount` counts them.

    `run` and `runs` are of a view's state only: the sequence number of its newest run, which grows along the
    whole history of the table, and how many runs were added since they were last folded into one.
    `shortened` are the relations of which rows of a log table were dropped.
    `revoked` are the ranges of checkpoints that revisions took back, after the first number, to the second.
    `renames` has the renames before this commit in order, each with the new names of tables and flows by the
    old ones: what an older commit names is called after those that it does not know.
    `built` is the version with the rows of this commit that a plan's build made beside main.
    """

    pipeline: str
    job: str
    fence: Fence
    store: str
    checkpoint: CheckpointNumber | None = None
    mode: str | None = None
    definition: str | None = None
    positions: Mapping[str, SourcePosition] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    companions: Mapping[str, str] = field(default_factory=dict)
    violations: Mapping[str, int] = field(default_factory=dict)
    reset: bool = False
    run: int | None = None
    runs: int | None = None
    shortened: tuple[str, ...] = ()
    revoked: tuple[tuple[int, int], ...] = ()
    renames: tuple[Mapping[str, str], ...] = ()
    built: Version | None = None


@dataclass(frozen=True, slots=True)
class AppendedRows:
    """Rows that came to a table.

    Attributes:
        counts: their number by the value of a column.
        bytes: of all of them in memory; None: more than was asked for.
    """

    counts: Mapping[str | None, int]
    bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedChange:
    """The rows that came and went between two versions, as Arrow tables with the table's newest columns.

    Their columns are of the types that `toArrow` of a DataFrame of the table gives. None means no rows of
    that sign. The same row may be in both, as in `RowChange`.
    """

    added: Any = None
    removed: Any = None


class TaskWriter(Protocol):
    """Writes rows within a task of Spark, to which it is sent.

    Attributes:
        schema: of the rows, as a pyarrow Schema.
        files_schema: of the batches that it gives, as Spark's DDL: `location` of a file.
    """

    @property
    def schema(self) -> Any: ...

    @property
    def files_schema(self) -> str: ...

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Takes all batches of a task, as pyarrow's record batches, and gives some that name its files."""

    def remove_files(self) -> None:
        """Delete what tasks wrote, on the driver, when not all of them succeed."""


NO_VERSION = Version("-1")
"""Of a table to which nobody has committed yet. Iceberg spells it so."""

FILE_COLUMN, POSITION_COLUMN = "_file", "_pos"
"""Columns that every read of a lake table has besides the user's: the data file of a row, and its position
in it. Together they locate one copy of a row."""

RESERVED_COLUMNS = frozenset(
    {
        FILE_COLUMN, POSITION_COLUMN, "_partition", "_spec_id", "_deleted", "_row_id",
        "_last_updated_sequence_number",
    }
)  # fmt: skip
"""Names that no column of a table can have: reads give them to metadata of a row."""

Rows = Any
"""A pyspark DataFrame. The model must not import Spark, so the port cannot name the type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """The table as one read of its metadata showed it. `handle` belongs to the adapter.

    `commit_metadata` is the newest commit metadata of ours on main (None for a table that we never
    wrote); its positions hold every flow, not only those of the last commit.
    """

    table: TableName
    version: Version
    fence: Fence
    commit_metadata: CommitMetadata | None
    handle: Any = field(repr=False, compare=False, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """Data files that belong to no version yet, with their total row count.

    `at_ms` (epoch milliseconds) lies before the first of them was begun: see `LakeTable.remove_orphans`.
    `left_to_spark` says why Spark wrote rows that this process was asked to write.
    """

    table: TableName
    files: Sequence[Any] = field(repr=False)
    rows: int
    at_ms: int
    left_to_spark: Reason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A batch that is durable beside main: `version` sits on a branch whose parent is `parent`."""

    table: TableName
    parent: Version
    version: Version
    branch: str
    commit_metadata: CommitMetadata
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """Main stands at `version`."""

    table: TableName
    version: Version
    parent: Version | None
    rows_inserted: int = 0
    rows_deleted: int = 0


class Outcome(StrEnum):
    """What became of a commit whose answer was lost."""

    COMMITTED = "committed"
    PENDING = "pending"
    LOST = "lost"


class ChangeKind(StrEnum):
    """How a table got from one version to another."""

    NONE = "none"
    APPEND = "append"
    CHANGED = "changed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChange:
    """The kind of change between two versions, and the reason.

    `NONE` covers commits that move no rows (fences, compactions), except that new columns count as
    `APPEND`: readers must move on to a version that has them. `UNKNOWN` means that the chain
    between the versions cannot be proven: expired, rolled back or replaced; or that a name stands for another
    column than before, so that all rows are others although no commit says so.

    Attributes:
        appended: whoever only takes new rows, and looks at no others again, may go on.
    """

    kind: ChangeKind
    reason: Reason
    appended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChange:
    """The rows that came and went between two versions, as DataFrames with the table's newest columns.

    None means no rows of that sign. The same row may be in both: whoever needs the net change takes
    one from the other as multisets. `rows` is an upper bound of both together, known without reading; it may
    be far too high when `carried`: of rewritten data files, it counts the rows that were only carried over.
    The frames stay valid as long as anybody holds them or a frame made from them.
    """

    added: Rows | None = None
    removed: Rows | None = None
    rows: int = 0
    carried: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDefinition:
    """What a table is created as. `schema` is a pyspark StructType; properties are the user's own."""

    name: TableName
    schema: Any
    comment: str | None = None
    partition_columns: tuple[str, ...] = ()
    cluster_columns: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A data file of a version.

    Attributes:
        location: as the table's metadata has it.
        path: on this machine; None: it is in another kind of storage.
        format: `PARQUET`, `AVRO` or `ORC`.
        rows: deleted ones included.
        deletes: names its deleted rows: equal texts mean the same rows. Empty: none are deleted.
        sequence: numbers commits of the table in their order. All rows of the file were there at this one: a
            file into which others were merged has the number of the commit at which they were read.
    """

    location: str
    path: Path | None
    format: str
    bytes: int
    rows: int
    encrypted: bool
    deletes: str
    sequence: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnStatistics:
    """What is known of the values of a column in a data file, deleted rows included. None: it is not known.

    Attributes:
        nulls, nans: numbers of rows.
        lower, upper: bounds of the values that are neither NULL nor NaN, as Iceberg's JSON of a single value.
            Those of texts and bytes may be shortened.
    """

    nulls: int | None
    nans: int | None
    lower: Any
    upper: Any


@dataclass(frozen=True, slots=True)
class DeletionVector:
    """Deleted positions of a data file.

    Attributes:
        positions: their number.
        content: a length, a magic number, a 64-bit Roaring bitmap in its portable form, and a check sum: what
            deletion vectors of Iceberg and of Delta have in common. Empty without positions.
    """

    positions: int
    content: bytes


def local_folder(location: str) -> Path | None:
    """The folder or file of a location on this machine; None for other kinds of storage.

    Hadoop takes a location as it is written: `%20` and `#` are characters of a name.

    >>> local_folder("file:///a%20b/c#1"), local_folder("/a:b"), local_folder("s3://bucket/a")
    (PosixPath('/a%20b/c#1'), PosixPath('/a:b'), None)
    """
    scheme, colon, path = location.partition(":")
    if not colon or "/" in scheme:
        return Path(location)
    if scheme.lower() != "file":
        return None
    if path.startswith("//"):
        _authority, _slash, path = path.removeprefix("//").partition("/")
        path = f"/{path}"
    return Path(path)


class VersionFiles(Protocol):
    """The data files of a version of a table. Deleted rows are read only where they are asked for."""

    @property
    def table(self) -> TableName: ...

    @property
    def version(self) -> Version: ...

    @property
    def columns(self) -> Sequence[Mapping[str, Any]]:
        """Of the version, each as Iceberg's JSON of a schema has a field."""

    @property
    def files(self) -> Mapping[str, DataFile]:
        """By location."""

    def statistics(self, locations: Sequence[str]) -> Sequence[Mapping[int, ColumnStatistics]]:
        """By id of the column, of each of these files."""

    def deletion_vectors(self, locations: Sequence[str]) -> Sequence[DeletionVector]:
        """Of each of these files.

        Raises:
            LakeError: `ROWS_DELETED_BY_VALUE`, positions do not tell which rows of a file are deleted.
        """


class ReadableTable(Protocol):
    """What can be asked of versions that are there."""

    @property
    def name(self) -> TableName: ...

    def change_between(self, old: Version, new: Version) -> TableChange:
        """Classify what happened between two versions of main."""

    def changed_rows(self, session: Any, old: Version, new: Version) -> RowChange:
        """The rows that came and went between two versions of main, at the cost of the change.

        Raises:
            HistoryLostError: what happened between the versions is unknown.
        """

    def row_count(self, version: Version) -> int | None:
        """The number of rows at a version from metadata alone; None when metadata cannot tell."""

    def read(self, session: Any, version: Version) -> Rows:
        """All rows at a version, as a DataFrame of `session`."""


class TableVersion(NamedTuple):
    """One version of a table's main branch. `commit_metadata` is None if Tautochrone did not commit it."""

    version: Version
    commit_metadata: CommitMetadata | None
    committed_at_ms: int


class LakeTable(ReadableTable, Protocol):
    """One table of one format. See the module docstring for the order of calls."""

    def common_ancestor(self, first: Version, second: Version) -> Version | None:
        """The newest version from which both came; None when history does not lead that far back."""

    def files_at(self, version: Version) -> VersionFiles:
        """The data files of a version."""

    def schema_at(self, version: Version) -> Any:
        """The columns of a version, as a pyspark StructType; those of main for the version without rows."""

    def columns_lost(self, old: Version, new: Version) -> Sequence[str]:
        """Columns of the newer version of which the changes between the two do not tell all values: the
        table has dropped, renamed or retyped them since, or the older version has another column of the name.
        Changes are read with the columns that the table has now."""

    def read_options(self, old: Version, new: Version) -> Mapping[str, str]:
        """Spark read options that show only the rows appended between two versions; only valid when
        the change between them is `APPEND`."""

    def appended_rows(self, old: Version, new: Version, column: str, max_bytes: int) -> AppendedRows | Reason:
        """The rows that were appended between two versions by the values of a text column, counted without a
        Spark job; or why only Spark counts them. Only valid when the change between them is `APPEND`.

        Their bytes are counted up to `max_bytes`, which reads all columns; with 0 only that column is read.
        """

    def collected_change(self, old: Version, new: Version) -> CollectedChange | Reason:
        """`changed_rows` as Arrow tables that this process reads from the data files, without a Spark job; or
        why only Spark reads them.

        Raises:
            HistoryLostError: what happened between the versions is unknown.
        """

    def fork(self) -> Fork:
        """Read the table's metadata once, fresh from the catalog."""

    def stage(self, fork: Fork, rows: Rows, *, local: bool = False, is_observed: bool = False) -> Staged:
        """Write `rows` as data files of the table, without any catalog commit.

        `local` says that the rows are few and their plan is a local relation: then the process itself
        writes the file, without a Spark job, when it can. The rows are the same either way;
        `Staged.left_to_spark` says why Spark wrote them.

        `is_observed` says that Spark counts while it computes the rows: then each is computed once. The rows
        of a table that is clustered are then sorted within each file, not from file to file.
        """

    def stage_arrow(self, fork: Fork, rows: Any) -> Staged | Reason:
        """The same for an Arrow table with the columns of the table, without Spark; or why only Spark can
        write them."""

    def arrow_obstacle(self, fork: Fork) -> Reason | None:
        """Why `stage_arrow` writes no rows of the table, whatever they are; None: it writes them."""

    def task_writer(self, fork: Fork, columns: Sequence[str] | None = None) -> TaskWriter | Reason:
        """Lets Spark's tasks write Arrow batches with these columns, or with the table's own, themselves; or
        why Spark must."""

    def stage_task_files(self, fork: Fork, writer: TaskWriter, files: Rows) -> Staged:
        """Compute a DataFrame of what a `task_writer` gives: its files are data files of the table, without
        any catalog commit."""

    def files_taken(self, fork: Fork, since_ms: int) -> Reason | None:
        """Why files that were staged since a time may be the table's own; None: it got no rows since."""

    def files_by_name(self, fork: Fork, names: Sequence[str], at_ms: int | None) -> Staged | Reason:
        """Files that were staged at `at_ms` (None: now) or later, in the order of their names; or why they
        cannot be had. The caller knows that the fork does not have them."""

    def columns_of(self, fork: Fork, staged: Staged, names: Sequence[str]) -> Sequence[Any] | Reason:
        """Columns of the table in each of the staged files, as Arrow tables, read without a Spark job; or why
        only Spark reads them."""

    def discard(self, staged: Staged) -> None:
        """Delete staged files at once."""

    def prepare(self, fork: Fork, staged: Sequence[Staged], commit_metadata: CommitMetadata) -> Prepared:
        """Append `staged` on a branch of their own that forks from `fork`. One catalog commit."""

    def prepared(self) -> Sequence[Prepared]:
        """Batches that were prepared and neither committed nor aborted."""

    def commit(self, prepared: Prepared, fence: Fence) -> Committed:
        """Move main from the parent to the prepared version, drop the branch. One catalog commit.

        Repeating it after it succeeded is a no-op that returns the same value. `fence` is that of the
        caller: it differs from that of the commit metadata when a new owner recommits what an older one
            prepared.
        """

    def abort(self, prepared: Prepared) -> None:
        """Drop the branch and delete the batch's files at once. Repeatable."""

    def commit_staged(
        self, fork: Fork, staged: Sequence[Staged], commit_metadata: CommitMetadata
    ) -> Committed:
        """Append staged files to main in one catalog commit."""

    def positions_of_keys(self, fork: Fork, keys: Any) -> Mapping[str, Sequence[int]] | Reason:
        """Where the rows with some keys are in the forked version, found without a Spark job: data file →
        positions, as `apply` takes them; or why only a query finds them.

        `keys` is an Arrow table of the key's columns, by name. NULL equals NULL.
        """

    def apply(
        self,
        fork: Fork,
        staged: Sequence[Staged],
        deletes: Mapping[str, Sequence[int]],
        commit_metadata: CommitMetadata,
    ) -> Committed:
        """Delete rows and append staged files in one catalog commit.

        `deletes` maps paths of data files to positions of rows in them, as `FILE_COLUMN` and
        `POSITION_COLUMN` of a read at the forked version give them. They may be of staged files too.

        Raises:
            LakeError: a file that the forked version has not, a position outside of its file, or a row
                that is deleted already; the table is left as it was.
        """

    def replace_rows(
        self, fork: Fork, staged: Sequence[Staged], commit_metadata: CommitMetadata
    ) -> Committed:
        """Replace all rows by the staged files in one catalog commit."""

    def replace_files(
        self, fork: Fork, paths: frozenset[str], staged: Sequence[Staged], commit_metadata: CommitMetadata
    ) -> Committed:
        """Replace the data files at `paths` by the staged ones in one catalog commit."""

    def redefine(
        self, fork: Fork, definition: TableDefinition, rows: Rows, commit_metadata: CommitMetadata
    ) -> Committed:
        """Give the table a new schema and these rows in one catalog commit; older versions stay
        readable with their own schema."""

    def follow(self, fork: Fork, foreign: ForeignTable, commit_metadata: CommitMetadata) -> Followed:
        """Bring the shadow table of a foreign table to its newest version, in one catalog commit; none if it
        is there already. Data files stay where they are, and nothing of them is read but their footers.

        Raises:
            ForeignTableError: the foreign table is not there, or cannot be followed.
        """

    def require_widenable(self, fork: Fork, schema: Any) -> bool:
        """Whether `widen` would change the table; raises `DefinitionError` where it would."""

    def widen(self, fork: Fork, schema: Any, commit_metadata: CommitMetadata) -> Sequence[str]:
        """Add the columns of `schema` that the table lacks, as nullable ones; the next version has them.
        Columns that only the table has stay. Answers the names of those added. Repeatable.

        Raises `DefinitionError` (`INCOMPATIBLE_SCHEMA_CHANGE`) for a type that the format cannot change.
        """

    def commit_metadata_only(self, fork: Fork, commit_metadata: CommitMetadata) -> Committed:
        """Record commit metadata (positions, inputs) without rows and without a new version."""

    def raise_fence(self, fork: Fork, commit_metadata: CommitMetadata) -> Committed:
        """Commit an empty snapshot that carries a higher fence: what older owners prepared is dead."""

    def outcome(self, expected: Version) -> Outcome:
        """After an unknown outcome: is `expected` in main's history, on a branch, or nowhere?"""

    def identity(self) -> str:
        """What tells the table from another one of the same name, for as long as it is there."""

    def current_version(self) -> Version:
        """Main's newest version, fresh from the catalog."""

    def last_commit_ms(self) -> int:
        """When anything of the table was last committed, fresh from the catalog: epoch ms of the writer."""

    def versions(self) -> Sequence[TableVersion]:
        """Main's history as far as it is kept, oldest first."""

    def tag(self, version: Version, name: str) -> None:
        """Keep a version from expiring under a name. Repeatable."""

    def tag_newest(self, version: Version, prefix: str, kept: int) -> None:
        """Tag a version under the prefix with the version behind it, and drop the tags with the prefix of the
        oldest versions when there are more than `kept`. Repeatable."""

    def untag(self, name: str) -> None:
        """Drop a tag. Repeatable."""

    def tags(self) -> Sequence[str]:
        """Names of all tags, those of older versions first."""

    def roll_back(self, version: Version, commit_metadata: CommitMetadata) -> Committed:
        """Move main back to a version that it `goes_back_to`."""

    def goes_back_to(self, version: Version) -> bool:
        """Whether main can be taken back to a version at which it stood once: it is kept, and main was not
        rolled back or replaced since, as far as its history tells."""

    def merged_commit_metadata_at(self, version: Version) -> CommitMetadata | None:
        """The commit metadata at a version that the table `goes_back_to`, merged over all commits up to
        it, so that it has the positions of all flows. None: none of our commits was made until then.

        Raises:
            HistoryLostError: `VERSION_NOT_IN_HISTORY`; `POSITIONS_LOST`, where a flow stood then was told
                by commits that are expired.
        """

    def companions_at(self, versions: Collection[Version]) -> Mapping[TableName, frozenset[Version]]:
        """The versions of companions that belong to these versions of the table."""

    def revert(self, version: Version, commit_metadata: CommitMetadata, tag: str) -> Committed:
        """Take main back to an older version, in one catalog commit.

        What main was gets the name `tag`. On top of the older version comes a new one without rows, so
        that whatever was forked or prepared before, even from that very version, is refused.
        `commit_metadata` is all that the table says from now on, nothing is carried forward. Repeating
        it is a no-op: the tag tells.

        Raises:
            LakeError: `VERSION_NOT_IN_HISTORY`.
            FencedError: a newer owner is seen.
        """

    def expire(
        self, retention: Retention, fence: Fence, *, at_least: int = 1, dry_run: bool = False
    ) -> Expired:
        """Remove the versions that nobody needs, then the files that only they had. One catalog commit.

        Main, tags and branches keep what they name. Main does not move: other writers are not disturbed.
        Fewer than `at_least` versions are not worth a commit and stay. A crash between the commit and the
        deletion of files leaves orphans, which no version reaches. Repeatable.

        Raises:
            FencedError: a newer owner is seen.
        """

    def compact(
        self,
        fork: Fork,
        commit_metadata: CommitMetadata,
        *,
        min_files: int,
        max_files: int,
        exclusive: AbstractContextManager[object],
    ) -> Compacted:
        """Rewrite small data files, and those with many deleted rows, into bigger ones. The rows stay the
        same, so there is no change to follow.

        Main may move meanwhile, but not away from the files that are rewritten.

        Args:
            commit_metadata: says nothing about rows or positions.
            min_files: fewer small files of a partition are left alone.
            max_files: about so many files are rewritten at a time.
            exclusive: entered for the commit; while it is held no other writer of the owner may be between
                reading main and moving it.

        Raises:
            ConflictError: a batch is prepared, or files of the fork are gone; the table is left as it was.
            FencedError: a newer owner is seen.
        """

    def files_before(self, version: Version, column: str, before_ms: int | None) -> Sequence[str]:
        """Data files of a version in which no row has a time of `column` at or after `before_ms` (epoch
        milliseconds), told from statistics alone. None if no file has an earlier time: then there are only
        rows without one. Without `before_ms` all files of the version; none while rows of them are deleted.
        """

    def drop_files(
        self,
        fork: Fork,
        paths: Collection[str],
        commit_metadata: CommitMetadata,
        *,
        exclusive: AbstractContextManager[object],
    ) -> Dropped | None:
        """Take data files out of the newest version of a log, in one catalog commit. Older versions keep
        them. For those who follow changes nothing happened, as after `compact`: their rows are those that
        came. So whoever reads the table as a whole must not rely on it.

        Args:
            paths: those that the forked version does not have are ignored; None if it has none.
            commit_metadata: says nothing about rows or positions.
            exclusive: see `compact`.

        Raises:
            ConflictError: a batch is prepared, or files of the fork are gone; the table is left as it was.
            FencedError: a newer owner is seen.
        """

    def remove_orphans(
        self, before_ms: int, fence: Fence, folders: Mapping[TableName, str], *, dry_run: bool = False
    ) -> Orphans:
        """Delete files in the table's folder that were last written before `before_ms` (epoch milliseconds)
        and that nothing refers to: no version that is there, no branch or tag, no prepared batch, no
        metadata file that readers may still ask for. They are what killed writers left.

        When there are any, the table is sealed first, by one catalog commit that moves nothing: from then
        on files that were staged before `before_ms` cannot be committed, however long their writer slept.
        So no file is lost to a writer that is slower than anybody thought.

        Args:
            folders: as `LakeCatalog.folders` answers.

        Raises:
            FencedError: a newer owner is seen.
            LakeError: `ORPHANS_UNKNOWN`, it cannot be told which files are the table's; none is deleted.
        """


@dataclass(frozen=True, slots=True)
class TaskStage:
    """Stages rows that tasks write themselves: see `LakeTable.stage_task_files`.

    Attributes:
        copies: by relation, what writes copied rows into files of another table. The rows that are staged
            name these files (`model.log_table`), which belong to no version of that table yet.
    """

    table: LakeTable
    fork: Fork
    writer: TaskWriter
    copies: Mapping[str, TaskWriter] = field(default_factory=dict)

    def __call__(self, files: Rows) -> Staged:
        return self.table.stage_task_files(self.fork, self.writer, files)

"""The values of a refresh: what it needs of the job, its task, its choice of a mode, its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from tautochrone.errors import RefreshError
from tautochrone.model.catalog import LakeCatalog
from tautochrone.model.checkpoint import NodeRefresh, Refresh, RefreshMode, RefreshPolicy
from tautochrone.model.definitions import Expectation
from tautochrone.model.events import EventsSetAside
from tautochrone.model.lake import ChangeKind, CommitMetadata, Fork, LakeTable, ReadableTable, TableDefinition
from tautochrone.model.names import CheckpointNumber, TableName, Version
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.project.definitions import Definitions
from tautochrone.project.graph import ResolvedFlow
from tautochrone.runtime.refresh.sessions import CheckpointViews

__all__ = [
    "Choice",
    "RefreshContext",
    "RefreshTask",
    "Refreshed",
    "no_data_refresh",
    "recovered_refresh",
    "refreshed_without_rows",
    "unchanged_refresh",
    "version_with_same_rows",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshContext:
    """What all refreshes of a job share.

    Attributes:
        base: the session that reads and writes the lake itself, not the lake at a checkpoint.
        definitions: of the project's datasets and views.
        views: the project's views at the open checkpoint.
        schemas: of all tables, as the lake stores them.
        load_table: any lake table, fresh from the catalog.
        load_input: the same, and the clocks that queries read like tables.
        table_definition: what a table of the job is created as.
        history: the newest refreshes of a dataset that did not fail, newest first.
        streams_from: the streaming tables that read a dataset, also through others, the nearest first.
    """

    base: SparkSession
    lake: LakeCatalog
    definitions: Definitions
    views: CheckpointViews
    schemas: Mapping[TableName, StructType]
    load_table: Callable[[TableName], LakeTable]
    load_input: Callable[[TableName], ReadableTable]
    table_definition: Callable[[TableName], TableDefinition]
    history: Callable[[TableName], Sequence[Refresh]]
    streams_from: Callable[[TableName], Sequence[TableName]]

    def changed_input_error(self, table: TableName, source: TableName, reason: object) -> RefreshError:
        """The error of a streaming table whose input did not only gain rows. Streaming tables that read the
        table would stop with the same error after it is rebuilt, so its hint names them too."""
        tables = ",".join(name.without_catalog for name in (table, *self.streams_from(table)))
        return RefreshError(
            "STREAM_INPUT_CHANGED",
            f"The streaming table {table} reads {source} as a stream, and {reason}",
            hint="a stream only takes appended rows; rebuild it and the streaming tables that read it: "
            f"taut run --full-refresh {tables}",
            sqlstate="55000",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshTask:
    """One dataset to refresh for one checkpoint.

    Attributes:
        table: the dataset's table.
        fork: one read of the table's metadata; a refresh commits on top of it.
        flows: those that write the table; a view has exactly one.
        checkpoint: the open checkpoint.
        cut_at_ms: its time, in epoch milliseconds.
        inputs: the version of each input at the checkpoint. An input without one is left out.
        last_versions: of all tables at the dataset's last complete checkpoint; empty if there is none.
        policy: the dataset's own, or the project's.
        is_full_requested: everything is to be computed anew, because a user asked for it.
        metadata: what the commit will say; its mode is set when one was chosen.
        location: where the dataset is defined, for error texts.
        applied: what gave the table the rows of a build just now; None: nothing did.
    """

    table: LakeTable
    fork: Fork
    flows: tuple[ResolvedFlow, ...]
    checkpoint: CheckpointNumber
    cut_at_ms: int
    inputs: Mapping[TableName, Version]
    last_versions: Mapping[TableName, Version] = field(default_factory=dict)
    policy: RefreshPolicy
    is_full_requested: bool = False
    metadata: CommitMetadata
    location: str
    applied: Refresh | None = None

    @property
    def name(self) -> TableName:
        return self.fork.table

    @property
    def flow(self) -> ResolvedFlow:
        """A view's only flow."""
        (flow,) = self.flows
        return flow

    @property
    def last_version(self) -> Version | None:
        """The version of the dataset that readers know; None if there is none."""
        return self.last_versions.get(self.name)

    @property
    def expectations(self) -> tuple[Expectation, ...]:
        """Of the dataset: all of its flows have them."""
        return self.flows[0].flow.expectations if self.flows else ()

    @property
    def violations_before(self) -> Mapping[str, int]:
        """What the newest commit counts of them."""
        metadata = self.fork.commit_metadata
        return {} if metadata is None else metadata.violations

    @property
    def has_rows_of_inputs(self) -> bool:
        """Whether the table's rows were made from the inputs by the definition, at whatever checkpoint."""
        last_commit = self.fork.commit_metadata
        return last_commit is not None and (
            last_commit.definition == self.metadata.definition
            and last_commit.inputs == {str(name): str(version) for name, version in self.inputs.items()}
        )

    @property
    def is_committed(self) -> bool:
        """Whether the table's rows are those of the task already. The checkpoint's number alone does not
        tell: it may be that of another store, or of another cut."""
        last_commit = self.fork.commit_metadata
        return last_commit is not None and (
            last_commit.checkpoint == self.checkpoint
            and last_commit.store == self.metadata.store
            and self.has_rows_of_inputs
        )

    def metadata_with(self, mode: RefreshMode) -> CommitMetadata:
        """What a commit by a refresh of this mode says."""
        return replace(self.metadata, mode=str(mode))


@dataclass(frozen=True, slots=True)
class Choice:
    """A mode with its reason; `ranges` holds (old, new) of each input whose rows changed.

    `estimate_ms` and `delta_rows` are for the refresh's record, `policy` tells what nodes may do.
    `stateless`: the next change will likely not be followed either, so nothing is kept for it.
    """

    mode: RefreshMode
    reason: Reason
    ranges: Mapping[TableName, tuple[Version, Version]] = field(default_factory=dict)
    estimate_ms: int | None = None
    delta_rows: int = 0
    policy: RefreshPolicy = RefreshPolicy.AUTO
    stateless: bool = False


@dataclass(frozen=True, slots=True)
class Refreshed:
    """The version that a dataset has for the checkpoint, and how it got there.

    `is_recovered`: an earlier run committed it and crashed before it recorded the version. `set_aside` tells
    of events that it left out.
    """

    version: Version
    refresh: Refresh
    is_recovered: bool = False
    set_aside: tuple[EventsSetAside, ...] = ()


def refreshed_without_rows(version: Version, mode: RefreshMode, code: ReasonCode) -> Refreshed:
    """The result of a refresh that wrote no rows."""
    return _without_rows(version, mode, Reason.of(code))


def recovered_refresh(task: RefreshTask) -> Refreshed | None:
    """The result of a refresh that an earlier run committed before it died; None: it did not."""
    last_commit = task.fork.commit_metadata
    if last_commit is None or not task.is_committed:
        return None
    mode = RefreshMode(last_commit.mode or RefreshMode.NO_DATA)
    result = refreshed_without_rows(task.fork.version, mode, ReasonCode.COMMITTED_BEFORE_CRASH)
    return replace(result, is_recovered=True)


def no_data_refresh(task: RefreshTask, code: ReasonCode) -> Refreshed:
    """The result of a refresh that left the table's rows as they were."""
    return unchanged_refresh(task, Reason.of(code))


def unchanged_refresh(task: RefreshTask, reason: Reason) -> Refreshed:
    """The result of a refresh that left the table's rows as they were, for a reason with parameters."""
    return _without_rows(version_with_same_rows(task), RefreshMode.NO_DATA, reason)


def _without_rows(version: Version, mode: RefreshMode, reason: Reason) -> Refreshed:
    node = NodeRefresh(node="query", mode=mode, reason=reason)
    return Refreshed(version, Refresh(mode=mode, reason=reason, nodes=(node,)))


def version_with_same_rows(task: RefreshTask) -> Version:
    """The version that readers know already, when only fences lie between it and the newest one."""
    last, newest = task.last_version, task.fork.version
    if last is None or last == newest or task.table.change_between(last, newest).kind is not ChangeKind.NONE:
        return newest
    return last

"""`store.datasets` and `store.history`. The datasets of all jobs, and the refreshes that they had."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from tautochrone.meta.protocols.marks import reads, writes
from tautochrone.model.checkpoint import CheckpointState, RefreshMode, RefreshRecord
from tautochrone.model.dataset_change import DatasetChange
from tautochrone.model.definitions import DatasetDetails, ExpectationCount, LakeColumn
from tautochrone.model.effects import Step
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.reason import Reason
from tautochrone.model.source import SkippedFiles

__all__ = [
    "CheckpointLine",
    "DatasetEntry",
    "DatasetState",
    "DatasetStatus",
    "Datasets",
    "Delay",
    "EdgeDelay",
    "History",
    "Lineage",
    "RefreshTotals",
]


class DatasetState(StrEnum):
    """The worst state first. `NOT_RUNNING`: its job ended without saying so, or with an error, and it was not
    failing then. `BEHIND`: its job has a newer checkpoint without it, or it lacks what a source has."""

    FAILING = "failing"
    NOT_RUNNING = "not running"
    WAITING = "held back"
    NEVER = "never built"
    BEHIND = "behind"
    BUILDING = "building"
    FRESH = "fresh"


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetStatus:
    """The status of one dataset.

    `checkpoint` is the newest checkpoint at which it is complete. `lag_ms` is for how long there may be news
    that it does not have: the time since all that its sources held was in it (where no source was ever
    observed: since the cut of `checkpoint`), or since the cut that readers see while a broken invariant keeps
    a newer one from them. It is 0 while that is a moment ago and its job runs, None when it was never built.
    Of a job that no longer runs it is the time since its last sign of life, at least.
    `readable` is the newest checkpoint at which strong readers see it, `readable_lag_ms` likewise: behind
    `checkpoint` when another job, or a table that belongs to it, is.
    `mode` and `reason` are those of its last refresh, `error` is why the newest one gave no version,
    or the broken invariant that keeps readers from it, or why a flow into it fails; `failure` is the first or
    the last with its code, `failing_since_ms` when that began, in epoch milliseconds.
    `skipped` are source files that it lacks, `expectations` its own with the rows that violate them.
    """

    dataset: TableName
    job: str
    kind: str
    state: DatasetState
    version: Version | None
    checkpoint: CheckpointNumber | None
    mode: RefreshMode | None
    reason: Reason | None
    error: str | None
    lag_ms: int | None
    refreshed_at_ms: int | None
    failure: Reason | None = None
    skipped: tuple[SkippedFiles, ...] = ()
    expectations: tuple[ExpectationCount, ...] = ()
    readable: CheckpointNumber | None = None
    readable_lag_ms: int | None = None
    failing_since_ms: int | None = None


@dataclass(frozen=True, slots=True)
class DatasetEntry:
    """One dataset of a job as the topology records it.

    `kind` is a `DatasetKind` value, `definition` the fingerprint of the definition, `inputs` the
    tables and clocks that its flows read (datasets, external tables, `model.names`). `is_root`: only
    ingestion writes it, so its version at a cut is what was reported.
    """

    name: TableName
    kind: str
    definition: str
    inputs: frozenset[TableName] = frozenset()
    is_root: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """The tables around one table: direct inputs and outputs, and all upstream and downstream, clocks
    included."""

    table: TableName
    inputs: frozenset[TableName]
    outputs: frozenset[TableName]
    upstream: frozenset[TableName]
    downstream: frozenset[TableName]


class Datasets(Protocol):
    """The datasets of all jobs: definition, lineage, status, and the files that they lack."""

    @reads
    def registered(self, job: str | None = None) -> tuple[DatasetEntry, ...]:
        """The registered datasets that are not retired, of one job or of all."""

    @reads
    def retired(self) -> tuple[TableName, ...]:
        """The datasets that their job no longer defines, and no other job does. Their tables stay."""

    @reads
    def retired_table_ids(self) -> dict[TableName, str | None]:
        """By retired dataset what `table_id` says of it."""

    @reads
    def pending_changes(self) -> tuple[DatasetChange, ...]:
        """The drops and renames that are decided and not complete, by the name of the dataset."""

    @reads
    def job_of(self, dataset: TableName) -> str | None:
        """The job that writes the dataset, or did before it was retired; None: it was never registered."""

    @reads
    def readers(self, table: TableName, except_job: str | None = None) -> tuple[str, ...]:
        """Who reads a table by what is registered, as messages name them: datasets, invariants, jobs, sinks.

        Args:
            except_job: leave out what belongs to this job.
        """

    @reads
    def require_unused(self, tables: Collection[TableName], except_job: str | None = None) -> None:
        """Refuse to drop tables that somebody needs. That they read each other does not count.

        Args:
            except_job: whose datasets and invariants do not count, because the caller knows its definitions
                and the store may not know them yet.

        Raises:
            MetaError: `DATASET_STILL_READ`; `DATASET_PINNED`, a reader has a lease on one of its versions;
                `DATASET_IN_REVISION`, a revision keeps old rows of it.
        """

    @writes(step=Step.META_CHANGE, subject="job")
    def decide_changes(self, job: str, fence: Fence, changes: Iterable[DatasetChange]) -> None:
        """Decide that datasets of the job are dropped or renamed, all at once. Repeatable.

        From here on no checkpoint shows a dropped one. No run registers a dataset of one of these names, or
        a job of which one is renamed, until they are complete.

        Raises:
            FencedError: a newer owner exists.
            MetaError: as of `require_unused`, of those that are dropped; `DATASET_OWNED_BY_ANOTHER_JOB`;
                `DATASET_CHANGE_UNFINISHED`, something else is decided about one of them;
                `RENAME_TARGET_EXISTS`, the store knows a dataset of the new name.
        """

    @writes(step=Step.META_CHANGED, subject="job")
    def complete_changes(
        self, job: str, fence: Fence, datasets: Iterable[TableName], flows: Mapping[str, str]
    ) -> None:
        """What is decided of these datasets of the job is done in the lake: forget what was dropped, and
        record under the new names what was renamed. Repeatable.

        Args:
            flows: the new names of flows that are called after a renamed table.

        Raises:
            FencedError: a newer owner exists.
        """

    @reads
    def statuses(self) -> tuple[DatasetStatus, ...]:
        """Every dataset that isn't retired, by name."""

    @reads
    def lineage(self, table: TableName) -> Lineage:
        """The tables that `table` is computed from, and those computed from it, directly and indirectly."""

    @writes(step=Step.META_DESCRIBE, subject="job")
    def describe(self, job: str, fence: Fence, details: Iterable[DatasetDetails]) -> None:
        """Replace the details of these datasets. Repeatable.

        Raises:
            FencedError: a newer owner exists.
            MetaError: `DATASET_NOT_FOUND`, one of them is not a dataset of the job.
        """

    @reads
    def details(self, dataset: TableName) -> DatasetDetails | None:
        """The details that the dataset's job recorded; None before that, or for an unknown dataset."""

    @reads
    def columns(self) -> dict[TableName, tuple[LakeColumn, ...]]:
        """The columns of every dataset that isn't retired, as its job recorded them, by name."""

    @reads
    def details_of_job(self, job: str) -> dict[TableName, DatasetDetails]:
        """The details of all datasets of a job."""

    @writes(step=Step.META_SKIPPED_FILES, subject="dataset")
    def record_skipped_files(
        self, job: str, fence: Fence, dataset: TableName, flow: str, skipped: Iterable[SkippedFiles]
    ) -> None:
        """Replace the skipped files of one flow into `dataset`. Repeatable.

        Files that were deleted before they were read stay recorded, because no later read finds them.

        Raises:
            FencedError: a newer owner exists.
            MetaError: `DATASET_NOT_FOUND`, it is not a dataset of the job.
        """

    @writes(step=Step.META_REPORT, subject="dataset")
    def record_expectations(
        self, job: str, fence: Fence, dataset: TableName, expectations: Iterable[ExpectationCount]
    ) -> None:
        """Replace the counts of a dataset's expectations. Repeatable.

        Raises:
            FencedError: a newer owner exists.
            MetaError: `DATASET_NOT_FOUND`, it is not a dataset of the job.
        """

    @reads
    def skipped_files(self, dataset: TableName) -> tuple[SkippedFiles, ...]:
        """The skipped files of all flows into `dataset`; empty for an unknown dataset."""

    @reads
    def table_id(self, dataset: TableName) -> str | None:
        """The id of the dataset's table in the lake, also of a retired one; None: it is not recorded."""

    @reads
    def table_ids(self, job: str) -> dict[TableName, str]:
        """By table of the job its id in the lake, which tells it from another table of the same name."""

    @writes(step=Step.META_IDENTIFY, subject="job")
    def record_table_ids(self, job: str, fence: Fence, tables: Mapping[TableName, str]) -> None:
        """Replace the recorded ids of the job's tables; those of retired datasets stay. Repeatable.

        Raises:
            FencedError: a newer owner exists.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeDelay:
    """From the moment when `input` was ready at the checkpoint until the dataset was, in milliseconds.

    An input that was refreshed for the checkpoint is ready when that ended; every other one (a root, or
    a table that did not change) at the cut.
    """

    input: TableName
    delay_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """How long the newest refresh of a dataset that changed something let its readers wait.

    `end_to_end_ms` counts from the cut of `checkpoint` until the dataset had its version for it,
    `refresh_ms` is the part in which it was computed. How long rows waited in the source before the
    cut is not in it: the store does not know.
    """

    dataset: TableName
    checkpoint: CheckpointNumber
    end_to_end_ms: int
    refresh_ms: int
    edges: tuple[EdgeDelay, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLine:
    """One checkpoint without its versions. `recorded` counts its refreshes in the history, `failed` those
    datasets that have no version for it. Times are epoch milliseconds."""

    number: CheckpointNumber
    job: str
    state: CheckpointState
    cut_at_ms: int
    published_at_ms: int | None
    recorded: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshTotals:
    """What the refreshes of a dataset took together, of those that the history still has.

    `since_ms` is when the first counted one ended, in epoch milliseconds; `is_cut` when the history of the
    dataset is full, so that there were earlier ones. `refreshes` counts those with news by mode, `failed`
    those that gave no version. `cpu_ms` is that of Spark's tasks on all executors, without the driver's, in
    milliseconds; None where nobody measured. `measured` refreshes have one. `day` is in UTC, `2026-11-30`;
    None: of the whole time asked for.
    """

    dataset: TableName
    refreshes: Mapping[RefreshMode, int]
    failed: int
    duration_ms: int
    cpu_ms: int | None
    rows_inserted: int
    rows_deleted: int
    since_ms: int
    is_cut: bool
    measured: int = 0
    day: str | None = None


class History(Protocol):
    """Refreshes that took place, and how long they took."""

    @reads
    def newest_refreshes(self) -> tuple[RefreshRecord, ...]:
        """The newest refresh or failure of every dataset that isn't retired, by name, without mode
        `no_data`."""

    @reads
    def totals(self, since_ms: int, *, by_day: bool = False) -> tuple[RefreshTotals, ...]:
        """What refreshes took that ended at `since_ms` (epoch milliseconds) or later, by dataset that isn't
        retired, and by day (UTC) if asked for; datasets and days without any are left out."""

    @reads
    def refreshes(self, dataset: TableName, limit: int = 50) -> tuple[RefreshRecord, ...]:
        """The newest `limit` refreshes and failures of a dataset, newest first, without mode `no_data`."""

    @reads
    def refreshes_at(self, number: int) -> tuple[RefreshRecord, ...]:
        """The refreshes and failures of one checkpoint, oldest first, without refreshes of mode `no_data`."""

    @reads
    def refreshed_between(self, above: int, below: int) -> dict[TableName, CheckpointNumber]:
        """The datasets that got a version with news at checkpoints between the two numbers, which are not
        included; each with the newest of these checkpoints."""

    @reads
    def recent_refreshes(self, limit: int = 50) -> tuple[RefreshRecord, ...]:
        """The newest `limit` refreshes and failures of all datasets, newest first."""

    @reads
    def refreshes_after(self, last: int, limit: int) -> tuple[tuple[int, RefreshRecord], ...]:
        """At most `limit` rows of the history after the id `last`, oldest first, each with its id."""

    @reads
    def newest_refresh_id(self) -> int:
        """The id of the newest row of the history; 0 for none."""

    @reads
    def timeline(self, limit: int = 50) -> tuple[CheckpointLine, ...]:
        """The newest `limit` checkpoints in any state, newest first."""

    @reads
    def delays(self) -> tuple[Delay, ...]:
        """The newest known delay of every dataset that was ever refreshed and is not retired, by name."""

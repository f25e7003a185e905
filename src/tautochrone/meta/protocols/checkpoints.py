"""`store.checkpoints`, `store.roots`, `store.invariants`. From versions of roots to published checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Protocol

from tautochrone.meta.protocols.marks import reads, writes
from tautochrone.model.checkpoint import (
    Alignment,
    BrokenInvariant,
    Checkpoint,
    CheckpointState,
    InvariantEntry,
    Refresh,
    RefreshMode,
    SourceTime,
)
from tautochrone.model.effects import Step
from tautochrone.model.jobs import JobProgress
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.reason import Reason

__all__ = [
    "KEPT_UNREADABLE",
    "PATIENCE_MS",
    "BusyJob",
    "Checkpoints",
    "DonePart",
    "InvariantCheck",
    "Invariants",
    "NewCheckpoint",
    "ReportTime",
    "Roots",
    "UnexpiredCheckpoint",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTime:
    """When a job last reported a version of a table, in epoch milliseconds."""

    table: TableName
    job: str
    at_ms: int


class Roots(Protocol):
    """Versions of roots that a cut takes: those that jobs report, those of external tables."""

    @writes(step=Step.META_REPORT, subject="versions")
    def report(self, job: str, fence: Fence, versions: Mapping[TableName, Version]) -> None:
        """Record versions that one flow or one source transaction committed together.

        This is one transaction, so a cut takes all of these versions or none.

        Raises:
            FencedError: a newer owner exists.
        """

    @reads
    def reported(self, job: str) -> dict[TableName, Version]:
        """The newest reported version of each table of the job."""

    @reads
    def report_times(self) -> tuple[ReportTime, ...]:
        """The time of the newest report of each table, by table."""

    @writes(step=Step.META_OBSERVE, subject="table")
    def observe_external_table(
        self, job: str, fence: Fence, table: TableName, before: Version | None, now: Version
    ) -> Version:
        """The job observed that an external table moved from `before` to `now`.

        Jobs observe at different moments. An older observation that arrives later must not move the table
        back, so it counts only if `before` is the version that the store has.

        Returns:
            The version that cuts take from now on.

        Raises:
            FencedError: a newer owner exists.
        """

    @reads
    def external_versions(self) -> dict[TableName, Version]:
        """The last observed version of each external table."""

    @reads
    def tables_of_other_jobs(self, job: str) -> dict[TableName, str]:
        """The datasets that other jobs write, with the job of each."""

    @reads
    def shared_clocks(self, job: str) -> frozenset[TableName]:
        """The clocks that are read by jobs which share checkpoints with `job`."""

    @writes
    def report_source_times(
        self, job: str, fence: Fence, times: Mapping[TableName, tuple[SourceTime, ...]]
    ) -> None:
        """Report the source times of the job's roots. Roots that are not named are not aligned. Repeatable.

        Args:
            times: by root the versions that a cut may take, from the last cut's to the newest, each with its
                source time in epoch milliseconds.

        Raises:
            FencedError: a newer owner exists.
        """

    @reads
    def aligned_cut(self, job: str, roots: Mapping[TableName, Version], max_skew_ms: int) -> Alignment:
        """What a cut would take now, of the roots given and of all that the topology of `job` reports.

        Args:
            roots: as of `NewCheckpoint`.
            max_skew_ms: how far one root may be ahead of another in source time.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class InvariantCheck:
    """The newest checkpoint for which a job checked invariants, and by name the definitions (fingerprints) of
    those that held."""

    checkpoint: CheckpointNumber
    definitions: Mapping[str, str]


class Invariants(Protocol):
    """The invariants that jobs check, and the last check of each job."""

    @reads
    def registered(self, job: str | None = None) -> tuple[InvariantEntry, ...]:
        """The invariants that one job checks, or all jobs, by name."""

    @reads
    def last_check(self, job: str) -> InvariantCheck | None:
        """The newest check of the job; None before the first one."""


KEPT_UNREADABLE = 1_000
"""How many expired and aborted checkpoints of a job keep their rows, to explain why they cannot be read."""


@dataclass(frozen=True, slots=True)
class UnexpiredCheckpoint:
    """A checkpoint that keeps versions from retention, and when it was published (epoch milliseconds)."""

    number: CheckpointNumber
    at_ms: int


PATIENCE_MS = 30_000
"""How long, in milliseconds, jobs wait for a live job that has not done its part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyJob:
    """A job for which the others wait, and the checkpoint that it is at work on."""

    job: str
    checkpoint: CheckpointNumber
    since_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DonePart:
    """The newest checkpoint of which a job did its part.

    Attributes:
        checkpoint: readable or not yet.
        versions: of all tables at it, as `Checkpoints.versions_at` has them.
        is_followed_by_revoked: whether the job has a revoked checkpoint after it.
    """

    checkpoint: Checkpoint
    versions: Mapping[TableName, Version]
    is_followed_by_revoked: bool


@dataclass(frozen=True, slots=True)
class NewCheckpoint:
    """What a job opens a checkpoint with.

    Attributes:
        roots: versions of the job's own roots, of the external tables that it read, and of all clocks that
            the topology reads. Roots of other jobs are what they reported.
        cut_at_ms: when the cut was taken, in epoch milliseconds of the job's clock.
        missing: external tables that could not be read. The checkpoint has no version of them.
        at_least: the lowest number to give.
        observed_ms: when the job began to observe its roots, in epoch milliseconds of the store's clock.
        observations: see `Jobs.heartbeat`, for the versions in `roots`.
        patience_ms: for how many milliseconds the others wait for a job that has not done its part.
        align_ms: the greatest distance of the roots in source time, in milliseconds (`model.checkpoint`).
            Of roots that are further ahead an older version is taken, also of those in `roots`. None: no
            bound.
        store: the incarnation of the store that the job was taken over in; None when it is not known.
        after: the highest number that the job was ever given. A store that never gave it is an older copy.
    """

    roots: Mapping[TableName, Version]
    cut_at_ms: int
    _: KW_ONLY
    missing: frozenset[TableName] = frozenset()
    at_least: int = 0
    observed_ms: int | None = None
    observations: Mapping[TableName, int] = field(default_factory=dict)
    patience_ms: int = PATIENCE_MS
    align_ms: int | None = None
    store: str | None = None
    after: int = 0


class Checkpoints(Protocol):
    """Opening, filling, publishing and expiring checkpoints, and reading what they show."""

    @writes(step=Step.META_OPEN, subject="job")
    def open(self, job: str, fence: Fence, new: NewCheckpoint) -> Checkpoint:
        """Open a checkpoint for all jobs that share checkpoints with `job`. Its number is above every number
        ever given.

        Args:
            job: the job that opens it.
            fence: the fence of the job's last takeover.
            new: what the checkpoint is opened with.

        Returns:
            The open checkpoint. A repeated call with the same cut (a lost answer) returns the same one.

        Raises:
            FencedError: a newer owner exists.
            MetaError: `META_STORE_REPLACED`;
                `CHECKPOINT_ALREADY_OPEN`: finish or abort `next_for(job)` first;
                `CHECKPOINT_HELD_BACK` (retryable): see `busy_jobs`, or a revision is not finished.
        """

    @reads
    def next_for(self, job: str) -> Checkpoint | None:
        """The checkpoint that the job has to do next; None when it did its part of all."""

    @writes(step=Step.META_TAKE, subject="job")
    def begin_next(self, job: str, fence: Fence) -> Checkpoint | None:
        """As `next_for`, and the job starts its part. It skips older checkpoints that it has not done.

        Raises:
            FencedError: a newer owner exists.
        """

    @reads
    def busy_jobs(self, job: str, patience_ms: int = PATIENCE_MS) -> tuple[BusyJob, ...]:
        """The jobs for which `job` has to wait before it may open a checkpoint, by name.

        A job is waited for until it does its part, its lease ends, or `patience_ms` milliseconds are over.
        """

    @writes
    def record_wait(self, job: str, fence: Fence, number: int, waits_for: str | None) -> None:
        """The job cannot go on with checkpoint `number` without tables of another job.

        Others do not wait for a job that itself waits for one whose lease has ended.

        Args:
            waits_for: the name of the other job; None: the job no longer waits.

        Raises:
            FencedError: a newer owner exists.
        """

    @writes(step=Step.META_VERSION, subject="dataset")
    def record_version(
        self,
        job: str,
        fence: Fence,
        number: int,
        dataset: TableName,
        version: Version,
        refresh: Refresh,
        *,
        finished_at_ms: int | None = None,
    ) -> None:
        """The dataset has `version` for checkpoint `number`. Repeatable.

        While the checkpoint is open another version replaces the first (a repeated refresh). For a
        published one it is a repair, allowed only where the dataset was recorded as failed.

        Args:
            refresh: how the version was computed.
            finished_at_ms: when the refresh ended; None: now.

        Raises:
            MetaError: `DATASET_NOT_FOUND`, or `CHECKPOINT_NOT_WRITABLE`.
            FencedError: a newer owner exists.
        """

    @writes(step=Step.META_FAILURE, subject="dataset")
    def record_failure(
        self,
        job: str,
        fence: Fence,
        number: int,
        dataset: TableName,
        error: Reason,
        mode: RefreshMode | None = None,
        *,
        finished_at_ms: int | None = None,
    ) -> None:
        """The dataset has no version for the open checkpoint `number`.

        Datasets downstream are recorded the same way, as `WAITS_FOR_INPUT`.

        Args:
            error: why there is no version.
            mode: the refresh mode that was tried; None when the failure came before a mode was chosen.
            finished_at_ms: when the refresh failed; None: now.

        Raises:
            FencedError: a newer owner exists.
            MetaError: `DATASET_NOT_FOUND`, or `CHECKPOINT_NOT_WRITABLE`.
        """

    @writes(step=Step.META_PUBLISH, subject="job")
    def publish(
        self,
        job: str,
        fence: Fence,
        number: int,
        at_ms: int,
        *,
        cpu_ms: int | None = None,
        passed_invariants: Mapping[str, str] | None = None,
    ) -> CheckpointState:
        """The job has done its part. When it is the last, the checkpoint is published. Repeatable.

        Returns:
            The state of the checkpoint now: open while other jobs are at work on it.

        Args:
            at_ms: the time of publication, in epoch milliseconds of the job's clock.
            cpu_ms: CPU time that the job's process used, in milliseconds.
            passed_invariants: by name the definition of each invariant that holds at the checkpoint.

        Raises:
            FencedError: a newer owner exists.
            MetaError: `CHECKPOINT_INCOMPLETE`, a dataset has neither a version nor a failure;
                `CHECKPOINT_NOT_WRITABLE`, the job skipped the checkpoint.
        """

    @writes(step=Step.META_ABORT, subject="job")
    def abort(self, job: str, fence: Fence, number: int, *, broken: Iterable[BrokenInvariant] = ()) -> None:
        """The job gives up its part of an open checkpoint. When all did, its versions are deleted.
        Repeatable.

        Args:
            broken: the invariants that do not hold at the checkpoint.

        Raises:
            FencedError: a newer owner exists.
        """

    @writes
    def revoke(self, job: str, fence: Fence, number: int) -> None:
        """Take back a published checkpoint. Readers that have pinned it get `CHECKPOINT_REVOKED`. Repeatable.

        Raises:
            FencedError: a newer owner exists.
        """

    @writes
    def expire(self, number: int) -> None:
        """Mark a checkpoint expired: no read can resolve it any more. Repeatable.

        Snapshots are deleted only afterwards: those that `Pins.retained_versions` does not name.

        Raises:
            MetaError: `CHECKPOINT_PINNED` by a reader, or `CHECKPOINT_NEEDED`: it is the newest
                one that shows some dataset.
        """

    @writes
    def forget_expired(self, job: str, kept: int = KEPT_UNREADABLE) -> int:
        """Delete the rows of all but the newest `kept` expired and aborted checkpoints of the job.

        Returns:
            How many checkpoints were deleted.
        """

    @reads
    def unexpired(self, job: str) -> tuple[UnexpiredCheckpoint, ...]:
        """The published (and revoked) checkpoints of a job that are not expired, oldest first."""

    @reads
    def get(self, number: int) -> Checkpoint:
        """One checkpoint, whatever its state.

        Raises:
            CheckpointUnavailableError: `CHECKPOINT_NOT_FOUND`.
        """

    @reads
    def neighbours(self, number: int) -> tuple[CheckpointNumber | None, CheckpointNumber | None]:
        """The checkpoints before and after a number, whatever their state; None where there is none."""

    @reads
    def readable_before(
        self, number: int, limit: int
    ) -> tuple[tuple[CheckpointNumber, CheckpointState], ...]:
        """At most `limit` published or partial checkpoints before a number, newest first."""

    @reads
    def newest(self, limit: int = 20) -> tuple[Checkpoint, ...]:
        """The newest checkpoints in any state, newest first."""

    @reads
    def latest_published(self, job: str | None = None) -> Checkpoint | None:
        """The newest readable checkpoint, of one job or of all."""

    @reads
    def latest_done(self, job: str) -> Checkpoint | None:
        """The newest checkpoint of which the job did its part, readable or not yet."""

    @reads
    def last_done(self, job: str) -> DonePart | None:
        """What a job compares its roots with: its newest checkpoint, in one call."""

    @reads
    def versions_at(self, number: int) -> dict[TableName, Version]:
        """Roots and datasets at a checkpoint; for an open one, what was recorded so far.

        A dataset that failed at the checkpoint is absent; `failures_at` tells why.
        """

    @reads
    def failures_at(self, number: int) -> dict[TableName, Reason]:
        """Datasets without a version at a checkpoint, and why."""

    @reads
    def progress(self, number: int) -> tuple[JobProgress, ...]:
        """The part of each job in a checkpoint, by job.

        Raises:
            CheckpointUnavailableError: `CHECKPOINT_NOT_FOUND`.
        """

    @reads
    def cut_times(self, numbers: Iterable[int]) -> dict[int, int]:
        """When the cuts of checkpoints were taken, in epoch milliseconds, for those that are still known."""

    @reads
    def states(
        self, above: int, besides: Iterable[int] = ()
    ) -> tuple[tuple[CheckpointNumber, CheckpointState], ...]:
        """The states of all checkpoints above a number, and of some others, by number."""

    @reads
    def highest_used_number(self) -> int:
        """The highest number that this store gave or skipped; 0 for none."""

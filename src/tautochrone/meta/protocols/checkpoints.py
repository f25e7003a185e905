"""`store.checkpoints`. Opening, filling, publishing and expiring checkpoints, and reading what they show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from tautochrone.meta.protocols.marks import reads, writes
from tautochrone.model.checkpoint import Checkpoint, CheckpointState
from tautochrone.model.invariants import BrokenInvariant
from tautochrone.model.jobs import JobProgress
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.reason import Reason
from tautochrone.model.refresh import Refresh, RefreshMode

__all__ = ["KEPT_UNREADABLE", "PATIENCE_MS", "BusyJob", "Checkpoints", "UnexpiredCheckpoint"]


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


class Checkpoints(Protocol):
    """Opening, filling, publishing and expiring checkpoints, and reading what they show."""

    @writes(wire="open_checkpoint", wire_arguments={"observed_ms": "looked_ms", "observations": "looks"})
    def open(
        self,
        job: str,
        fence: Fence,
        roots: Mapping[TableName, Version],
        cut_at_ms: int,
        *,
        at_least: int = 0,
        observed_ms: int | None = None,
        observations: Mapping[TableName, int] | None = None,
        patience_ms: int = PATIENCE_MS,
        align_ms: int | None = None,
        store: str | None = None,
        after: int = 0,
    ) -> Checkpoint:
        """Record the cut: the next target of all jobs that belong together. Its number is above every
        number ever given.

        Args:
            roots: versions of the job's own roots, of the external tables that it read, and of
                all clocks that the topology reads. Roots of other jobs are what they reported.
            cut_at_ms: by the job's clock.
            at_least: the lowest number that will do.
            observed_ms: when the job began to observe its roots, in epoch milliseconds of the store's clock.
            observations: see `Jobs.heartbeat`, for the versions in `roots`.
            patience_ms: for how long, in milliseconds, the others wait for a job that is at work.
            align_ms: the greatest skew of the cut in source time (`model.alignment`): of roots that are
                further ahead an older version is taken, also of those in `roots`. None: any.
            store: the incarnation of the store that the job was taken over in; None: it is not known.
            after: the highest number that the caller was ever given. A store that never gave it is an older
                copy.

        Opening the very cut that the job has open already (a lost answer) gives the same checkpoint again.

        Raises:
            MetaError: `META_STORE_REPLACED`;
                `CHECKPOINT_ALREADY_OPEN`: finish or abort `next_for(job)` first;
                `CHECKPOINT_HELD_BACK` (retryable): see `busy_jobs`, or a revision is not finished.
        """

    @reads(wire="open_target")
    def next_for(self, job: str) -> Checkpoint | None:
        """The checkpoint that the job has to do next; None when it has done all."""

    @writes(wire="take_target")
    def begin_next(self, job: str, fence: Fence) -> Checkpoint | None:
        """As `next_for`, and the job begins it. It skips the older ones that it has not done.

        Raises:
            FencedError: a newer owner exists.
        """

    @reads(wire="held_back_by")
    def busy_jobs(self, job: str, patience_ms: int = PATIENCE_MS) -> tuple[BusyJob, ...]:
        """Who must finish, or lose its lease or the others' patience, before `job` may open a checkpoint."""

    @writes(wire="wait")
    def record_wait(self, job: str, fence: Fence, number: int, waits_for: str | None) -> None:
        """The job cannot go on with its target without the tables of another one (None: it can again).

        Nobody waits for a job that waits for one that is away.

        Raises:
            FencedError: a newer owner exists.
        """

    @writes
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
        """The dataset has `version` for checkpoint `number`. Saying it twice is saying it once.

        While the checkpoint is open another version replaces the first (a repeated refresh). For a
        published one it is a repair, allowed only where the dataset was recorded as failed.

        Raises:
            MetaError: unknown dataset, or the checkpoint may not be changed.
            FencedError: a newer owner exists.
        """

    @writes
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
        """The dataset has no version for the open checkpoint `number`; `error` says why.

        Datasets downstream are recorded the same way, as `WAITS_FOR_INPUT`.
        """

    @writes(wire_arguments={"passed_invariants": "held"})
    def publish(
        self,
        job: str,
        fence: Fence,
        number: int,
        at_ms: int,
        *,
        cpu_ms: int | None = None,
        passed_invariants: Mapping[str, str] | None = None,
    ) -> None:
        """The job has done its part. When it is the last, the checkpoint becomes readable: one row changes.
        Saying it again is a no-op.

        Args:
            at_ms: epoch milliseconds of the job's clock.
            cpu_ms: CPU time of the job's process, in milliseconds.
            passed_invariants: by name the definition of each invariant that holds at the checkpoint.

        Raises:
            MetaError: `CHECKPOINT_INCOMPLETE`, a dataset has neither a version nor a failure;
                `CHECKPOINT_NOT_WRITABLE`, the job skipped the checkpoint.
        """

    @writes
    def abort(self, job: str, fence: Fence, number: int, *, broken: Iterable[BrokenInvariant] = ()) -> None:
        """The job gives its part of an open checkpoint up; with the last one what was recorded for it is
        forgotten. `broken` are the invariants that forbid it. Repeatable."""

    @writes
    def revoke(self, job: str, fence: Fence, number: int) -> None:
        """Take a published checkpoint back: readers pinned to it get an error class. Repeatable."""

    @writes
    def expire(self, number: int) -> None:
        """Mark a checkpoint expired; from here on nobody can resolve it. Repeatable.

        Snapshots are deleted only afterwards, by what `retained_versions` leaves out.

        Raises:
            MetaError: `CHECKPOINT_PINNED` by a reader, or `CHECKPOINT_NEEDED`: it is the newest
                one that shows some dataset.
        """

    @writes
    def forget_expired(self, job: str, kept: int = KEPT_UNREADABLE) -> int:
        """Drop the rows of all but the newest `kept` expired and aborted checkpoints; answers how many."""

    @reads(wire="standing")
    def unexpired(self, job: str) -> tuple[UnexpiredCheckpoint, ...]:
        """The published (and revoked) checkpoints of a job that are not expired, oldest first."""

    @reads(wire="checkpoint")
    def get(self, number: int) -> Checkpoint:
        """One checkpoint, whatever its state.

        Raises:
            CheckpointUnavailableError: `CHECKPOINT_NOT_FOUND`.
        """

    @reads(wire="checkpoints")
    def newest(self, limit: int = 20) -> tuple[Checkpoint, ...]:
        """The newest checkpoints in any state, newest first."""

    @reads
    def latest_published(self, job: str | None = None) -> Checkpoint | None:
        """The newest readable checkpoint, of one job or of all."""

    @reads
    def latest_done(self, job: str) -> Checkpoint | None:
        """The newest checkpoint of which the job did its part, readable or not yet."""

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
        """When the cuts of checkpoints were taken, for those that are still known."""

    @reads(wire="checkpoint_states")
    def states(
        self, above: int, besides: Iterable[int] = ()
    ) -> tuple[tuple[CheckpointNumber, CheckpointState], ...]:
        """The states of all checkpoints above a number, and of some others, by number."""

    @reads
    def last_number(self) -> int:
        """The highest number that this store gave or skipped; 0 for none."""

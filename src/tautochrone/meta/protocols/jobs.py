"""`store.jobs` and `store.registrations`. The jobs that use the store, also those that are not pipelines."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from tautochrone.meta.protocols.datasets import DatasetEntry
from tautochrone.meta.protocols.marks import reads, writes
from tautochrone.model.checkpoint import InvariantEntry
from tautochrone.model.jobs import JOB_LEASE_MS, Claim, JobStatus, RunProcess
from tautochrone.model.names import Fence, TableName
from tautochrone.model.run_report import RunEnd, RunReport

__all__ = ["REGISTERED", "JobEntry", "Jobs", "Registrations", "TableRole"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEntry:
    """A job as the topology knows it.

    `fence` is None before its first start. `sources` and `sinks` are the tables that it reads and writes,
    `announced` those that it registered and has not started with.
    """

    name: str
    pipeline: str
    fence: Fence | None
    sources: frozenset[TableName]
    sinks: frozenset[TableName]
    announced: frozenset[TableName]


class Jobs(Protocol):
    """The jobs that use the store: who owns each, its fence and its lease."""

    @writes
    def start_run(
        self,
        pipeline: str,
        job: str,
        datasets: Iterable[DatasetEntry],
        *,
        invariants: Iterable[InvariantEntry] = (),
        fence: Fence | None = None,
        claim: Claim | None = None,
        lease_ms: int = JOB_LEASE_MS,
        lake: str | None = None,
    ) -> None:
        """Register the job with its datasets and invariants. Datasets that it no longer defines are retired.

        Called at the start of every run.

        Args:
            pipeline: the name of the pipeline that the job belongs to.
            fence: refuses an older owner that would restore its topology; None: before any takeover.
            claim: reserves the job for this run, so that no other run changes its topology before the
                takeover.
            lease_ms: for how many milliseconds the claim holds.
            lake: the address of the lake that has the job's tables.

        Raises:
            MetaError: `JOB_RUNNING`, nothing was changed; `DATASET_OWNED_BY_ANOTHER_JOB`; `TOPOLOGY_CYCLE`
                over several jobs; `JOB_OF_ANOTHER_LAKE`; `DATASET_CHANGE_UNFINISHED`.
            FencedError: `fence` is outdated.
        """

    @writes
    def take_over(
        self,
        job: str,
        *,
        at_least: int = 0,
        owner: str | None = None,
        lease_ms: int = JOB_LEASE_MS,
        ingests: Collection[TableName] | None = None,
        claim: Claim | None = None,
    ) -> Fence:
        """Raise the job's fence above the stored one and above `at_least`. From now on every write of an
        older owner raises `FencedError`.

        Args:
            at_least: the highest fence seen in the lake. It matters when the store is younger than the lake.
            owner: who takes the job over, for people.
            lease_ms: as in `heartbeat`.
            ingests: the tables that the job ingests from sources; None: as before.
            claim: the run that takes the job over; None: any run of the job is fenced off.

        Returns:
            The new fence.

        Raises:
            MetaError: `JOB_RUNNING`, another run has the job and `claim` may not end it; nothing was changed.
        """

    @writes
    def heartbeat(
        self,
        job: str,
        fence: Fence,
        lease_ms: int = JOB_LEASE_MS,
        *,
        observed_ms: int | None = None,
        observations: Mapping[TableName, int] | None = None,
        checkpoint: int | None = None,
        report: RunReport | None = None,
    ) -> None:
        """The owner is alive. Leases decide for whom the others wait, never who may write.

        Args:
            lease_ms: milliseconds from now until other jobs no longer wait for this one.
            observed_ms: when the job last observed that its sources have nothing new, in epoch milliseconds
                of the store's clock.
            observations: by table that the job ingests or reads as an external one, an epoch millisecond of
                the store's clock: all that the source held then is in the version that the job reported.
            checkpoint: the checkpoint that shows these versions; None: no checkpoint shows them yet.
            report: what the run says of itself now; None: as before.

        Raises:
            FencedError: a newer owner exists.
        """

    @writes
    def end_run(
        self,
        job: str,
        fence: Fence,
        end: RunEnd | None = None,
        report: RunReport | None = None,
    ) -> None:
        """The run ended by itself: other jobs do not wait for this one until it runs again. Repeatable.

        Args:
            end: how it ended; None: it was no run but a command that owned the job: a job that did not run
                before it, and should, still does not.
            report: its last one; None: as before.

        Raises:
            FencedError: a newer owner exists.
        """

    @writes
    def record_failed_start(self, job: str, end: RunEnd) -> None:
        """A run of the job could not even take it over. Nothing is recorded for an unknown job, or while it
        runs. Repeatable."""

    @reads
    def report(self, job: str) -> RunReport | None:
        """What the newest run of the job said last; None for an unknown job, or when it said nothing."""

    @reads
    def newest_fence(self, job: str) -> Fence:
        """The newest fence of the job; 0 before the first takeover."""

    @reads
    def require_free(self, job: str, claim: Claim) -> None:
        """Require that no live run owns the job, or that `claim` may replace it. An unknown job is free.

        Raises:
            MetaError: `JOB_RUNNING` (retryable).
        """

    @reads
    def owner_process(self, job: str) -> RunProcess | None:
        """The process that took the job over last; None for an unknown job, or when it did not say."""

    @reads
    def registered(self) -> tuple[JobEntry, ...]:
        """All jobs, with the tables that they read and write, by name."""

    @reads
    def states(self) -> tuple[JobStatus, ...]:
        """The status of every job, by name."""

    @writes
    def become_copy(self, lake: str) -> str:
        """This store was copied together with its lake. It has a new incarnation, no running job, no pins.

        Args:
            lake: the address of the copied lake.

        Returns:
            The new incarnation.
        """

    @writes
    def move_lake(self, pipeline: str, lake: str) -> int:
        """The lake of the pipeline's jobs has the address `lake` now.

        Returns:
            How many jobs the pipeline has.
        """

    @writes
    def rename_pipeline(self, before: str, after: str) -> int:
        """All jobs of pipeline `before` belong to `after`. A job with the pipeline's name is renamed too and
        keeps its history. Repeatable.

        Returns:
            How many jobs moved; 0 when they moved before.

        Raises:
            MetaError: `JOB_RUNNING`, a job of it is running; `JOB_NAME_TAKEN`, `after` is a job of another
                pipeline, or has a history of its own; `RENAME_NOT_POSSIBLE`, one of its jobs has
                begun what is finished under the old name.
        """


REGISTERED = "(registered)"
"""The pipeline of jobs that register themselves. No spec can have this name, so a pipeline's job and a
registered one cannot replace each other's topology."""


class TableRole(StrEnum):
    """What a job does with a table."""

    SOURCE = "source"
    SINK = "sink"


class Registrations(Protocol):
    """Jobs that are not pipelines: they register the tables that they read and write."""

    @writes
    def register(self, job: str, table: TableName, role: TableRole) -> None:
        """Announce that `job` will read or write `table`.

        Raises:
            MetaError: `JOB_NAME_TAKEN` by a pipeline, `DATASET_OWNED_BY_ANOTHER_JOB`, `TOPOLOGY_CYCLE`.
        """

    @writes
    def start(self, job: str, claim: Claim | None = None) -> Fence:
        """Start a registered job: the tables that it announced become its topology, older owners are fenced.

        Args:
            claim: the run that starts the job; None: any other run of it is fenced off.

        Returns:
            The job's new fence.

        Raises:
            MetaError: `JOB_RUNNING`, another run has the job and `claim` may not replace it;
                `JOB_NOT_FOUND`, nothing was announced; or what `register` raises.
        """

    @writes
    def unregister(self, job: str, fence: Fence | None = None) -> None:
        """The job ended: its registrations are deleted, its open checkpoint is aborted, its fence is raised.

        Args:
            fence: the fence of the run that ended, so that the end of an older run does not end a newer one;
                None: whichever run is the newest.

        Raises:
            MetaError: `JOB_NOT_FOUND`.
            FencedError: `fence` is outdated.
        """

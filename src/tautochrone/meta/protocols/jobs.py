"""`store.jobs`. The jobs that use the store: who owns each, its fence and its lease."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from tautochrone.meta.protocols.datasets import DatasetEntry
from tautochrone.meta.protocols.marks import reads, writes
from tautochrone.model.invariants import InvariantEntry
from tautochrone.model.jobs import JOB_LEASE_MS, Claim, JobStatus, RunProcess
from tautochrone.model.names import Fence, TableName

__all__ = ["JobEntry", "Jobs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEntry:
    """A job as the topology knows it.

    `fence` is None before its first start. `sources` and `sinks` are visible to everybody, `announced`
    are tables of a job that has not started with them.
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
        """Register the job and refresh its topology and what it checks; datasets no longer defined are
        retired.

        Called at the start of every run. With `fence` an older owner cannot put its topology back;
        without it the call is for the very first run, before any takeover. With `claim` the job is this
        run's from here on, so that nobody else changes its topology before the takeover. `lake` is where its
        tables are.

        Raises:
            MetaError: `JOB_RUNNING`, nothing was changed.
            MetaError: another job writes one of the datasets; `TOPOLOGY_CYCLE` over several jobs;
                `JOB_OF_ANOTHER_LAKE`.
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
        """Raise the job's fence above the stored one and above `at_least`, and return it: the job runs.

        `at_least` is the highest fence seen in the lake: it matters when the store is younger than
        the lake. From here on every write of an older owner raises `FencedError`. The lease is as in
        `heartbeat`; `ingests` are the tables that the job brings in from outside (None: as before).
        Without `claim` whoever runs the job is fenced off.

        Raises:
            MetaError: `JOB_RUNNING`, another run has the job and `claim` may not end it; nothing was changed.
        """

    @writes(wire="beat", wire_arguments={"observed_ms": "looked_ms", "observations": "looks"})
    def heartbeat(
        self,
        job: str,
        fence: Fence,
        lease_ms: int = JOB_LEASE_MS,
        *,
        observed_ms: int | None = None,
        observations: Mapping[TableName, int] | None = None,
        checkpoint: int | None = None,
    ) -> None:
        """The owner is alive. Leases decide for whom the others wait, never who may write.

        Args:
            lease_ms: milliseconds from now until other jobs no longer wait for this one.
            observed_ms: when the job last observed that its sources have nothing new, in epoch milliseconds
                of
                the store's clock.
            observations: by table that the job ingests or reads from outside, a time of the store's clock:
                all
                that the source held then is in the version that the job reported or observed.
            checkpoint: the checkpoint that shows these versions; None: no checkpoint shows them yet.

        Raises:
            FencedError: a newer owner exists.
        """

    @writes
    def end_run(self, job: str, fence: Fence) -> None:
        """The job ended in order: nobody waits for it until it runs again. Repeatable.

        Raises:
            FencedError: a newer owner exists.
        """

    @reads
    def fence(self, job: str) -> Fence:
        """The newest fence of the job; 0 before the first takeover."""

    @reads
    def require_free(self, job: str, claim: Claim) -> None:
        """Nobody runs the job, or `claim` may have it all the same. An unknown job is free.

        Raises:
            MetaError: `JOB_RUNNING` (retryable).
        """

    @reads
    def owner_process(self, job: str) -> RunProcess | None:
        """Who owns the job since the last takeover, as far as it said; None for an unknown job."""

    @reads(wire="job_entries")
    def entries(self) -> tuple[JobEntry, ...]:
        """All jobs, with the tables that they read and write, by name."""

    @reads(wire="job_states")
    def states(self) -> tuple[JobStatus, ...]:
        """Every job, by name."""

    @writes
    def become_copy(self, lake: str) -> str:
        """This store was copied together with its lake, which is `lake` now: it gets an incarnation of its
        own, no job of it is running, and nobody reads by it. Answers the incarnation."""

    @writes
    def move_lake(self, pipeline: str, lake: str) -> int:
        """The lake of the pipeline's jobs is reached by another name now; answers how many jobs it has."""

    @writes
    def rename_pipeline(self, before: str, after: str) -> int:
        """All jobs of pipeline `before` belong to `after`; the one that is called like the pipeline is called
        like `after`, with everything that was recorded of it. Answers how many jobs moved: none when it was
        done before.

        Raises:
            MetaError: `JOB_RUNNING`, a job of it is at work; `JOB_NAME_TAKEN`, `after` is a job of another
                pipeline, or has a history of its own.
        """

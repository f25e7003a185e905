"""Jobs as the MetaService sees them, and what each does for a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from tautochrone.model.names import CheckpointNumber, Fence
from tautochrone.model.reason import Reason
from tautochrone.model.run_report import Quarantine, RunEnd, RunReport, Work

__all__ = [
    "JOB_LEASE_MS",
    "BlockerKind",
    "Claim",
    "JobProgress",
    "JobState",
    "JobStatus",
    "Liveness",
    "Part",
    "PublicationBlocker",
    "RunProcess",
    "quarantines_of",
]

JOB_LEASE_MS = 15_000
"""Other jobs do not wait for a job without a heartbeat for this long."""


class JobState(StrEnum):
    """`REGISTERED`: it said what it will do and hasn't run yet."""

    REGISTERED = "registered"
    RUNNING = "running"
    ENDED = "ended"


class Liveness(StrEnum):
    """What can be said of a job's process. `STOPPED`: it ended without saying so, or cannot reach the store:
    its lease has ended. `FAILED`: the last run said that an error ended it, or could not begin. `ENDED`: it
    ended in order, as a one-shot run does. `REGISTERED`: it has not run yet, or is a job of another program
    that started and never renews its lease, so that nothing is known."""

    REGISTERED = "registered"
    RUNNING = "running"
    STOPPED = "not running"
    FAILED = "failed"
    ENDED = "ended"

    @property
    def is_down(self) -> bool:
        """Whether it does not run and should."""
        return self in (Liveness.STOPPED, Liveness.FAILED)


class Part(StrEnum):
    """A job's part in a checkpoint. `SKIPPED`: it went on to a newer one and will never do this one."""

    PENDING = "pending"
    DONE = "done"
    SKIPPED = "skipped"


class BlockerKind(StrEnum):
    """Why readers don't see a checkpoint. `AWAY`: the job isn't running and has its part still to do;
    `INVARIANT`: it gave its part up for broken invariants; `SOURCE`: it has not looked at a source since."""

    PENDING = "pending"
    AWAY = "away"
    SKIPPED = "skipped"
    INVARIANT = "invariant"
    SOURCE = "source"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationBlocker:
    """What a job has still to do before readers see a checkpoint; `invariants` are the broken ones' names."""

    job: str
    checkpoint: CheckpointNumber
    kind: BlockerKind
    reason: Reason
    invariants: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProcess:
    """The process of one run, told apart from every other one.

    `run` is unique for each run. `machine` names a set of process ids of one boot of one machine (None:
    not known, so nobody can say that the process is gone), `started` is when the process began in it, in
    the kernel's ticks: ids of processes are used again.
    """

    run: str
    host: str
    pid: int | None = None
    machine: str | None = None
    started: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A run that wants to own a job, which another one may run.

    Args:
        process: of the run that asks.
        takeover: whoever runs the job is fenced off.
        ended_run: the `RunProcess.run` of an owner whose process is known to have ended.
    """

    process: RunProcess
    takeover: bool = False
    ended_run: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """One job. Times are epoch milliseconds of the store.

    `alive` means running with a lease that did not run out. `target` is the checkpoint that it has to do
    next, `newest_done` the newest that it did, `process` who owns it, as far as it said. `report` is the last
    word of its newest run, `end` how the last run ended that said so. While a run has the job, `end` is there
    only if the one before left the job down.
    """

    name: str
    pipeline: str
    fence: Fence
    state: JobState
    alive: bool
    owner: str | None
    started_ms: int | None
    heartbeat_ms: int | None
    lease_until_ms: int | None
    target: CheckpointNumber | None
    newest_done: CheckpointNumber | None
    datasets: int
    liveness: Liveness
    process: RunProcess | None = None
    report: RunReport | None = None
    end: RunEnd | None = None

    @property
    def seen_ms(self) -> int | None:
        """Its last sign of life, be it a start that failed."""
        if self.liveness is Liveness.FAILED and self.end is not None:
            return self.end.at_ms
        return self.heartbeat_ms or self.started_ms

    @property
    def work(self) -> Work | None:
        """What it does now, if it runs and that takes more than a moment."""
        return self.report.work if self.liveness is Liveness.RUNNING and self.report is not None else None

    @property
    def command(self) -> str:
        """The command that goes on where the job stopped."""
        if self.report is None:
            return "taut run"
        continuous = "" if self.report.interval_ms is None else " --continuous"
        job = "" if self.name == self.pipeline else f" --job {self.name}"
        return f"taut run{continuous}{job}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgress:
    """A job's part in one checkpoint; times as in `JobStatus`.

    `cpu_ms` is what it took of the job's process, `waits_for` the job whose tables it waits for.
    """

    job: str
    part: Part
    alive: bool
    started_ms: int | None
    finished_ms: int | None
    cpu_ms: int | None
    waits_for: str | None


def quarantines_of(jobs: Iterable[JobStatus]) -> dict[str, Quarantine]:
    """By the name of the dataset whose records are bad: what was set aside last.

    A job that does not have the dataset any more still has a report of it.
    """
    newest: dict[str, Quarantine] = {}
    for job in jobs:
        for name, each in () if job.report is None else job.report.quarantines.items():
            if name not in newest or newest[name].last_ms < each.last_ms:
                newest[name] = each
    return newest

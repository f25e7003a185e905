"""Checkpoints: from the cut over refreshes and invariants to what readers see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tautochrone.model.checkpoint import CheckpointState, NodeRefresh, RefreshMode
from tautochrone.model.counts import counted
from tautochrone.model.definitions import ExpectationCount
from tautochrone.model.events.base import Event, dataset_line, hint_lines, seconds, violated
from tautochrone.model.reason import Reason

__all__ = [
    "Alignment",
    "Checkpoint",
    "CheckpointAborted",
    "CheckpointHeld",
    "CheckpointLeft",
    "CheckpointPublished",
    "CleanupFailed",
    "CutAligned",
    "FewInputRows",
    "HeldBack",
    "InvariantBroken",
    "InvariantSkipped",
    "NoNews",
    "OutsiderNotTagged",
    "Refresh",
    "RefreshFailed",
    "RefreshWaiting",
    "WaitingForJob",
    "WaitingForJobs",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FewInputRows(Event):
    """Views whose inputs hold at most `rows` rows together are compared: once per run, before the first such
    refresh."""

    rows: int

    def text(self) -> str:
        return (
            f"  views whose inputs hold at most {counted(self.rows, 'row')} together are compared (DIFF) "
            "unless rows were only added: that is cheaper than following a change"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Refresh(Event):
    """A derived table has its version for a checkpoint."""

    dataset: str
    checkpoint: int
    mode: RefreshMode
    reason: Reason
    nodes: Sequence[NodeRefresh]
    rows_inserted: int
    rows_deleted: int
    duration_ms: int
    cpu_ms: int | None
    estimate_ms: int | None
    delta_rows: int
    expectations: Sequence[ExpectationCount]
    """each with `name`, `action`, `violations` and their `change`"""

    def text(self) -> str:
        return dataset_line(
            self.dataset,
            f"{self.mode.upper():<11} +{self.rows_inserted:,} -{self.rows_deleted:,} rows  "
            f"{seconds(self.duration_ms)}  ({self.reason}){violated(self.expectations)}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshFailed(Event):
    """A derived table has no version for a checkpoint."""

    failure: ClassVar[bool] = True

    dataset: str
    checkpoint: int
    error: Reason
    hint: str | None

    def text(self) -> str:
        failed = f"  {self.dataset} FAILED at checkpoint {self.checkpoint}: {self.error}"
        return "\n".join([failed, *hint_lines(self.hint)])


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshWaiting(Event):
    """A dataset gets no version because the bulk of its source is not complete; no error."""

    dataset: str
    checkpoint: int
    reason: Reason

    def text(self) -> str:
        return dataset_line(self.dataset, f"refresh waiting (checkpoint {self.checkpoint}): {self.reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class InvariantBroken(Event):
    """An invariant returned rows."""

    failure: ClassVar[bool] = True

    invariant: str
    checkpoint: int
    location: str
    rows: int
    at_least: bool
    """there are more than `rows`"""
    sample: Sequence[str]
    """a few of them"""
    error: str

    def text(self) -> str:
        more = self.at_least or self.rows > len(self.sample)
        rows = [f"    {row}" for row in self.sample] + ["    …"] * bool(more and self.sample)
        return "\n".join([f"  {self.error} (checkpoint {self.checkpoint})", *rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class InvariantSkipped(Event):
    """An invariant was not checked."""

    invariant: str
    checkpoint: int
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint(Event):
    """This job has done its part of a checkpoint."""

    checkpoint: int
    state: CheckpointState
    job: str
    failed: Sequence[str]
    """datasets without a version"""
    duration_ms: int
    cpu_ms: int | None = None
    waits_for: Sequence[str] = ()
    """jobs that have not done their parts"""
    skipped_by: Sequence[str] = ()
    invariants: Sequence[str] = ()
    """that hold it back"""

    @property
    def published(self) -> bool:
        return self.state is CheckpointState.PUBLISHED

    def text(self) -> str:
        failed = f"  FAILED: {', '.join(self.failed)}" if self.failed else ""
        duration = f"in {seconds(self.duration_ms)}{failed}"
        if self.published:
            return f"checkpoint {self.checkpoint} published {duration}"
        obstacles = [f"waits for job {name}" for name in self.waits_for]
        obstacles += [f"job {name} skipped it" for name in self.skipped_by]
        obstacles += [f"held back by invariant {name}" for name in self.invariants]
        suffix = f" ({'; '.join(obstacles)})" if obstacles else ""
        return f"checkpoint {self.checkpoint}: this job's part is done {duration}; not published yet{suffix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointAborted(Event):
    """An invariant kept a checkpoint from being published, or it was given up."""

    checkpoint: int
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPublished(Event):
    """The last job has done its part."""

    checkpoint: int
    state: CheckpointState

    def text(self) -> str:
        return f"checkpoint {self.checkpoint} published: all jobs did their part"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointHeld(Event):
    """Readers will not see a checkpoint."""

    checkpoint: int
    state: CheckpointState
    jobs: Sequence[str]
    invariants: Sequence[str]
    reason: Reason

    def text(self) -> str:
        return f"checkpoint {self.checkpoint} is not shown to readers: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLeft(Event):
    """The run ends before readers see all that was there."""

    failure: ClassVar[bool] = True

    checkpoint: int | None
    error_class: str
    job: str
    jobs: Sequence[str]
    invariants: Sequence[str]
    reason: Reason

    def text(self) -> str:
        return (
            f"[{self.error_class}] readers do not see all that was there when this run began: {self.reason}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingForJobs(Event):
    """The run waits for other jobs before it ends."""

    checkpoint: int
    jobs: Sequence[str]
    reason: Reason

    def text(self) -> str:
        return f"waiting for checkpoint {self.checkpoint}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingForJob(Event):
    """Tables wait for another job."""

    checkpoint: int
    job: str | None
    dataset: str
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class NoNews(Event):
    """Nothing changed since the newest checkpoint. A reason says how that is known without Spark."""

    checkpoint: int | None
    duration_ms: int
    reason: Reason | None = None

    def text(self) -> str:
        return "" if self.reason is None else f"nothing new since checkpoint {self.checkpoint}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment(Event):
    """Which roots are aligned, and which are not."""

    bound_ms: int
    roots: Sequence[str]
    unaligned: Sequence[str]
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class CutAligned(Event):
    """A cut takes an older version of a root."""

    root: str
    ahead_ms: int | None
    behind: str
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBack(Event):
    """No checkpoint is opened: other jobs or a sink must go first."""

    checkpoint: int | None
    jobs: Sequence[str]
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsiderNotTagged(Event):
    """A version of an external table could not be tagged."""

    dataset: str
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupFailed(Event):
    """A leftover could not be deleted."""

    failure: ClassVar[bool] = True

    dataset: str
    error: str

"""What readers see of a job's work: a shared checkpoint is published when every job did its part.

Of a checkpoint of which only this job's part is done it is told for whom it waits, and later what became of
it. A one-shot run ends when readers see all that was there at its beginning, or says what is missing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from tautochrone.model.checkpoint import CheckpointState
from tautochrone.model.events import Field
from tautochrone.model.jobs import MissingPart
from tautochrone.model.names import CheckpointNumber
from tautochrone.runtime.job.job import Job

__all__ = ["Readers"]

_LOOK_S = 0.2


class Readers:
    """One for each run.

    Attributes:
        missing: what the run leaves unreadable, with the reason; it ends as failed then.
    """

    def __init__(self, job: Job, stopping: threading.Event) -> None:
        self._job = job
        self._stopping = stopping
        self._started_ms = 0
        self._unpublished: CheckpointNumber | None = None
        self.missing: dict[str, str] = {}

    def begin(self) -> None:
        """What is in the sources from now on may be left to the next run."""
        self._started_ms = self._job.store.now_ms()

    def done(self, number: CheckpointNumber, state: CheckpointState) -> dict[str, Field]:
        """The job's part of a checkpoint is done: whose parts are not."""
        self._unpublished = number if state is CheckpointState.OPEN else None
        missing = () if state is CheckpointState.PUBLISHED else self._job.store.missing(self._job.name)
        mine = [one for one in missing if one.checkpoint == number]
        pending = (MissingPart.PENDING, MissingPart.AWAY)
        return {
            "job": self._job.name,
            "waits_for": [one.job for one in mine if one.what in pending],
            "skipped_by": [one.job for one in mine if one.what is MissingPart.SKIPPED],
            "invariants": [name for one in mine for name in one.invariants],
        }

    def follow(self) -> None:
        """Tell what became of the checkpoint of which the job's part was done first."""
        number = self._unpublished
        if number is None:
            return
        job = self._job
        checkpoint = job.store.checkpoint(number)
        if checkpoint.state is CheckpointState.OPEN:
            return
        self._unpublished = None
        if checkpoint.state is CheckpointState.PUBLISHED:
            job.emit("checkpoint_published", checkpoint=int(number), state=str(checkpoint.state))
            return
        mine = [one for one in job.store.missing(job.name) if one.checkpoint == number]
        job.emit(
            "checkpoint_held",
            checkpoint=int(number),
            state=str(checkpoint.state),
            jobs=[one.job for one in mine],
            invariants=[name for one in mine for name in one.invariants],
            reason="; ".join(one.reason for one in mine) or f"it is {checkpoint.state}",
        )

    def wait(self, bring: Callable[[], None]) -> None:
        """Return when readers see all that was there at the beginning, or the patience is over.

        Args:
            bring: does the job's part of what others opened meanwhile.
        """
        job = self._job
        until = time.monotonic() + job.settings.patience_ms / 1000
        # Aligned cuts leave rows out on purpose, and say so.
        after_ms = self._started_ms if job.settings.align_ms is None else None
        said: str | None = None
        while not self.missing:
            missing = job.store.missing(job.name, after_ms)
            self.follow()
            if not missing or self._stopping.is_set():
                return
            reason, jobs = "; ".join(one.reason for one in missing), [one.job for one in missing]
            number = missing[0].checkpoint
            invariants = [name for one in missing for name in one.invariants]
            # A part that was given up for an invariant does not come back by waiting.
            if invariants or time.monotonic() >= until:
                self.leave(reason, jobs=jobs, checkpoint=number, invariants=invariants)
                return
            if reason != said:
                said = reason
                job.emit("waiting_for_jobs", checkpoint=int(number), jobs=list(jobs), reason=reason)
            self._stopping.wait(_LOOK_S)
            if job.store.open_target(job.name) is not None:
                bring()

    def leave(
        self,
        reason: str,
        *,
        jobs: Sequence[str],
        checkpoint: CheckpointNumber | None = None,
        invariants: Sequence[str] = (),
    ) -> None:
        """The run ends before readers see what it did. Without `checkpoint` it is the job's own target."""
        job = self._job
        target = job.store.open_target(job.name) if checkpoint is None else None
        number = checkpoint if target is None else target.number
        if not self._stopping.is_set():
            what = "checkpoint" if number is None else f"checkpoint {number}"
            self.missing = {what: f"[CHECKPOINT_NOT_READABLE] {reason}"}
        job.emit(
            "checkpoint_left",
            job=job.name,
            error_class="CHECKPOINT_NOT_READABLE",
            checkpoint=None if number is None else int(number),
            jobs=list(jobs),
            invariants=list(invariants),
            reason=reason,
        )

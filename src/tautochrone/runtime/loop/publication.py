"""Whether readers can see a run's work: a shared checkpoint is published when every job did its part.

A run that did its part of a checkpoint reports which jobs are still missing, and later whether the checkpoint
was published. A one-shot run ends when readers see all data of its start, or says what they miss.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from tautochrone.meta import Store
from tautochrone.model import events
from tautochrone.model.checkpoint import CheckpointState
from tautochrone.model.jobs import BlockerKind, PublicationBlocker
from tautochrone.model.names import CheckpointNumber
from tautochrone.model.reason import Reason, ReasonCode, joined_reasons
from tautochrone.project.settings import Settings

__all__ = ["Publication"]

_POLL_S = 0.2


class Publication:
    """Follows the job's checkpoints until they are published. One per run.

    Attributes:
        unreadable: what the run leaves unpublished, with the reason. Such a run ends as failed.
    """

    def __init__(
        self, store: Store, settings: Settings, emit: events.Emit, stopping: threading.Event
    ) -> None:
        self._store = store
        self._job = settings.job
        self._settings = settings
        self._emit = emit
        self._stopping = stopping
        self._started_ms = 0
        self._unpublished: CheckpointNumber | None = None
        self.unreadable: dict[str, str] = {}

    def begin(self) -> None:
        """Remember the start of the run: data that arrives later may be left to the next run."""
        self._started_ms = self._store.now_ms()

    def report_part(
        self,
        number: CheckpointNumber,
        state: CheckpointState,
        *,
        failed: Sequence[str],
        duration_ms: int,
        cpu_ms: int,
    ) -> None:
        """Report that this job's part of a checkpoint is done, and which jobs are missing.

        Args:
            failed: datasets without a version.
            duration_ms: since the part was begun; so is `cpu_ms`.
        """
        self._unpublished = number if state is CheckpointState.OPEN else None
        blockers = [] if state is CheckpointState.PUBLISHED else self._blockers(number)
        pending = (BlockerKind.PENDING, BlockerKind.AWAY)
        self._emit(
            events.Checkpoint(
                checkpoint=number,
                state=state,
                job=self._job,
                waits_for=[blocker.job for blocker in blockers if blocker.kind in pending],
                skipped_by=[blocker.job for blocker in blockers if blocker.kind is BlockerKind.SKIPPED],
                invariants=[name for blocker in blockers for name in blocker.invariants],
                failed=failed,
                duration_ms=duration_ms,
                cpu_ms=cpu_ms,
            )
        )

    def report_outcome(self) -> None:
        """Report once whether the checkpoint of which this job did its part was published."""
        number = self._unpublished
        if number is None:
            return
        checkpoint = self._store.checkpoints.get(number)
        if checkpoint.state is CheckpointState.OPEN:
            return
        self._unpublished = None
        if checkpoint.state is CheckpointState.PUBLISHED:
            self._emit(events.CheckpointPublished(checkpoint=number, state=checkpoint.state))
            return
        blockers = self._blockers(number)
        self._emit(
            events.CheckpointHeld(
                checkpoint=number,
                state=checkpoint.state,
                jobs=[blocker.job for blocker in blockers],
                invariants=[name for blocker in blockers for name in blocker.invariants],
                reason=(
                    joined_reasons([blocker.reason for blocker in blockers])
                    if blockers
                    else Reason.of(ReasonCode.CHECKPOINT_STATE, state=str(checkpoint.state))
                ),
            )
        )

    def _blockers(self, number: CheckpointNumber) -> list[PublicationBlocker]:
        blockers = self._store.reads.publication_blockers(self._job)
        return [blocker for blocker in blockers if blocker.checkpoint == number]

    def wait(self, advance: Callable[[], None]) -> None:
        """Wait until readers see all data that existed at the start, for at most `run.patience`.

        Args:
            advance: does the job's part of checkpoints that other jobs open meanwhile.
        """
        until = time.monotonic() + self._settings.patience_ms / 1000
        # Aligned cuts leave rows out on purpose.
        sources_as_of_ms = self._started_ms if self._settings.align_ms is None else None
        reported: Reason | None = None
        while not self.unreadable:
            blockers = self._store.reads.publication_blockers(self._job, sources_as_of_ms)
            self.report_outcome()
            if not blockers or self._stopping.is_set():
                return
            reason = joined_reasons([blocker.reason for blocker in blockers])
            jobs = [blocker.job for blocker in blockers]
            number = blockers[0].checkpoint
            invariants = [name for blocker in blockers for name in blocker.invariants]
            # A part that was aborted for an invariant stays missing, however long the run waits.
            if invariants or time.monotonic() >= until:
                self.give_up(reason, jobs=jobs, checkpoint=number, invariants=invariants)
                return
            if reason != reported:
                reported = reason
                self._emit(events.WaitingForJobs(checkpoint=number, jobs=jobs, reason=reason))
            self._stopping.wait(_POLL_S)
            if self._store.checkpoints.next_for(self._job) is not None:
                advance()

    def give_up(
        self,
        reason: Reason,
        *,
        jobs: Sequence[str],
        checkpoint: CheckpointNumber | None = None,
        invariants: Sequence[str] = (),
    ) -> None:
        """End the run although readers do not see all its work.

        Args:
            checkpoint: that stays unpublished; None: the job's open checkpoint.
        """
        open_checkpoint = self._store.checkpoints.next_for(self._job) if checkpoint is None else None
        number = checkpoint if open_checkpoint is None else open_checkpoint.number
        if not self._stopping.is_set():
            name = "checkpoint" if number is None else f"checkpoint {number}"
            self.unreadable = {name: f"[CHECKPOINT_NOT_READABLE] {reason}"}
        self._emit(
            events.CheckpointLeft(
                job=self._job,
                error_class="CHECKPOINT_NOT_READABLE",
                checkpoint=number,
                jobs=jobs,
                invariants=invariants,
                reason=reason,
            )
        )

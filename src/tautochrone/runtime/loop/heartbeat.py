"""The lease of a running job: renewed while it lives, given back at its end.

Nothing depends on it but how long other jobs wait, so it is no durable step: a beat that is lost or late
changes no data.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from tautochrone.errors import FencedError, TautochroneError
from tautochrone.model.closing import Closing
from tautochrone.model.names import CheckpointNumber
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.loop.cut import Cut
from tautochrone.traces import trace_of

__all__ = ["Heartbeat"]


class Heartbeat(Closing):
    """Beats three times a lease from a thread of its own, from `start` until `stop`."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tautochrone-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Give the lease back: nobody need wait for it to run out. Repeatable."""
        if not self._stopping.is_set():
            self._stopping.set()
            if self._thread.is_alive():
                self._thread.join(timeout=30)
            if self._job.journal.fence == 0:
                # It never owned the job: whoever does keeps it.
                return
            self._tell(lambda: self._job.store.end_run(self._job.name, self._job.journal.fence))

    def looked(self, cut: Cut, checkpoint: CheckpointNumber | None) -> None:
        """The job looked for news and found none that `checkpoint` does not show."""
        job = self._job
        self._tell(
            lambda: job.store.beat(
                job.name,
                job.journal.fence,
                job.settings.lease_ms,
                looked_ms=cut.looked_ms,
                looks=cut.looks,
                checkpoint=checkpoint,
            )
        )

    def _run(self) -> None:
        job = self._job
        while not self._stopping.wait(job.settings.lease_ms / 3000):
            self._tell(lambda: job.store.beat(job.name, job.journal.fence, job.settings.lease_ms))

    def _tell(self, say: Callable[[], None]) -> None:
        try:
            say()
        except FencedError:
            # A newer owner exists: the loop meets it at its next step, and ends there.
            self._stopping.set()
        except TautochroneError as error:
            self._job.emit("heartbeat_missed", job=self._job.name, reason=str(error))
        except Exception as error:
            # The thread lives on: without it other jobs would take this one for dead.
            reason = f"{type(error).__name__}: {error} ({trace_of(error, 'heartbeat')})"
            self._job.emit("heartbeat_missed", job=self._job.name, reason=reason)

"""Renews the lease of a running job, and returns it at the end.

The lease only decides how long other jobs wait. A heartbeat that is lost or late changes no data, so it is
no durable step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from tautochrone.errors import FencedError, TautochroneError
from tautochrone.model import events
from tautochrone.model.closeable import Closeable
from tautochrone.model.names import CheckpointNumber
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.runtime.job.journal import Journal
from tautochrone.runtime.loop.cut import Cut
from tautochrone.traces import trace_of

__all__ = ["Heartbeat"]


class Heartbeat(Closeable):
    """Renews the lease three times per lease period, in its own thread, from `start` until `close`."""

    def __init__(self, journal: Journal, lease_ms: int, emit: events.Emit) -> None:
        self._journal = journal
        self._lease_ms = lease_ms
        self._emit = emit
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tautochrone-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Return the lease, so that other jobs need not wait for its end. May be called again."""
        if not self._stopping.is_set():
            self._stopping.set()
            if self._thread.is_alive():
                self._thread.join(timeout=30)
            if self._journal.fence == 0:
                # This run never owned the job; the lease belongs to another run.
                return
            self._send(lambda: self._journal.store.jobs.end_run(self._journal.name, self._journal.fence))

    def report_no_news(self, cut: Cut, checkpoint: CheckpointNumber | None) -> None:
        """Renew the lease and record that `checkpoint` shows all data of the cut."""
        journal = self._journal
        self._send(
            lambda: journal.store.jobs.heartbeat(
                journal.name,
                journal.fence,
                self._lease_ms,
                observed_ms=cut.observed_ms,
                observations=cut.observations,
                checkpoint=checkpoint,
            )
        )

    def _run(self) -> None:
        journal = self._journal
        while not self._stopping.wait(self._lease_ms / 3000):
            self._send(lambda: journal.store.jobs.heartbeat(journal.name, journal.fence, self._lease_ms))

    def _send(self, request: Callable[[], None]) -> None:
        try:
            request()
        except FencedError:
            # A newer owner exists. The loop notices at its next durable step, and ends.
            self._stopping.set()
        except TautochroneError as error:
            self._report_missed(error.error_class, str(error))
        except Exception as error:
            # The thread must go on, or other jobs take this one for dead.
            error_class = type(error).__name__
            self._report_missed(error_class, f"{error_class}: {error} ({trace_of(error, 'heartbeat')})")

    def _report_missed(self, error_class: str, text: str) -> None:
        reason = Reason.of(ReasonCode.LEASE_NOT_RENEWED, error_class=error_class, text=text)
        self._emit(events.HeartbeatMissed(job=self._journal.name, reason=reason))

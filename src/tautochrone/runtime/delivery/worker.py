"""The thread of one sink: it waits for news, works, and tries again after growing pauses."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod

from tautochrone.errors import FencedError, SinkFencedError, TautochroneError
from tautochrone.model import events
from tautochrone.model.backoff import Backoff
from tautochrone.model.sink import DeliveryPolicy
from tautochrone.runtime.job.job import Job
from tautochrone.traces import is_defect, trace_of

__all__ = ["UNFINISHED", "SinkWorker"]

_LONGEST_PAUSE_S = 60.0
_JOIN_S = 600.0
"""How long a cancelled run waits for a sink."""

UNFINISHED = "the run ended before the sink had all rows; the next run goes on"


class SinkWorker(ABC):
    """Call `start`, `wake` after each published checkpoint, `wait_until_settled` at an orderly end, and
    `stop` at any end.

    Args:
        poll_s: how often it works without being woken; None: never.
        first_pause_s: before the first further try. Each pause is twice as long as the one before.

    Attributes:
        error: of the last try; None after one that succeeded.
        fatal: what ended the thread and ends the run: a newer owner of the job or of the sink, or a defect.
    """

    policy = DeliveryPolicy.RETRY

    def __init__(self, job: Job, name: str, *, poll_s: float | None, first_pause_s: float) -> None:
        self.name = name
        self.error: str | None = None
        self.fatal: BaseException | None = None
        self._job = job
        self._poll_s = poll_s
        self._backoff = Backoff(first_s=first_pause_s, longest_s=_LONGEST_PAUSE_S)
        self._failures = 0
        self._news = threading.Event()
        self._news.set()
        self._settled = threading.Event()
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"tautochrone-sink-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        with self._lock:
            self._settled.clear()
            self._news.set()

    @property
    def is_settled(self) -> bool:
        """Whether the sink has the newest checkpoint that was announced, or tried for the last time."""
        return self._settled.is_set()

    @property
    def is_skipping(self) -> bool:
        """Whether failures of the sink no longer count against the run."""
        return False

    def wait_until_settled(self) -> None:
        """Wait until the sink is settled or gives up; if the run was cancelled, 10 minutes at most."""
        cancelled = self._job.ownership.cancelled
        until: float | None = None
        while self._thread.is_alive() and (until is None or time.monotonic() < until):
            if self._settled.wait(0.02) or self._gives_up():
                return
            if until is None and cancelled.is_set():
                until = time.monotonic() + _JOIN_S
        if self.fatal is None and not self.is_settled and self.error is None:
            self.error = UNFINISHED

    def stop(self) -> None:
        """Finish what is under way, or leave it to the next run. Repeatable."""
        self._stopping.set()
        self._news.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)

    @abstractmethod
    def _work(self) -> None:
        """One try. It calls `_settle` when nothing is left to do before the next news."""

    @abstractmethod
    def _on_failure(self, error: Exception) -> None:
        """A try failed: record it with `_report_failure`, and `_pause` if there shall be a further one."""

    @abstractmethod
    def _close(self) -> None:
        """Runs once, in the thread, at any end of it."""

    def _gives_up(self) -> bool:
        """Whether the end of a run waits no longer for this sink."""
        return False

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._news.wait(self._poll_s)
                if self._stopping.is_set():
                    break
                self._news.clear()
                self._try()
        except BaseException as error:
            self.fatal = error
        finally:
            self._close()

    def _try(self) -> None:
        try:
            self._work()
        except (FencedError, SinkFencedError):
            raise
        except Exception as error:
            self._failures += 1
            self._on_failure(error)

    def _settle(self) -> None:
        """Nothing more is done before the next news."""
        with self._lock:
            if not self._news.is_set():
                self._settled.set()

    def _failure_text(self, error: Exception) -> str:
        if isinstance(error, TautochroneError) and not is_defect(error):
            return str(error)
        return f"{type(error).__name__}: {error} ({trace_of(error, f'sink {self.name}')})"

    def _report_failure(self, error: Exception, text: str, *, is_last: bool) -> None:
        """Keep the failure, and tell people.

        Args:
            is_last: this run does not try again.
        """
        self.error = text
        self._job.emit(
            events.SinkFailed(
                sink=self.name,
                error=text,
                error_class=error.error_class
                if isinstance(error, TautochroneError)
                else type(error).__name__,
                hint=error.hint if isinstance(error, TautochroneError) else None,
                failures=self._failures,
                retry_in_ms=None if is_last else round(self._pause_s * 1000),
            )
        )

    @property
    def _pause_s(self) -> float:
        return self._backoff.wait_s(self._failures)

    def _pause(self) -> None:
        """Wait before the next try."""
        self._stopping.wait(self._pause_s)
        self._news.set()

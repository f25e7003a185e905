"""All sinks of a job: one thread each, so that a slow or broken sink delays neither checkpoints nor others.

A thread waits until a checkpoint is published, then delivers the newest. A delivery that fails is tried
again with growing pauses. What ends the run (a newer owner of the job, a defect outside of the sink) is kept
and raised in the loop's own thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection

from tautochrone.errors import FencedError, SinkError, SinkFencedError, TautochroneError
from tautochrone.model.delivery import DeliveryPolicy, DeliveryState, SinkDeclaration
from tautochrone.model.effects import Step
from tautochrone.model.names import TableName
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.project.stream_sinks import StreamSink
from tautochrone.runtime.delivery.declarations import declared_sinks, streamed_sinks
from tautochrone.runtime.delivery.delivery import Delivery
from tautochrone.runtime.delivery.sink_stream import UNFINISHED, SinkStream
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.job.selection import Selection
from tautochrone.runtime.streams.streams import Streams
from tautochrone.traces import is_defect, trace_of

__all__ = ["Deliveries"]

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 60.0
_POLL_S = 5.0
"""How often a sink looks for checkpoints that other jobs completed."""
_LAST_TRIES = 3
"""Failed tries in a row after which the end of a run waits no longer for a sink."""
_JOIN_S = 600.0
"""How long a cancelled run waits for a sink."""

NOT_RETRYABLE = frozenset(
    {
        "SINK_AHEAD_OF_STORE",
        "SINK_FORMAT_UNKNOWN",
        "SINK_NAME_TAKEN",
        "SINK_NEEDS_KEY",
        "SINK_OF_ANOTHER_STORE",
        "SINK_OPTION_MISSING",
        "SINK_TAKES_INSERTS_ONLY",
        "SINK_TAKES_ONE_TABLE",
    }
)
"""Error classes that no further try can change."""


class Deliveries:
    """Call `begin` after the takeover, `published` after each checkpoint, `finish` at an orderly end and
    `stop` at any end."""

    def __init__(self, job: Job, streams: Streams, selection: Selection) -> None:
        self._job = job
        self._streams = streams
        self._selection = selection
        self._workers: list[_Worker | SinkStream] = []

    def begin(self, interval_ms: int | None = None) -> None:
        """Start delivering: first what an earlier run left, then what is published by now.

        Args:
            interval_ms: between two checkpoints of a continuous run; None: the run is one-shot.
        """
        job = self._job
        declarations = declared_sinks(job.topology, job.settings.sinks)
        streamed = [sink for sink in self._streamed() if sink.flows]
        self._retire({*(sink.name for sink in declarations), *(sink.name for sink in streamed)})
        self._workers = [_Worker(job, declaration) for declaration in declarations]
        for sink in streamed:
            is_fresh = sink.target in self._selection.full_sinks
            self._workers.append(
                SinkStream(job, self._streams, sink, is_fresh=is_fresh, interval_ms=interval_ms)
            )
        for worker in self._workers:
            worker.start()

    def _streamed(self) -> tuple[StreamSink, ...]:
        """The sinks that Spark writes; those that no flow writes are reported."""
        sinks = streamed_sinks(self._job.topology, self._job.settings.sinks)
        for sink in sinks:
            if not sink.flows:
                self._job.emit(
                    "sink_not_served",
                    sink=sink.name,
                    format=sink.format,
                    reason=Reason.of(ReasonCode.SINK_WITHOUT_FLOW),
                )
        return sinks

    def published(self) -> None:
        """Wake the sinks: a checkpoint was published."""
        for worker in self._workers:
            worker.wake()

    def require_alive(self) -> None:
        """Raise what ended a thread that must not have ended.

        Raises:
            FencedError: a newer owner runs the job, or delivers to one of its sinks.
        """
        for worker in self._workers:
            if worker.fatal is not None:
                raise worker.fatal

    @property
    def full_refreshes_left(self) -> frozenset[TableName]:
        """The selected sinks to which not all flows have begun to send all rows again."""
        begun = {
            worker.target
            for worker in self._workers
            if isinstance(worker, SinkStream) and not worker.is_full_refresh_left
        }
        return self._selection.full_sinks - begun

    @property
    def holding_back(self) -> dict[str, str]:
        """Sinks without which the next checkpoint must not be published, and why they lag."""
        return {
            worker.name: worker.error or "it is being delivered"
            for worker in self._workers
            if worker.policy is DeliveryPolicy.HOLD_BACK and not worker.is_settled
        }

    @property
    def problems(self) -> dict[str, str]:
        """What counts against the run: sink → error."""
        return {
            f"sink {worker.name}": worker.error
            for worker in self._workers
            if worker.error is not None and not worker.is_skipping
        }

    def finish(self) -> None:
        """Wait until each sink has the newest checkpoint or failed several times; then stop.

        Raises:
            FencedError: as `require_alive`.
        """
        for worker in self._workers:
            worker.finish()
        self.stop()
        self.require_alive()

    def stop(self) -> None:
        """Stop delivering: what is under way is finished, or recovered by the next run. Repeatable."""
        for worker in self._workers:
            worker.stop()

    def _retire(self, names: Collection[str]) -> None:
        job = self._job
        undeclared = [
            sink for sink in job.store.deliveries.sinks() if sink.job == job.name and sink.name not in names
        ]
        retired = [sink.name for sink in undeclared if sink.state is not DeliveryState.RETIRED]
        if not retired:
            return
        job.effects.perform(
            Step.META_DELIVERY_RETIRE,
            job.name,
            lambda: job.store.deliveries.retire_others(job.name, job.journal.fence, sorted(names)),
        )
        for name in retired:
            job.emit("sink_retired", sink=name, reason=Reason.of(ReasonCode.SINK_NOT_DECLARED))


class _Worker:
    """The thread of one sink."""

    def __init__(self, job: Job, declaration: SinkDeclaration) -> None:
        self.name = declaration.name
        self.policy = declaration.policy
        self.error: str | None = None
        self.fatal: BaseException | None = None
        self._job = job
        self._attempts = declaration.attempts
        self._delivery = Delivery(job, declaration)
        self._failures = 0
        self._news = threading.Event()
        self._news.set()
        self._settled = threading.Event()
        self._stopping = threading.Event()
        self._needs_attention = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"tautochrone-sink-{self.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        with self._lock:
            self._settled.clear()
            self._news.set()

    @property
    def is_settled(self) -> bool:
        """Whether the sink has the newest checkpoint that was announced."""
        return self._settled.is_set()

    @property
    def is_skipping(self) -> bool:
        return self.policy is DeliveryPolicy.SKIP_WITH_ALARM and self._failures >= self._attempts

    def finish(self) -> None:
        cancelled = self._job.ownership.cancelled
        until: float | None = None
        while self._thread.is_alive() and (until is None or time.monotonic() < until):
            if self._settled.wait(0.02) or self._needs_attention or self._failures >= _LAST_TRIES:
                return
            if until is None and cancelled.is_set():
                until = time.monotonic() + _JOIN_S
        if self.fatal is None and not self.is_settled and self.error is None:
            self.error = UNFINISHED

    def stop(self) -> None:
        self._stopping.set()
        self._news.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                # It also looks without being woken, because other jobs complete checkpoints too.
                self._news.wait(_POLL_S)
                if self._stopping.is_set():
                    break
                self._news.clear()
                self._try()
        except BaseException as error:
            self.fatal = error
        finally:
            self._close()

    def _try(self) -> None:
        if self._needs_attention:
            return
        try:
            while self._delivery.deliver():
                pass
        except (FencedError, SinkFencedError):
            raise
        except Exception as error:
            self._failed(error)
            return
        self._failures, self.error = 0, None
        with self._lock:
            if not self._news.is_set():
                self._settled.set()

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        self._delivery.failed()
        text = str(error)
        if not isinstance(error, TautochroneError) or is_defect(error):
            text = f"{type(error).__name__}: {error} ({trace_of(error, f'sink {self.name}')})"
        self._needs_attention = isinstance(error, TautochroneError) and error.error_class in NOT_RETRYABLE
        is_skipped = self.policy is DeliveryPolicy.SKIP_WITH_ALARM and self._failures == self._attempts
        journal = self._delivery.journal
        if journal.fence:
            journal.failed(text, failures=self._failures, skips=is_skipped, attention=self._needs_attention)
        self.error = text
        pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (self._failures - 1))
        self._job.emit(
            "sink_failed",
            sink=self.name,
            error=text,
            error_class=error.error_class if isinstance(error, TautochroneError) else type(error).__name__,
            hint=error.hint if isinstance(error, TautochroneError) else None,
            failures=self._failures,
            retry_in_ms=None if self._needs_attention else round(pause_s * 1000),
        )
        if is_skipped:
            self._job.emit(
                "sink_skipped",
                sink=self.name,
                failures=self._failures,
                reason=Reason.of(ReasonCode.SINK_FAILED_TOO_OFTEN),
            )
        if not self._needs_attention:
            self._stopping.wait(pause_s)
            self._news.set()

    def _close(self) -> None:
        try:
            self._delivery.close()
        except (SinkError, OSError) as error:
            self._job.emit("sink_failed", sink=self.name, error=str(error), error_class="SINK_CLOSE")

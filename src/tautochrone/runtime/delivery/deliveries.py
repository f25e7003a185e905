"""All sinks of a job: one thread each, so that a slow or broken sink delays neither checkpoints nor others.

A thread waits until a checkpoint is published, then delivers the newest. A delivery that fails is tried
again with growing pauses. What ends the run (a newer owner of the job, a defect outside of the sink) is kept
and raised in the loop's own thread.
"""

from __future__ import annotations

from collections.abc import Collection

from tautochrone.meta import protocols
from tautochrone.model import events
from tautochrone.model.names import TableName
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.sink import DeliveryPolicy, DeliveryState
from tautochrone.project.sinks import StreamSink
from tautochrone.runtime.delivery.delivery import DeliveryWorker
from tautochrone.runtime.delivery.sink_stream import SinkStream
from tautochrone.runtime.delivery.worker import SinkWorker
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.job.topology import Selection, declared_sinks, streamed_sinks
from tautochrone.runtime.streams.streams import Streams

__all__ = ["Deliveries"]


class Deliveries:
    """Call `begin` after the takeover, `wake_workers` after each checkpoint, `finish` at an orderly end and
    `stop` at any end."""

    def __init__(self, job: Job, streams: Streams, selection: Selection) -> None:
        self._job = job
        self._streams = streams
        self._selection = selection
        self._workers: list[SinkWorker] = []

    def begin(self, interval_ms: int | None = None) -> None:
        """Start delivering: first what an earlier run left, then what is published by now.

        Args:
            interval_ms: between two checkpoints of a continuous run; None: the run is one-shot.
        """
        job = self._job
        declarations = declared_sinks(job.topology, job.settings.sinks)
        streamed = [sink for sink in self._served_stream_sinks() if sink.flows]
        self._retire({*(sink.name for sink in declarations), *(sink.name for sink in streamed)})
        self._workers = [DeliveryWorker(job, declaration) for declaration in declarations]
        for sink in streamed:
            is_fresh = sink.target in self._selection.full_sinks
            self._workers.append(
                SinkStream(job, self._streams, sink, is_fresh=is_fresh, interval_ms=interval_ms)
            )
        for worker in self._workers:
            worker.start()

    def _served_stream_sinks(self) -> tuple[StreamSink, ...]:
        """The sinks that Spark writes; those that no flow writes are reported."""
        sinks = streamed_sinks(self._job.topology, self._job.settings.sinks)
        for sink in sinks:
            if not sink.flows:
                self._job.emit(
                    events.SinkNotServed(
                        sink=sink.name,
                        format=sink.format,
                        reason=Reason.of(ReasonCode.SINK_WITHOUT_FLOW),
                    )
                )
        return sinks

    def wake_workers(self) -> None:
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
            worker.wait_until_settled()
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
        job.journal.record(protocols.Deliveries.retire_others, sorted(names))
        for name in retired:
            job.emit(events.SinkRetired(sink=name, reason=Reason.of(ReasonCode.SINK_NOT_DECLARED)))

"""The store and the sink, seen by the owner of one sink: every write is a named step and carries fences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from tautochrone.model.effects import Step
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.sink import (
    Chunk,
    FoldedTable,
    Intent,
    Published,
    Recovered,
    Sink,
    SinkDeclaration,
    SinkFlow,
    SinkMaintenance,
    SinkStatus,
    TransactionId,
)
from tautochrone.redaction import redacted
from tautochrone.runtime.job.journal import Journal

__all__ = ["DeliveryJournal"]

T = TypeVar("T")


@dataclass(slots=True)
class DeliveryJournal:
    """One sink's steps.

    Attributes:
        job: the journal of the job that delivers.
        name: of the sink.
        fence: the sink's own; 0 before `claim`.
    """

    job: Journal
    name: str
    fence: Fence = field(default_factory=lambda: Fence(0))

    def status(self) -> SinkStatus | None:
        """What the store remembers of the sink."""
        return next(
            (status for status in self.job.store.deliveries.sinks() if status.name == self.name), None
        )

    # -- the store --------------------------------------------------------------------------------

    def claim(self, declaration: SinkDeclaration, at_least: Fence) -> None:
        """Become the only one who delivers to the sink."""
        deliveries, job = self.job.store.deliveries, self.job
        self.fence = self._step(
            Step.META_DELIVERY_CLAIM,
            lambda: deliveries.claim(job.name, job.fence, declaration, at_least),
        )

    def intend(self, intent: Intent) -> None:
        deliveries, job = self.job.store.deliveries, self.job
        self._step(
            Step.META_DELIVERY_INTEND,
            lambda: deliveries.record_intent(job.name, job.fence, intent),
        )

    def delivered(self, published: Published) -> None:
        deliveries, job = self.job.store.deliveries, self.job
        self._step(
            Step.META_DELIVERY_DONE,
            lambda: deliveries.record_delivered(job.name, job.fence, self.name, self.fence, published),
        )

    def streamed(
        self,
        flows: Mapping[str, SinkFlow],
        checkpoint: CheckpointNumber | None,
        versions: Mapping[TableName, Version],
    ) -> None:
        deliveries, job = self.job.store.deliveries, self.job
        self._step(
            Step.META_DELIVERY_DONE,
            lambda: deliveries.record_streamed(
                job.name, job.fence, self.name, self.fence, flows, checkpoint, versions
            ),
        )

    def aborted(self) -> None:
        deliveries, job = self.job.store.deliveries, self.job
        self._step(
            Step.META_DELIVERY_ABORT,
            lambda: deliveries.end_intent(job.name, job.fence, self.name, self.fence),
        )

    def failed(self, error: str, *, failures: int, skips: bool, attention: bool) -> None:
        deliveries, job, status = self.job.store.deliveries, self.job, self.status()
        skipped = (0 if status is None else status.skipped) + skips
        self._step(
            Step.META_DELIVERY_FAILED,
            lambda: deliveries.record_failure(
                job.name,
                job.fence,
                self.name,
                self.fence,
                redacted(error),
                failures=failures,
                skipped=skipped,
                attention=attention,
            ),
        )

    # -- the sink ---------------------------------------------------------------------------------

    def raise_fence(self, sink: Sink) -> None:
        self._step(Step.SINK_FENCE, lambda: sink.fence(self.fence))

    def recover(self, sink: Sink, intents: Sequence[Intent]) -> Sequence[Recovered]:
        return self._step(Step.SINK_RECOVER, lambda: sink.recover(intents, self.fence))

    def ensure(self, sink: Sink, table: TableName, schema: object, key: Sequence[str]) -> None:
        self._step(Step.SINK_ENSURE, lambda: sink.ensure(table, schema, key, self.fence))

    def begin(self, sink: Sink, intent: Intent) -> None:
        self._step(Step.SINK_BEGIN, lambda: sink.begin(intent))

    def write(self, write: Callable[[], Sequence[Chunk]]) -> Sequence[Chunk]:
        return self._step(Step.SINK_WRITE, write)

    def prepare(self, sink: Sink, transaction: TransactionId, chunks: Sequence[Chunk]) -> None:
        self._step(Step.SINK_PREPARE, lambda: sink.prepare(transaction, chunks))

    def commit(self, sink: Sink, transaction: TransactionId) -> None:
        self._step(Step.SINK_COMMIT, lambda: sink.commit(transaction, self.fence))

    def abort(self, sink: Sink, transaction: TransactionId) -> None:
        self._step(Step.SINK_ABORT, lambda: sink.abort(transaction, self.fence))

    def maintain(self, sink: SinkMaintenance) -> Sequence[FoldedTable]:
        return self._step(Step.SINK_MAINTAIN, lambda: sink.maintain(self.fence))

    def _step(self, step: Step, action: Callable[[], T]) -> T:
        return self.job.effects.perform(step, self.name, action)

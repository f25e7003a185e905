"""The store and the sink, seen by the owner of one sink: every write is a named step and carries fences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, TypeVar

from tautochrone.meta.protocols.deliveries import Deliveries
from tautochrone.model.effects import Step
from tautochrone.model.names import Fence, TableName
from tautochrone.model.sink import (
    FoldedTable,
    Intent,
    Recovered,
    SentChunk,
    Sink,
    SinkDeclaration,
    SinkMaintenance,
    SinkStatus,
    TransactionId,
)
from tautochrone.redaction import redacted
from tautochrone.runtime.job.journal import Journal

__all__ = ["DeliveryJournal"]

P = ParamSpec("P")
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
        self.fence = self.job.record(Deliveries.claim, declaration, at_least)

    def record(
        self,
        method: Callable[Concatenate[Any, str, Fence, str, Fence, P], T],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """As `Journal.record`, of a method that takes the sink and its fence after the job's."""
        return self.job.record(method, self.name, self.fence, *args, **kwargs)

    def failed(self, error: str, *, failures: int, skips: bool, attention: bool) -> None:
        status = self.status()
        self.record(
            Deliveries.record_failure,
            redacted(error),
            failures=failures,
            skipped=(0 if status is None else status.skipped) + skips,
            attention=attention,
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

    def write(self, write: Callable[[], Sequence[SentChunk]]) -> Sequence[SentChunk]:
        return self._step(Step.SINK_WRITE, write)

    def prepare(self, sink: Sink, transaction: TransactionId, chunks: Sequence[SentChunk]) -> None:
        self._step(Step.SINK_PREPARE, lambda: sink.prepare(transaction, chunks))

    def commit(self, sink: Sink, transaction: TransactionId) -> None:
        self._step(Step.SINK_COMMIT, lambda: sink.commit(transaction, self.fence))

    def abort(self, sink: Sink, transaction: TransactionId) -> None:
        self._step(Step.SINK_ABORT, lambda: sink.abort(transaction, self.fence))

    def maintain(self, sink: SinkMaintenance) -> Sequence[FoldedTable]:
        return self._step(Step.SINK_MAINTAIN, lambda: sink.maintain(self.fence))

    def _step(self, step: Step, action: Callable[[], T]) -> T:
        return self.job.effects.perform(step, self.name, action)

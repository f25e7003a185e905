"""The store as the owner of a job writes to it, and a sink as the owner of its deliveries does.

Every write is a named step and carries fences.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from tautochrone.meta import Store
from tautochrone.meta.database.repository import compare_fence
from tautochrone.meta.protocols.checkpoints import Checkpoints, NewCheckpoint
from tautochrone.meta.protocols.deliveries import Deliveries
from tautochrone.meta.protocols.marks import DurableStepMark, durable_step_of
from tautochrone.meta.protocols.store import parts
from tautochrone.model.checkpoint import BrokenInvariant, Checkpoint, Refresh, RefreshMode
from tautochrone.model.effects import Effects, Step
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.reason import Reason
from tautochrone.model.sink import (
    FoldedTable,
    Intent,
    Recovered,
    Repairable,
    SentChunk,
    Sink,
    SinkDeclaration,
    SinkMaintenance,
    SinkStatus,
    TransactionId,
)
from tautochrone.redaction import redacted

__all__ = ["DeliveryJournal", "Journal"]

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class Journal:
    """Writes a job's progress to the store. Every write carries the job's fence and is one durable step."""

    store: Store
    name: str
    effects: Effects
    fence: Fence = field(default_factory=lambda: Fence(0))
    incarnation: str | None = None
    """The incarnation of the store that gave the fence; None before the takeover."""
    highest_number: int = 0
    """The highest checkpoint number that the store gave this owner."""

    def require(self) -> None:
        """Ask whether the fence is still the newest, before a durable step outside the store.

        Raises:
            FencedError: a newer owner exists.
            MetaError: the fence was not given by this store.
        """
        compare_fence(self.name, self.fence, self.store.jobs.newest_fence(self.name))

    def record(
        self, method: Callable[Concatenate[Any, str, Fence, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call a method of the store in the job's name, as the durable step that its mark says.

            journal.record(Roots.report, {table: version})

        Args:
            method: of a part's protocol.
            args, kwargs: its arguments without job and fence.
        """
        part, write, signature = _store_write(method)
        bound = signature.bind(None, self.name, self.fence, *args, **kwargs)
        call: Callable[..., T] = getattr(getattr(self.store, part), method.__name__)
        action = partial(call, self.name, self.fence, *args, **kwargs)
        return self.effects.perform(write.step, write.subject_of(bound.arguments), action)

    def open(self, new: NewCheckpoint) -> Checkpoint:
        """Open a checkpoint in the store that gave the fence and all numbers of this owner."""
        opened = self.record(
            Checkpoints.open, replace(new, store=self.incarnation, after=self.highest_number)
        )
        self.highest_number = max(self.highest_number, opened.number)
        return opened

    def begin_next(self) -> Checkpoint | None:
        """Start the job's part of the open checkpoint, if there is one."""
        if self.store.checkpoints.next_for(self.name) is None:
            return None
        checkpoint = self.record(Checkpoints.begin_next)
        self.highest_number = max(self.highest_number, 0 if checkpoint is None else checkpoint.number)
        return checkpoint

    def record_version(
        self, number: CheckpointNumber, table: TableName, version: Version, refresh: Refresh
    ) -> None:
        # Reasons may quote expressions, and a definition can contain a secret.
        nodes = tuple(replace(node, reason=node.reason.map_texts(redacted)) for node in refresh.nodes)
        safe = replace(refresh, reason=refresh.reason.map_texts(redacted), nodes=nodes)
        self.record(Checkpoints.record_version, number, table, version, safe)

    def record_failure(
        self, number: CheckpointNumber, table: TableName, failure: Reason, mode: RefreshMode | None = None
    ) -> None:
        self.record(Checkpoints.record_failure, number, table, failure.map_texts(redacted), mode)

    def abort(self, number: CheckpointNumber, broken: Sequence[BrokenInvariant] = ()) -> None:
        # The sample rows are data of the lake and may contain secrets.
        safe = [
            replace(
                invariant,
                sample=tuple(map(redacted, invariant.sample)),
                problem=None if invariant.problem is None else redacted(invariant.problem),
            )
            for invariant in broken
        ]
        self.record(Checkpoints.abort, number, broken=safe)


@cache
def _store_write(method: Callable[..., object]) -> tuple[str, DurableStepMark, inspect.Signature]:
    """The part of the store that has the method, its mark, and its arguments."""
    part = next(name for name, protocol in parts().items() if vars(protocol).get(method.__name__) is method)
    write = durable_step_of(method)
    if write is None:
        raise TypeError(f"{method.__qualname__} is marked with no durable step")
    return part, write, inspect.signature(method)


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

    def record_failure(self, error: str, *, failures: int, skips: bool, attention: bool) -> None:
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

    def ensure(self, sink: Sink, table: TableName, schema: object, key: Sequence[str]) -> Reason | None:
        return self._step(Step.SINK_ENSURE, lambda: sink.ensure(table, schema, key, self.fence))

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

    def set_aside(self, sink: Repairable, table: TableName) -> str:
        return self._step(Step.SINK_SET_ASIDE, lambda: sink.set_aside(table, self.fence))

    def _step(self, step: Step, action: Callable[[], T]) -> T:
        return self.job.effects.perform(step, self.name, action)

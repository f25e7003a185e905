"""`store.deliveries`. What the store remembers of each sink: who delivers to it, and how far.

The sink's own pointer is the truth about what its readers see. This part says which versions retention has to
keep, which transaction has to be resolved after a crash, and what people see of a sink.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from tautochrone.meta.protocols.marks import reads, writes
from tautochrone.model.effects import Step
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.sink import Intent, Published, SinkDeclaration, SinkFlow, SinkStatus

__all__ = ["Deliveries"]


class Deliveries(Protocol):
    """The sinks of a store and how far each has come. A write names the job that delivers."""

    @writes(step=Step.META_DELIVERY_CLAIM, subject="declaration.name")
    def claim(self, job: str, fence: Fence, declaration: SinkDeclaration, at_least: Fence) -> Fence:
        """Become the only owner of the deliveries to a sink.

        Args:
            declaration: the sink as the pipeline defines it.
            at_least: the highest fence that the sink itself has seen.

        Returns:
            The fence of the deliveries, above all earlier ones.

        Raises:
            FencedError: a newer owner of the job exists.
            MetaError: `SINK_NAME_TAKEN`, a job of another pipeline, or one that runs now, has a sink of this
                name.
        """

    @writes(step=Step.META_DELIVERY_RETIRE, subject="job")
    def retire_others(self, job: str, fence: Fence, kept: Iterable[str]) -> None:
        """Sinks of the job that are not in `kept` no longer keep versions from retention. Repeatable.

        Raises:
            FencedError: a newer owner exists.
        """

    @writes(step=Step.META_DELIVERY_INTEND, subject="intent.transaction.sink")
    def record_intent(self, job: str, fence: Fence, intent: Intent) -> None:
        """Record what a transaction will do, before the sink is called; and again, with its chunks, when
        it is prepared.

        Raises:
            FencedError, SinkFencedError: a newer owner of the job, or of the sink, exists.
        """

    @writes(step=Step.META_DELIVERY_ABORT, subject="sink")
    def end_intent(self, job: str, fence: Fence, sink: str, sink_fence: Fence) -> None:
        """The pending transaction left nothing in the sink. Repeatable.

        Raises:
            FencedError, SinkFencedError: a newer owner of the job, or of the sink, exists.
        """

    @writes(step=Step.META_DELIVERY_DONE, subject="sink")
    def record_delivered(
        self, job: str, fence: Fence, sink: str, sink_fence: Fence, published: Published
    ) -> None:
        """The sink shows `published`, and no transaction is pending. Repeatable.

        Raises:
            FencedError, SinkFencedError: a newer owner of the job, or of the sink, exists.
        """

    @writes(step=Step.META_DELIVERY_DONE, subject="sink")
    def record_streamed(
        self,
        job: str,
        fence: Fence,
        sink: str,
        sink_fence: Fence,
        flows: Mapping[str, SinkFlow],
        checkpoint: CheckpointNumber | None,
        versions: Mapping[TableName, Version],
    ) -> None:
        """The flows of a sink that Spark writes have come this far. Repeatable.

        Args:
            flows: all flows of the sink, by name; `at_ms` is set by the store.
            checkpoint: of which they took all rows; None: they read no dataset.
            versions: of the tables that they read, at the checkpoint.
        """

    @writes(step=Step.META_DELIVERY_FAILED, subject="sink")
    def record_failure(
        self,
        job: str,
        fence: Fence,
        sink: str,
        sink_fence: Fence,
        error: str,
        *,
        failures: int = 1,
        skipped: int = 0,
        attention: bool = False,
    ) -> None:
        """A delivery failed. Repeatable.

        Args:
            error: the error's text.
            failures: failed attempts since the last success, this one included.
            skipped: how often in all the sink policy stopped waiting for the sink.
            attention: a retry cannot help; an operator has to act.

        Raises:
            FencedError, SinkFencedError: a newer owner of the job, or of the sink, exists.
        """

    @writes
    def forget(self, sink: str) -> None:
        """Delete everything recorded of a sink, for an operator. The next delivery starts anew. Repeatable.

        Raises:
            MetaError: `SINK_NAME_TAKEN`, the job that delivers to it runs.
        """

    @reads
    def sinks(self) -> tuple[SinkStatus, ...]:
        """All sinks that jobs of this store ever declared, by name."""

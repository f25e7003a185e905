"""`store.deliveries`. What the store remembers of each sink: who delivers to it, and how far.

The sink's own pointer is the truth about what its readers see. This part says which versions retention has to
keep, which transaction has to be resolved after a crash, and what people see of a sink.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from tautochrone.meta.protocols.marks import reads, writes
from tautochrone.model.delivery import SinkDeclaration, SinkStatus
from tautochrone.model.names import Fence
from tautochrone.model.sink import Intent, Published

__all__ = ["Deliveries"]


class Deliveries(Protocol):
    """The sinks of a store and how far each has come. A write names the job that delivers."""

    @writes(wire="claim_sink")
    def claim(self, job: str, fence: Fence, declaration: SinkDeclaration, at_least: Fence) -> Fence:
        """Become the only one who delivers to a sink; answers a fence above all earlier ones.

        Args:
            at_least: the highest fence that the sink itself has seen.

        Raises:
            FencedError: a newer owner of the job exists.
            MetaError: `SINK_NAME_TAKEN`, a job of another pipeline, or one that runs now, has a sink of this
                name.
        """

    @writes(wire="retire_sinks")
    def retire_others(self, job: str, fence: Fence, kept: Iterable[str]) -> None:
        """The sinks of the job but for the `kept` ones hold no versions any more. Repeatable."""

    @writes(wire="intend_delivery")
    def record_intent(self, job: str, fence: Fence, intent: Intent) -> None:
        """Write down what a transaction is about to do, before the sink hears of it; and again, with its
        chunks, when it is prepared.

        Raises:
            FencedError, SinkFencedError: a newer owner of the job, or of the sink, exists.
        """

    @writes
    def end_intent(self, job: str, fence: Fence, sink: str, sink_fence: Fence) -> None:
        """The transaction under way left nothing in the sink. Repeatable."""

    @writes(wire="delivered")
    def record_delivered(
        self, job: str, fence: Fence, sink: str, sink_fence: Fence, published: Published
    ) -> None:
        """The sink shows `published`; nothing is under way any more. Repeatable."""

    @writes(wire="delivery_failed")
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
        """A try failed. Repeatable.

        Args:
            failures: failed tries since the last success, this one included.
            skipped: how often the policy gave up waiting for the sink, ever.
            attention: trying again cannot help.
        """

    @writes(wire="forget_sink")
    def forget(self, sink: str) -> None:
        """Drop all that is known of a sink, for an operator. The next delivery begins anew. Repeatable.

        Raises:
            MetaError: `SINK_NAME_TAKEN`, the job that delivers to it runs.
        """

    @reads
    def sinks(self) -> tuple[SinkStatus, ...]:
        """All sinks that jobs of this store ever declared, by name."""

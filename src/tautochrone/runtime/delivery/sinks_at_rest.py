"""Whether sinks show the newest checkpoint, asked of each over its own protocol, without Spark.

A run that did everything compared its sinks. The next one may end at once if nobody changed them since:
restored a database, dropped a table, delivered as another owner. It asks what a run without news asks of a
sink whose rows it compared before: the pointer, the fences, which object each table is and whether it is
empty, and all rows of tables with few. Nothing is written to a sink, and a sink that does not answer is left
to a run with Spark, which waits for it, delivers, and says what is wrong.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.sink import DeliveryState, ReportsWaits, SinkStatus
from tautochrone.sinks import open_sink

if TYPE_CHECKING:
    from tautochrone.meta import Store
    from tautochrone.project.settings import Settings
    from tautochrone.runtime.job.job import Job

__all__ = ["COMPARED_ROWS", "are_at_rest", "sinks_to_ask"]

COMPARED_ROWS = 100_000
"""Tables with so many rows at most are compared by row, where a process compared all rows before."""


def sinks_to_ask(job: Job) -> tuple[str, ...] | Reason:
    """The names of a job's sinks, by which `are_at_rest` asks them; or why one of them needs Spark."""
    from tautochrone.runtime.job.topology import declared_sinks, streamed_sinks

    for streamed in streamed_sinks(job.topology, job.settings.sinks):
        return Reason.of(
            ReasonCode.SOURCE_NOT_WATCHED, source=f"the sink {streamed.name}, which Spark writes"
        )
    declarations = declared_sinks(job.topology, job.settings.sinks)
    for declaration in declarations:
        # What code gives may be a secret, so it is not written down for the next run.
        if declaration.options != _options(job.settings, declaration.name):
            source = f"the sink {declaration.name}, whose options are in the definitions"
            return Reason.of(ReasonCode.SOURCE_NOT_WATCHED, source=source)
    return tuple(declaration.name for declaration in declarations)


def are_at_rest(store: Store, settings: Settings, names: Collection[str], checkpoint: int) -> bool:
    """Whether each sink shows this checkpoint, as the store remembers it, and nobody changed it since.

    Args:
        names: of `sinks_to_ask`, by a run of the same definitions and settings.
        checkpoint: the newest published one of the job.

    Raises:
        Exception: whatever keeps a sink from answering.
    """
    statuses = [
        sink
        for sink in store.deliveries.sinks()
        if sink.job == settings.job and sink.state is not DeliveryState.RETIRED
    ]
    if {sink.name for sink in statuses} != set(names):
        return False
    # The store is asked for all of them before the first server is.
    if not all(_has_delivered(sink, store.incarnation, checkpoint) for sink in statuses):
        return False
    return all(_is_at_rest(sink, settings) for sink in statuses)


def _has_delivered(sink: SinkStatus, incarnation: str, checkpoint: int) -> bool:
    delivered = sink.delivered
    return (
        sink.state is DeliveryState.ACTIVE
        and sink.intent is None
        and delivered is not None
        and (delivered.incarnation, delivered.checkpoint) == (incarnation, checkpoint)
        and delivered.versions.keys() == set(sink.tables)
    )


def _is_at_rest(status: SinkStatus, settings: Settings) -> bool:
    assert status.delivered is not None
    delivered = status.delivered
    sink = open_sink(status.name, status.format, _options(settings, status.name))
    try:
        if isinstance(sink, ReportsWaits):
            sink.on_wait(_refuse_to_wait)
        published = sink.published()
        if published is None or published.versions != delivered.versions:
            return False
        transaction = published.transaction
        origin = transaction.sink, transaction.incarnation, transaction.checkpoint
        if origin != (status.name, delivered.incarnation, delivered.checkpoint):
            return False
        if sink.highest_fence() > status.fence:
            return False
        return not sink.changed_tables(status.tables, COMPARED_ROWS)
    finally:
        sink.close()


def _refuse_to_wait(reason: Reason) -> None:
    """A run with Spark waits, and reports it."""
    raise RuntimeError(str(reason))


def _options(settings: Settings, name: str) -> dict[str, str]:
    section = settings.sinks.get(name)
    return {} if section is None else dict(section.options)

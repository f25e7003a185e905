"""Whether sinks show the newest checkpoint, asked of each over its own protocol, without Spark.

A run that did everything compared its sinks. The next one may end at once if nobody changed them since:
restored a database, dropped a table, delivered as another owner. It asks what a run without news asks of a
sink whose rows it compared before: the pointer, the fences, which object each table is and whether it is
empty, and all rows of tables with few. Who asks is no owner of the sink, so it is opened only to look at it:
nothing is written. A sink that does not answer soon is left to a run with Spark, which waits for it,
delivers, and says what is wrong.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from tautochrone.errors import TautochroneError
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.sink import DeliveryState, ReportsWaits, SinkStatus
from tautochrone.sinks import can_observe, observe_sink

if TYPE_CHECKING:
    from tautochrone.meta import Store
    from tautochrone.project.settings import Settings
    from tautochrone.runtime.job.job import Job

__all__ = ["COMPARED_ROWS", "sinks_to_ask", "why_not_at_rest"]

COMPARED_ROWS = 100_000
"""Tables with so many rows at most are compared by row, where a process compared all rows before."""
_ANSWER_S = 5.0
"""For the answers of all sinks: after that a start of Spark, which takes as long, is not put off any more."""


def sinks_to_ask(job: Job) -> tuple[str, ...] | Reason:
    """The names of a job's sinks, by which `why_not_at_rest` asks them; or why one of them needs Spark."""
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
        if not can_observe(declaration.format):
            source = f"the sink {declaration.name}, which cannot be opened without being written to"
            return Reason.of(ReasonCode.SOURCE_NOT_WATCHED, source=source)
    return tuple(declaration.name for declaration in declarations)


def why_not_at_rest(
    store: Store, settings: Settings, names: Collection[str], checkpoint: int
) -> Reason | None:
    """Why a sink may not show this checkpoint, as the store remembers it, or somebody may have changed it
    since; None: all sinks do, and nobody did. Within some seconds.

    Args:
        names: of `sinks_to_ask`, by a run of the same definitions and settings.
        checkpoint: the newest published one of the job.
    """
    statuses = [
        sink
        for sink in store.deliveries.sinks()
        if sink.job == settings.job and sink.state is not DeliveryState.RETIRED
    ]
    others = sorted({sink.name for sink in statuses} ^ set(names))
    if others:
        return _not_at_rest(others[0], "the store knows other sinks of the job than the last run had")
    # The store is asked for all of them before the first server is.
    for sink in statuses:
        if not _has_delivered(sink, store.incarnation, checkpoint):
            return _not_at_rest(sink.name, f"its delivery of checkpoint {checkpoint} is not complete")
    return _within_deadline(statuses, settings)


def _not_at_rest(sink: str, cause: str) -> Reason:
    return Reason.of(ReasonCode.SINK_NOT_AT_REST, sink=sink, cause=cause)


def _has_delivered(sink: SinkStatus, incarnation: str, checkpoint: int) -> bool:
    delivered = sink.delivered
    return (
        sink.state is DeliveryState.ACTIVE
        and sink.intent is None
        and delivered is not None
        and (delivered.incarnation, delivered.checkpoint) == (incarnation, checkpoint)
        and delivered.versions.keys() == set(sink.tables)
    )


def _within_deadline(statuses: Sequence[SinkStatus], settings: Settings) -> Reason | None:
    """Ask in a thread of its own: clients wait for servers as long as they like, and this process goes on."""
    answers: queue.SimpleQueue[Reason | None] = queue.SimpleQueue()
    current = ""

    def ask() -> None:
        nonlocal current
        reason = None
        for status in statuses:
            current = status.name
            reason = _answer(status, settings)
            if reason is not None:
                break
        answers.put(reason)

    threading.Thread(target=ask, name="sinks at rest", daemon=True).start()
    try:
        return answers.get(timeout=_ANSWER_S)
    except queue.Empty:
        return _not_at_rest(current, f"not all sinks answered within {_ANSWER_S:g} s")


def _answer(status: SinkStatus, settings: Settings) -> Reason | None:
    try:
        cause = _what_differs(status, settings)
    except TautochroneError as error:
        cause = error.message
    except Exception as error:
        # Adapters of others raise what they like. The run asks the sink again, and reports what it says.
        cause = f"{type(error).__name__}: {error}"
    return None if cause is None else _not_at_rest(status.name, cause)


def _what_differs(status: SinkStatus, settings: Settings) -> str | None:
    assert status.delivered is not None
    delivered = status.delivered
    sink = observe_sink(status.name, status.format, _options(settings, status.name))
    try:
        if isinstance(sink, ReportsWaits):
            sink.on_wait(_refuse_to_wait)
        published = sink.published()
        if published is None:
            return "it shows nothing"
        transaction = published.transaction
        origin = transaction.sink, transaction.incarnation, transaction.checkpoint
        if origin != (status.name, delivered.incarnation, delivered.checkpoint):
            return f"it shows checkpoint {transaction.checkpoint} of {transaction.sink}"
        if published.versions != delivered.versions:
            return "it shows other versions than were delivered"
        if sink.highest_fence() > status.fence:
            return "another process owns it"
        changed = sink.changed_tables(status.tables, COMPARED_ROWS)
        return next((f"{table}: {reason}" for table, reason in changed.items()), None)
    finally:
        sink.close()


def _refuse_to_wait(reason: Reason) -> None:
    """A run with Spark waits, and reports it."""
    raise RuntimeError(str(reason))


def _options(settings: Settings, name: str) -> dict[str, str]:
    section = settings.sinks.get(name)
    return {} if section is None else dict(section.options)

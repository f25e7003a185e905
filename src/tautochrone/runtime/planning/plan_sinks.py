"""What the next run sends to sinks and publications. Their systems are not asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tautochrone.errors import SinkError
from tautochrone.model.lake import ChangeKind
from tautochrone.model.names import TableName
from tautochrone.model.project_plan import DefinitionChange, Refusal, SinkAction, SinkPlan
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.sink import PUBLICATIONS, DeliveryState, SinkDeclaration, SinkStatus
from tautochrone.project.sinks import StreamSink
from tautochrone.runtime.delivery.check_sinks import mirrored_tables, only_inserts_error, sink_input_error
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.job.topology import declared_sinks, streamed_sinks
from tautochrone.runtime.planning.foretold import Foretold
from tautochrone.runtime.streams.stream_refresher import changes_rows

__all__ = ["plan_sinks"]


def plan_sinks(
    job: Job, foretold: Mapping[TableName, Foretold], full: Iterable[TableName] = ()
) -> list[SinkPlan]:
    """The sinks of a job, then those that it no longer declares.

    Args:
        foretold: the tables that the next run changes.
        full: sinks to which all rows are sent again.

    Raises:
        DefinitionError: as `declared_sinks` and `streamed_sinks`.
    """
    statuses = {status.name: status for status in job.store.deliveries.sinks() if status.job == job.name}
    declared = declared_sinks(job.topology, job.settings.sinks)
    streamed = [sink for sink in streamed_sinks(job.topology, job.settings.sinks) if sink.flows]
    plans = [_declared(job, sink, statuses.get(sink.name), foretold) for sink in declared]
    plans += [
        _streamed(sink, statuses.get(sink.name), foretold, is_full=sink.target in {*full})
        for sink in streamed
    ]
    names = {planned.sink for planned in plans}
    retired = [
        status
        for name, status in sorted(statuses.items())
        if name not in names and status.state is not DeliveryState.RETIRED
    ]
    return plans + [
        SinkPlan(
            sink=status.name,
            format=status.format,
            change=DefinitionChange.REMOVED,
            action=SinkAction.RETIRE,
            reason=Reason.of(ReasonCode.SINK_NOT_DECLARED),
            is_publication=status.format in PUBLICATIONS.values(),
        )
        for status in retired
    ]


def _declared(
    job: Job, sink: SinkDeclaration, status: SinkStatus | None, foretold: Mapping[TableName, Foretold]
) -> SinkPlan:
    is_publication = sink.format in PUBLICATIONS.values()
    delivered = {} if status is None or status.delivered is None else status.delivered.versions
    sent_whole: dict[TableName, Reason] = {}
    changed: list[TableName] = []
    refusal: Refusal | None = None
    for table in sink.tables:
        change = foretold[table].change if table in foretold else None
        if table not in delivered:
            sent_whole[table] = Reason.of(ReasonCode.SINK_HAS_NO_ROWS)
        elif change is not None and change.kind is ChangeKind.UNKNOWN and not is_publication:
            text = str(change.reason)
            sent_whole[table] = Reason.of(ReasonCode.CHANGES_UNKNOWN, error_class="HISTORY_LOST", text=text)
        elif change is not None:
            changed.append(table)
        rewrites = change is not None and change.kind not in (ChangeKind.NONE, ChangeKind.APPEND)
        if change is not None and rewrites and table in delivered and table in sink.insert_only:
            error = only_inserts_error(sink, table, change.reason)
            refusal = Refusal.of(error, is_certain=not foretold[table].is_conditional)
    try:
        mirrored_tables(sink, job.graph.schemas)
    except SinkError as error:
        refusal = Refusal.of(error)
    is_new = status is None
    is_same = status is not None and set(status.tables) == {*sink.tables} and status.format == sink.format
    definition = DefinitionChange.UNCHANGED if is_same else DefinitionChange.CHANGED
    action, reason = _action(sent_whole, changed, refusal, begins=not delivered)
    return SinkPlan(
        sink=sink.name,
        format=sink.format,
        change=DefinitionChange.NEW if is_new else definition,
        action=action,
        reason=reason,
        is_publication=is_publication,
        sent_whole=sent_whole,
        changed=tuple(changed),
        refusal=refusal,
        location=sink.location or None,
    )


def _streamed(
    sink: StreamSink, status: SinkStatus | None, foretold: Mapping[TableName, Foretold], *, is_full: bool
) -> SinkPlan:
    begun = {} if status is None or is_full else status.flows
    delivered = {} if status is None or status.delivered is None else status.delivered.versions
    changed = sorted(sink.inputs & foretold.keys())
    refusal: Refusal | None = None
    for flow in sink.flows:
        for table in sorted(flow.inputs.stream & foretold.keys()):
            change = foretold[table].change
            if flow.flow.name in begun and table in delivered and changes_rows(change):
                error = sink_input_error(sink.name, table, change.reason)
                refusal = Refusal.of(error, is_certain=not foretold[table].is_conditional)
    begins = [flow for flow in sink.flows if flow.flow.name not in begun]
    reason = Reason.of(ReasonCode.SINK_HAS_NO_ROWS)
    sent_whole = {table: reason for flow in begins for table in sorted(flow.inputs.tables)}
    is_same = not begun or begun.keys() == {flow.flow.name for flow in sink.flows}
    action, why = _action(sent_whole, changed, refusal, begins=not begun)
    if begins and not sent_whole and refusal is None:
        action, why = SinkAction.SEND_ALL, Reason.of(ReasonCode.SINK_BEGINS)
    definition = DefinitionChange.UNCHANGED if is_same or is_full else DefinitionChange.CHANGED
    return SinkPlan(
        sink=sink.name,
        format=sink.format,
        change=DefinitionChange.NEW if status is None else definition,
        action=action,
        reason=why,
        sent_whole=sent_whole,
        changed=tuple(changed),
        refusal=refusal,
        location=sink.location,
    )


def _action(
    sent_whole: Mapping[TableName, Reason],
    changed: Iterable[TableName],
    refusal: Refusal | None,
    *,
    begins: bool,
) -> tuple[SinkAction, Reason]:
    if refusal is not None and refusal.is_certain:
        reason = Reason.of(ReasonCode.RUN_WILL_REFUSE, error_class=refusal.error_class)
        return SinkAction.REFUSE, reason
    if sent_whole and begins:
        return SinkAction.SEND_ALL, Reason.of(ReasonCode.SINK_BEGINS)
    if sent_whole:
        reason = Reason.of(ReasonCode.SINK_SENT_WHOLE, tables=", ".join(map(str, sent_whole)))
        return SinkAction.SEND_ALL, reason
    if tables := ", ".join(map(str, changed)):
        return SinkAction.SEND_CHANGES, Reason.of(ReasonCode.SINK_GETS_CHANGES, tables=tables)
    return SinkAction.LEAVE, Reason.of(ReasonCode.SINK_UNCHANGED)

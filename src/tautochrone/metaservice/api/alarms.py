"""Alarms among the events: failed and late deliveries to sinks, transactions that need attention."""

from __future__ import annotations

from typing import Any

from tautochrone.meta import Store
from tautochrone.model.sink import DeliveryState, SinkStatus, TransactionState
from tautochrone.model.transactions import CoordinatedTransaction

__all__ = ["LATE_MS", "alarms_after"]

LATE_MS = 300_000
"""A sink that lacks a checkpoint for this long is late, whatever the reason."""
_SETTLED_MS = 500
"""Failures are shown after this time: one that began earlier may be recorded later."""
_MAX_TRANSACTIONS = 1_000


def alarms_after(store: Store, after_ms: int) -> list[tuple[int, str, dict[str, Any]]]:
    """Alarms raised after a time, in epoch milliseconds: when, the event's name, its data. In their order."""
    until_ms = store.now_ms() - _SETTLED_MS
    alarms: list[tuple[int, str, dict[str, Any]]] = []
    for sink in store.deliveries.sinks():
        if sink.state is DeliveryState.RETIRED:
            continue
        if sink.failed_at_ms is not None and sink.failures:
            alarms.append((sink.failed_at_ms, "sink_failed", _sink(sink, until_ms)))
        if sink.behind_since_ms is not None:
            alarms.append((sink.behind_since_ms + LATE_MS, "sink_late", _sink(sink, until_ms)))
    for record in store.transactions.find(attention=True, limit=_MAX_TRANSACTIONS):
        raised_ms = record.failed_at_ms or record.changed_at_ms
        alarms.append((raised_ms, "transaction_needs_attention", _transaction(record)))
    raised = [alarm for alarm in alarms if after_ms < alarm[0] <= until_ms]
    return sorted(raised, key=lambda alarm: (alarm[0], alarm[1]))


def _sink(sink: SinkStatus, now_ms: int) -> dict[str, Any]:
    needs_attention = sink.state is DeliveryState.NEEDS_ATTENTION
    return {
        "sink": sink.name,
        "state": sink.state.value,
        "checkpoint": None if sink.delivered is None else int(sink.delivered.checkpoint),
        "lag_ms": 0 if sink.behind_since_ms is None else max(0, now_ms - sink.behind_since_ms),
        "failures": sink.failures,
        "error": sink.error,
        "command": f"taut verify --sink {sink.name}" if needs_attention else "taut sinks",
    }


def _transaction(record: CoordinatedTransaction) -> dict[str, Any]:
    decision = "commit" if record.state is TransactionState.COMMITTING else "rollback"
    return {
        "transaction": record.id,
        "owner": record.owner,
        "state": record.state.value,
        "failures": record.failures,
        "error": record.error,
        "command": f"taut transactions {decision} {record.id}",
    }

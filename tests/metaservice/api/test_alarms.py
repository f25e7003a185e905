"""Alarms that fire or are over are events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.metaservice.conftest import Shop
from tests.support.stores import Clock

from tautochrone.meta import MetaStore
from tautochrone.metaservice.api.events import Cursor, events_after
from tautochrone.model.jobs import JOB_LEASE_MS
from tautochrone.model.transactions import TransactionOperation


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[MetaStore]:
    with MetaStore.open(f"sqlite:///{tmp_path}/meta.db", clock=clock) as store:
        yield store


def test_an_alarm_is_sent_when_it_fires_and_when_it_is_over(store: MetaStore, clock: Clock) -> None:
    cursor = Cursor.now(store)
    for transaction in ("a", "b"):
        store.transactions.begin(transaction, "loader", 1, 10_000)
        store.transactions.commit(transaction, "loader", 1)
        store.transactions.record_failure(transaction, "no route", 1, 1, 1_000)
    fired = store.alarms.evaluate()
    assert events_after(store, cursor) == ([], cursor), "one that changed earlier may still be recorded"
    clock.now_ms += 1_000
    events, last = events_after(store, cursor)
    assert [(event, data) for event, _, data in events] == [("alarm", alarm.as_json()) for alarm in fired]
    assert events_after(store, Cursor.parse(str(last))) == ([], last)
    # Between two alarms of one millisecond nothing is missed.
    repeated, _ = events_after(store, Cursor.parse(str(events[0][1])))
    assert [data["subject"] for _, _, data in repeated] == ["a", "b"]
    store.transactions.settle("a", TransactionOperation.COMMIT)
    store.alarms.evaluate()
    clock.now_ms += 1_000
    ((_, _, data),), last = events_after(store, last)
    assert (data["subject"], data["resolved_at_ms"]) == ("a", clock.now_ms - 1_000)
    # It fires again: another alarm. A client that was away gets each of the three once.
    store.transactions.record_failure("a", "no route", 1, 1, 1_000)
    store.alarms.evaluate()
    clock.now_ms += 1_000
    again, _ = events_after(store, last)
    assert [data["subject"] for _, _, data in again] == ["a"]
    missed, _ = events_after(store, cursor)
    changes = [(data["subject"], data["resolved_at_ms"] is not None) for _, _, data in missed]
    assert changes == [("b", False), ("a", True), ("a", False)]


def test_a_client_that_begins_gets_no_older_alarms(store: MetaStore, clock: Clock) -> None:
    shop = Shop(store)
    shop.checkpoint(1, cut_at_ms=clock.now_ms)
    clock.now_ms += JOB_LEASE_MS + 1
    (alarm,) = store.alarms.evaluate()
    clock.now_ms += 1_000
    cursor = Cursor.now(store)
    clock.now_ms += 1_000
    assert events_after(store, cursor) == ([], cursor)
    ((_, _, data),), _ = events_after(store, replace(cursor, alarm=0))
    assert data == alarm.as_json()

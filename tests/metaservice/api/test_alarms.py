"""Failed and late deliveries, and transactions that need attention, are events with a command."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.metaservice.conftest import Shop, name

from tautochrone.meta import MetaStore
from tautochrone.metaservice.api.events import LATE_MS, Cursor, alarms_after, events_after
from tautochrone.model.jobs import JOB_LEASE_MS
from tautochrone.model.names import Fence
from tautochrone.model.run_report import RunEnd
from tautochrone.model.sink import SinkDeclaration
from tautochrone.model.transactions import TransactionOperation


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[MetaStore]:
    with MetaStore.open(f"sqlite:///{tmp_path}/meta.db", clock=clock) as store:
        yield store


def leave_to_people(store: MetaStore, transaction: str) -> None:
    store.transactions.begin(transaction, "loader", 1, 10_000)
    store.transactions.commit(transaction, "loader", 1)
    store.transactions.record_failure(transaction, "no route", 1, 1, 1_000)


def test_transaction_that_needs_attention_is_sent_once(store: MetaStore, clock: Clock) -> None:
    cursor = Cursor.now(store)
    clock.now_ms += 1_000
    for transaction in ("a", "b"):
        leave_to_people(store, transaction)
    assert events_after(store, cursor) == ([], cursor), "one that began earlier may still be recorded"
    clock.now_ms += 1_000
    events, last = events_after(store, cursor)
    assert [(event, data["transaction"], data["command"]) for event, _, data in events] == [
        ("transaction_needs_attention", "a", "taut transactions commit a"),
        ("transaction_needs_attention", "b", "taut transactions commit b"),
    ]
    assert events[0][2]["error"] == "no route"
    assert events_after(store, Cursor.parse(str(last))) == ([], last)
    # Between two alarms of one millisecond nothing is missed.
    repeated, _ = events_after(store, Cursor.parse(str(events[0][1])))
    assert [data["transaction"] for _, _, data in repeated] == ["a", "b"]
    # Its next failures after a new try are a new alarm.
    store.transactions.settle("a", TransactionOperation.COMMIT)
    assert [data["transaction"] for _, _, data in alarms_after(store, 0)] == ["b"]
    store.transactions.record_failure("a", "no route", 1, 1, 1_000)
    clock.now_ms += 1_000
    again, _ = events_after(store, last)
    assert [data["transaction"] for _, _, data in again] == ["a"]


def test_cursors_of_older_services_are_read(store: MetaStore, clock: Clock) -> None:
    leave_to_people(store, "a")
    clock.now_ms += 1_000
    text = str(Cursor.now(store)).partition("@")[0]
    assert Cursor.parse(text).alarm == 0
    assert Cursor.parse(f"{text}-7-8").open == (7, 8)
    assert Cursor.parse(f"{text}-7-8@9").alarm == 9
    assert [name for name, *_ in events_after(store, Cursor.parse(text))[0]] == [
        "transaction_needs_attention"
    ]


def test_failed_and_late_deliveries_are_sent(store: MetaStore, clock: Clock) -> None:
    shop = Shop(store)
    declaration = SinkDeclaration(name="mirror", format="toy", tables=(name("totals"),))
    fence = store.deliveries.claim("shop", shop.fence, declaration, Fence(0))
    store.jobs.heartbeat("shop", shop.fence, lease_ms=10 * LATE_MS)
    shop.checkpoint(1, cut_at_ms=clock.now_ms)
    cursor = Cursor.now(store)
    clock.now_ms += 2_000
    store.deliveries.record_failure("shop", shop.fence, "mirror", fence, "it is away", failures=2)
    clock.now_ms += 1_000
    ((event, _, data),), cursor = events_after(store, cursor)
    assert (event, data["sink"], data["failures"], data["error"]) == (
        "sink_failed",
        "mirror",
        2,
        "it is away",
    )
    assert (data["state"], data["command"], data["checkpoint"]) == ("failing", "taut sinks", None)
    clock.now_ms += LATE_MS
    ((event, _, data),), cursor = events_after(store, cursor)
    assert (event, data["sink"]) == ("sink_late", "mirror")
    assert data["lag_ms"] >= LATE_MS
    clock.now_ms += LATE_MS
    assert events_after(store, cursor) == ([], cursor)


def test_a_job_whose_lease_ends_is_one_alarm(store: MetaStore, clock: Clock) -> None:
    shop = Shop(store)
    shop.checkpoint(1, cut_at_ms=clock.now_ms)
    cursor = Cursor.now(store)
    clock.now_ms += JOB_LEASE_MS - 1
    assert events_after(store, cursor) == ([], cursor)
    clock.now_ms += 1_000
    ((event, _, data),), cursor = events_after(store, cursor)
    assert (event, data["job"], data["checkpoint"], data["command"]) == (
        "job_not_running",
        "shop",
        1,
        "taut run",
    )
    clock.now_ms += 1_000_000
    assert events_after(store, cursor) == ([], cursor)
    # It comes back, ends as it should, and is killed the next time.
    shop.fence = store.jobs.take_over("shop")
    store.jobs.end_run("shop", shop.fence, RunEnd())
    clock.now_ms += 1_000_000
    assert events_after(store, cursor) == ([], cursor)
    store.jobs.take_over("shop")
    clock.now_ms += 1_000_000
    assert [event for event, *_ in events_after(store, cursor)[0]] == ["job_not_running"]

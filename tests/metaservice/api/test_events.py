"""Server-sent events: everything once and in order, also for a client that comes back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
from tests.metaservice.conftest import FULL, Shop, name
from tests.metaservice.serving import serving

from tautochrone.errors import QueryError
from tautochrone.meta import Store
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.metaservice.api.events import Cursor, events_after
from tautochrone.metaservice.app import create_app
from tautochrone.metaservice.http.access import Access, Role
from tautochrone.model.names import CheckpointNumber, Version
from tautochrone.model.revision import RevisedTable, RevisionAction, RevisionPlan

Event = tuple[str, str, dict[str, Any]]


def event_names(store: Store, cursor: Cursor) -> tuple[list[tuple[str, object]], Cursor]:
    events, cursor = events_after(store, cursor)
    return [(e, d.get("dataset") or (d.get("number"), d.get("state"))) for e, _, d in events], cursor


def test_events_come_once_and_in_order(shop: Shop) -> None:
    store = shop.store
    cursor = Cursor.now(store)
    assert event_names(store, cursor) == ([], cursor)
    n = store.checkpoints.open("shop", shop.fence, NewCheckpoint({name("orders"): Version("2")}, 1)).number
    opened, cursor = event_names(store, cursor)
    assert opened == [("checkpoint", (n, "open"))]
    assert event_names(store, cursor) == ([], cursor)
    for table in ("totals", "top"):
        store.checkpoints.record_version("shop", shop.fence, n, name(table), Version("20"), FULL)
    store.checkpoints.publish("shop", shop.fence, n, 2)
    done, cursor = event_names(store, cursor)
    assert done == [
        ("refresh", "lake.db.totals"),
        ("refresh", "lake.db.top"),
        ("checkpoint", (n, "published")),
    ]
    assert event_names(store, cursor) == ([], cursor)


def test_stream_resumes_after_any_event(shop: Shop) -> None:
    start = Cursor.now(shop.store)
    for version in range(2, 6):
        shop.checkpoint(version, fail=version == 3)
    n = shop.store.checkpoints.open("shop", shop.fence, NewCheckpoint({}, 1)).number
    everything, _ = events_after(shop.store, start)
    assert len(everything) == 4 * 3 + 1
    for index, (_, cursor, _) in enumerate(everything):
        rest, _ = events_after(shop.store, Cursor.parse(str(cursor)))
        assert [data for _, _, data in rest] == [data for _, _, data in everything[index + 1 :]]
    assert everything[-1][2] == {"number": n, "state": "open"}


def test_older_open_checkpoint_is_still_reported(shop: Shop) -> None:
    shop.store.jobs.start_run("other", "other", [])
    fence = shop.store.jobs.take_over("other")
    start = Cursor.now(shop.store)
    slow = shop.store.checkpoints.open("other", fence, NewCheckpoint({}, 1)).number
    shop.checkpoint(2)
    _, cursor = events_after(shop.store, start)
    assert cursor.open == (slow,)
    shop.store.checkpoints.publish("other", fence, slow, 9)
    assert event_names(shop.store, Cursor.parse(str(cursor)))[0] == [("checkpoint", (slow, "published"))]
    # Also for one who comes when it is open already.
    assert Cursor.now(shop.store).open == ()


def test_revocations_are_sent_once(shop: Shop) -> None:
    shop.checkpoint(2)
    start = Cursor.now(shop.store)
    plan = RevisionPlan(
        to=CheckpointNumber(1),
        tables=(
            RevisedTable(table=name("orders"), action=RevisionAction.STAY, reason="", job="shop"),
            RevisedTable(table=name("totals"), action=RevisionAction.REBUILD, reason="", job="shop"),
            RevisedTable(table=name("top"), action=RevisionAction.REBUILD, reason="", job="shop"),
        ),
        revoked=(CheckpointNumber(2),),
    )
    # Published after the plan was made: the decision revokes it, too, and says so.
    shop.checkpoint(3)
    shop.store.revisions.decide("r1", plan, {"shop": shop.fence})
    shop.store.revisions.complete("r1")
    again = replace(plan, to=None, tables=plan.tables[1:], revoked=())
    shop.store.revisions.decide("r2", again, {"shop": shop.fence})
    events, cursor = events_after(shop.store, start)
    assert [event for event, _, _ in events] == [
        "refresh",
        "refresh",
        "checkpoint",
        "revocation",
        "revocation",
    ]
    first, second = events[-2:]
    tables = ["lake.db.totals", "lake.db.top"]
    assert first[2] == {"revision": "r1", "to": 1, "checkpoints": [2, 3], "tables": tables}
    assert second[2] == {"revision": "r2", "to": None, "checkpoints": [], "tables": tables}
    assert events[2][2] == {"number": 3, "state": "revoked"}
    assert events_after(shop.store, Cursor.parse(str(first[1])))[0] == [second]
    assert events_after(shop.store, cursor) == ([], cursor)
    assert replace(Cursor.now(shop.store), alarm=cursor.alarm) == cursor


def test_cursor_of_another_store_resets(shop: Shop) -> None:
    events, cursor = events_after(shop.store, Cursor("00000000", 5, 5, 5, (), 0))
    assert [event for event, _, _ in events] == ["reset"]
    assert cursor == replace(Cursor.now(shop.store), alarm=cursor.alarm)


@pytest.mark.parametrize(
    "text", ["", "x", "00000000-1", "00000000-1-2-3", "00000000-1-2-3-@4", f"00000000-1-2-3@{'9' * 19}"]
)
def test_a_place_that_was_never_given_is_refused(text: str) -> None:
    with pytest.raises(QueryError, match="EVENT_ID_INVALID"):
        Cursor.parse(text)


@contextmanager
def listening(uri: str, last: str | None = None) -> Iterator[Iterator[Event]]:
    headers = {} if last is None else {"Last-Event-ID": last}
    with httpx.stream("GET", f"{uri}/api/v1/events", headers=headers, timeout=30) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield _events(answer)


def _events(answer: httpx.Response) -> Iterator[Event]:
    fields: dict[str, str] = {}
    for line in answer.iter_lines():
        if line:
            key, _, value = line.partition(": ")
            fields[key] = value
        else:
            yield fields.get("event", ""), fields.get("id", ""), json.loads(fields.get("data", "{}"))
            fields = {}


def without_open_checkpoints(events: Iterator[Event]) -> Iterator[Event]:
    """A poll of the store may fall between the opening of a checkpoint and its first refresh."""
    return (event for event in events if event[2].get("state") != "open")


def test_reconnecting_client_misses_nothing(shop: Shop) -> None:
    app = create_app(access=Access(anonymous=Role.READ), store=shop.store)
    with serving(app) as uri:
        with listening(uri) as events:
            event, event_id, _ = next(events)
            assert (event, bool(event_id)) == ("", True)
            shop.checkpoint(2)
            event, event_id, data = next(without_open_checkpoints(events))
            assert (event, data["dataset"]) == ("refresh", "lake.db.totals")
        shop.checkpoint(3)
        with listening(uri, event_id) as events:
            next(events)
            changes = without_open_checkpoints(events)
            seen = [next(changes) for _ in range(5)]
        assert [d.get("dataset") or d["number"] for _, _, d in seen] == [
            "lake.db.top",
            *("lake.db.totals", "lake.db.top", 2, 3),
        ]
        refused = httpx.get(f"{uri}/api/v1/events", headers={"Last-Event-ID": "x"}, timeout=60)
        assert refused.json()["error_class"] == "EVENT_ID_INVALID"

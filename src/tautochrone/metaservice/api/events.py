"""Server-sent events: refreshes, checkpoints and revisions as the store records them, and alarms.

There is no log of events: they are read from the refresh history and the rows of the checkpoints. The id of
an event is a cursor: newest row of the history, newest checkpoint and those that were open, newest revision,
newest change of an alarm.
A client that returns with `Last-Event-ID` misses nothing that the history still has, and gets nothing twice
except alarms that changed in one millisecond. An alarm is sent when it fires and when it is over.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import APIRouter, Header, Request
from fastapi.responses import StreamingResponse

from tautochrone.errors import QueryError, TautochroneError
from tautochrone.meta import Store
from tautochrone.metaservice.api.datasets import refresh_entry
from tautochrone.metaservice.api.reads import BIGGEST
from tautochrone.model.checkpoint import CheckpointState
from tautochrone.model.revision import Revision

__all__ = ["Cursor", "add", "events_after"]

_SETTLED_MS = 500
"""Alarms are sent after this time: one that changed earlier may be recorded later."""
_POLL_S = 0.5
_KEEPALIVE_S = 15.0
_BATCH = 500
_MAX_STREAMS = 100
_THREADS = 4
_CURSOR = re.compile(r"([0-9a-f]{8})-(\d{1,19})-(\d{1,19})-(\d{1,19})((?:-\d{1,19}){0,1000})@(\d{1,19})")


@dataclass(frozen=True, slots=True)
class Cursor:
    """Up to where a client has read. `store` is the beginning of the store's incarnation, `refresh` a row of
    the history, `decision` the time of the newest revision (epoch milliseconds), `open` the checkpoints that
    were open, `alarm` the time of the newest change of an alarm (epoch milliseconds)."""

    store: str
    refresh: int
    checkpoint: int
    decision: int
    open: tuple[int, ...]
    alarm: int

    def __str__(self) -> str:
        numbers = (self.refresh, self.checkpoint, self.decision, *self.open)
        return "-".join([self.store, *map(str, numbers)]) + f"@{self.alarm}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """The cursor in an event's id.

        Raises:
            QueryError: `EVENT_ID_INVALID`.
        """
        match = _CURSOR.fullmatch(text)
        numbers = [] if match is None else list(map(int, text.partition("@")[0].split("-")[1:]))
        alarm = 0 if match is None else int(match[6])
        if match is None or max(*numbers, alarm) > BIGGEST:
            raise QueryError("EVENT_ID_INVALID", "Last-Event-ID is none that this service gave")
        return cls(match[1], numbers[0], numbers[1], numbers[2], tuple(numbers[3:]), alarm)

    @classmethod
    def now(cls, store: Store) -> Cursor:
        newest = store.checkpoints.newest(1)
        numbers = store.checkpoints.states(max(0, newest[0].number - _BATCH)) if newest else ()
        pending = tuple(number for number, state in numbers if state is CheckpointState.OPEN)
        last = newest[0].number if newest else 0
        return cls(
            store.incarnation[:8],
            store.history.newest_refresh_id(),
            last,
            store.revisions.newest_decision(),
            pending,
            store.now_ms() - _SETTLED_MS,
        )


def add(router: APIRouter, store: Store) -> None:
    streams = asyncio.Semaphore(_MAX_STREAMS)
    # Threads of their own, so that streams do not take those of requests.
    threads = CapacityLimiter(_THREADS)

    @router.get(
        "/events",
        tags=["events"],
        response_class=StreamingResponse,
        responses={
            200: {
                "description": "`refresh`, `checkpoint`, `revocation`, `alarm`, `reset`",
                "content": {"text/event-stream": {}},
            }
        },
    )
    async def events(
        request: Request, last_event_id: Annotated[str | None, Header()] = None
    ) -> StreamingResponse:
        """Events from now on, or since `Last-Event-ID`."""
        cursor = None if last_event_id is None else Cursor.parse(last_event_id)
        if streams.locked():
            raise QueryError("TOO_MANY_STREAMS", "Too many clients listen already", retryable=True)
        start = await run_sync(Cursor.now, store, limiter=threads) if cursor is None else cursor
        stream = _stream(request, store, start, streams, threads)
        return StreamingResponse(
            stream, media_type="text/event-stream", headers={"Cache-Control": "no-store"}
        )


def events_after(store: Store, cursor: Cursor) -> tuple[list[tuple[str, Cursor, dict[str, Any]]], Cursor]:
    """The events after `cursor` (name, cursor after it, data), and the cursor after all of them.

    Refreshes come before the checkpoint that they complete. A cursor of another store gives one `reset`: its
    numbers belong to that store. So does a cursor with a number that this store has not reached: the store is
    an older copy that no job has reconciled yet.
    """
    if cursor.store != store.incarnation[:8] or cursor.checkpoint > store.checkpoints.highest_used_number():
        restart = Cursor.now(store)
        return [("reset", restart, {"reason": "the store is another one: look at everything anew"})], restart
    events: list[tuple[str, Cursor, dict[str, Any]]] = []
    # States are read first: the refreshes of a checkpoint that is published by then are in the history.
    states = store.checkpoints.states(cursor.checkpoint, cursor.open)
    rows = store.history.refreshes_after(cursor.refresh, _BATCH)
    for row, record in rows:
        cursor = replace(cursor, refresh=row)
        events.append(("refresh", cursor, refresh_entry(record).model_dump(mode="json")))
    if len(rows) == _BATCH:
        return events, cursor
    for number, state in states:
        if number in cursor.open and state is CheckpointState.OPEN:
            continue
        pending = {n for n in cursor.open if n != number}
        if state is CheckpointState.OPEN:
            pending.add(number)
        cursor = replace(cursor, checkpoint=max(cursor.checkpoint, number), open=tuple(sorted(pending)))
        events.append(("checkpoint", cursor, {"number": number, "state": state.value}))
    # Revocations come last, after everything that they take back.
    for revision in store.revisions.decided_after(cursor.decision):
        cursor = replace(cursor, decision=revision.decided_at_ms)
        events.append(("revocation", cursor, _revoked(revision)))
    until_ms = store.now_ms() - _SETTLED_MS
    alarms = [alarm for alarm in store.alarms.changed_after(cursor.alarm) if alarm.changed_at_ms <= until_ms]
    for index, alarm in enumerate(alarms):
        changed_ms = alarm.changed_at_ms
        # A client that returns between two alarms of one millisecond gets the first one again.
        is_last = [changed_ms] != [following.changed_at_ms for following in alarms[index + 1 : index + 2]]
        cursor = replace(cursor, alarm=changed_ms if is_last else changed_ms - 1)
        events.append(("alarm", cursor, alarm.as_json()))
    return events, cursor


def _revoked(revision: Revision) -> dict[str, Any]:
    plan = revision.plan
    tables = [str(revised.table) for revised in plan.changed]
    return {"revision": revision.id, "to": plan.to, "checkpoints": list(plan.revoked), "tables": tables}


async def _stream(
    request: Request,
    store: Store,
    cursor: Cursor,
    streams: asyncio.Semaphore,
    threads: CapacityLimiter,
) -> AsyncIterator[str]:
    async with streams:
        # A cursor to continue from, before the first event.
        yield f"retry: 2000\nid: {cursor}\n\n"
        idle_s = 0.0
        while not await request.is_disconnected():
            try:
                events, cursor = await run_sync(events_after, store, cursor, limiter=threads)
            except TautochroneError as error:
                # The client reconnects with its last id.
                yield f"event: problem\ndata: {json.dumps({'error_class': error.error_class})}\n\n"
                return
            for text in _texts(events):
                yield text
            idle_s = 0.0 if events else idle_s + _POLL_S
            if idle_s >= _KEEPALIVE_S:
                idle_s = 0.0
                yield ": still here\n\n"
            await asyncio.sleep(_POLL_S)


def _texts(events: list[tuple[str, Cursor, dict[str, Any]]]) -> Iterator[str]:
    for event, cursor, data in events:
        yield f"event: {event}\nid: {cursor}\ndata: {json.dumps(data)}\n\n"

"""Server-sent events: what became of checkpoints and datasets, as the store learns it.

Nothing is kept for it: the history and the checkpoints' rows *are* the log. The id of an event says how far
a client has come: newest row of the history, newest checkpoint and those that were open, newest revision. One
that returns with `Last-Event-ID` misses nothing that the history still holds, and gets nothing twice.
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
from tautochrone.metaservice.api.datasets import refreshed
from tautochrone.metaservice.api.flip import BIGGEST
from tautochrone.model.checkpoint import CheckpointState
from tautochrone.model.revision import Revision

__all__ = ["Cursor", "add", "news"]

_EVERY_S = 0.5
_KEEPALIVE_S = 15.0
_AT_ONCE = 500
_MOST_STREAMS = 100
_THREADS = 4
_CURSOR = re.compile(r"([0-9a-f]{8})-(\d{1,19})-(\d{1,19})-(\d{1,19})((?:-\d{1,19}){0,1000})")


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a client has come. `store` is the beginning of the store's incarnation, `decision` the time
    of the newest revision that it knows, epoch milliseconds."""

    store: str
    refresh: int
    checkpoint: int
    decision: int
    open: tuple[int, ...]

    def __str__(self) -> str:
        numbers = (self.refresh, self.checkpoint, self.decision, *self.open)
        return "-".join([self.store, *map(str, numbers)])

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Raises:
        QueryError: `EVENT_ID_INVALID`.
        """
        found = _CURSOR.fullmatch(text)
        numbers = [] if found is None else list(map(int, text.split("-")[1:]))
        if found is None or max(numbers) > BIGGEST:
            raise QueryError("EVENT_ID_INVALID", "Last-Event-ID is none that this service gave")
        return cls(found[1], numbers[0], numbers[1], numbers[2], tuple(numbers[3:]))

    @classmethod
    def now(cls, store: Store) -> Cursor:
        newest = store.checkpoints.newest(1)
        numbers = store.checkpoints.states(max(0, newest[0].number - _AT_ONCE)) if newest else ()
        pending = tuple(number for number, state in numbers if state is CheckpointState.OPEN)
        last = newest[0].number if newest else 0
        return cls(
            store.incarnation[:8],
            store.history.newest_refresh_id(),
            last,
            store.revisions.newest_decision(),
            pending,
        )


def add(router: APIRouter, store: Store) -> None:
    streams = asyncio.Semaphore(_MOST_STREAMS)
    # Threads of their own: who listens must not take those of requests.
    threads = CapacityLimiter(_THREADS)

    @router.get(
        "/events",
        tags=["events"],
        response_class=StreamingResponse,
        responses={
            200: {
                "description": "`refresh`, `checkpoint`, `revocation`, `reset`",
                "content": {"text/event-stream": {}},
            }
        },
    )
    async def events(
        request: Request, last_event_id: Annotated[str | None, Header()] = None
    ) -> StreamingResponse:
        """What happens from now on, or since `Last-Event-ID`."""
        cursor = None if last_event_id is None else Cursor.parse(last_event_id)
        if streams.locked():
            raise QueryError("TOO_MANY_STREAMS", "Too many clients listen already", retryable=True)
        start = await run_sync(Cursor.now, store, limiter=threads) if cursor is None else cursor
        stream = _stream(request, store, start, streams, threads)
        return StreamingResponse(
            stream, media_type="text/event-stream", headers={"Cache-Control": "no-store"}
        )


def news(store: Store, cursor: Cursor) -> tuple[list[tuple[str, Cursor, dict[str, Any]]], Cursor]:
    """What happened after `cursor`: event, cursor after it, data. Refreshes come before what they complete.

    A cursor of another store is answered by one `reset`: its numbers mean nothing here. So is one with a
    number that this store never gave: it is an older copy, which no job has brought up to date yet.
    """
    if cursor.store != store.incarnation[:8] or cursor.checkpoint > store.checkpoints.last_number():
        fresh = Cursor.now(store)
        return [("reset", fresh, {"reason": "the store is another one: look at everything anew"})], fresh
    found: list[tuple[str, Cursor, dict[str, Any]]] = []
    # The states first: what was refreshed for a checkpoint seen as published is then in the history.
    states = store.checkpoints.states(cursor.checkpoint, cursor.open)
    rows = store.history.refreshes_after(cursor.refresh, _AT_ONCE)
    for row, record in rows:
        cursor = replace(cursor, refresh=row)
        found.append(("refresh", cursor, refreshed(record).model_dump(mode="json")))
    if len(rows) == _AT_ONCE:
        return found, cursor
    for number, state in states:
        if number in cursor.open and state is CheckpointState.OPEN:
            continue
        pending = {n for n in cursor.open if n != number}
        if state is CheckpointState.OPEN:
            pending.add(number)
        cursor = replace(cursor, checkpoint=max(cursor.checkpoint, number), open=tuple(sorted(pending)))
        found.append(("checkpoint", cursor, {"number": number, "state": state.value}))
    # Last: who hears of a revocation has heard of everything that it takes back.
    for revision in store.revisions.decided_after(cursor.decision):
        cursor = replace(cursor, decision=revision.decided_at_ms)
        found.append(("revocation", cursor, _revoked(revision)))
    return found, cursor


def _revoked(revision: Revision) -> dict[str, Any]:
    plan = revision.plan
    tables = [str(one.table) for one in plan.changed]
    return {"revision": revision.id, "to": plan.to, "checkpoints": list(plan.revoked), "tables": tables}


async def _stream(
    request: Request,
    store: Store,
    cursor: Cursor,
    streams: asyncio.Semaphore,
    threads: CapacityLimiter,
) -> AsyncIterator[str]:
    async with streams:
        # Where to go on from, before anything happened.
        yield f"retry: 2000\nid: {cursor}\n\n"
        quiet_s = 0.0
        while not await request.is_disconnected():
            try:
                found, cursor = await run_sync(news, store, cursor, limiter=threads)
            except TautochroneError as error:
                # The client comes back with its last id.
                yield f"event: problem\ndata: {json.dumps({'error_class': error.error_class})}\n\n"
                return
            for text in _texts(found):
                yield text
            quiet_s = 0.0 if found else quiet_s + _EVERY_S
            if quiet_s >= _KEEPALIVE_S:
                quiet_s = 0.0
                yield ": still here\n\n"
            await asyncio.sleep(_EVERY_S)


def _texts(found: list[tuple[str, Cursor, dict[str, Any]]]) -> Iterator[str]:
    for event, cursor, data in found:
        yield f"event: {event}\nid: {cursor}\ndata: {json.dumps(data)}\n\n"

"""What one request may cost: its address, its body, its arguments, its time, and how many there are at once.

Around all routes and behind the guard, so that who may do less may also ask for less. A body is read here,
up to its bound, and checked; routes get it whole. Streams of events are counted by their route.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tautochrone.errors import AccessError, QueryError, TautochroneError
from tautochrone.meta.wire import UnreadableError
from tautochrone.metaservice.http.pin_owners import Role, caller_of
from tautochrone.metaservice.http.problems import problem_of
from tautochrone.metaservice.http.strict_json import JsonLimits, UnfitJsonError, checked_json
from tautochrone.rest_catalog.routes import refusal

__all__ = ["BOUNDS", "Bound", "Bounds", "check_arguments"]

LONGEST_PATH, LONGEST_QUERY = 8_000, 32_000
"""Characters of an address before and behind the question mark."""
BODY_S = 30.0
"""So long a client may take to send a body, and to take a part of an answer."""
_DISCARD_S = 2.0
_AT_ONCE_BYTES = 16_384
_MOST_LIMIT = 10_000
# Numbers are counted on and times are subtracted: what comes out must have 64 bits too.
_BIGGEST_NUMBER, _LONGEST_MS = 2**62, 2**53
_JSON_PATHS = ("/rpc/", "/version/", "/api/v1/pins")
_STREAM = "/api/v1/events"
_WITHOUT_NUMBERS = frozenset({"besides", "numbers", "without"})


@dataclass(frozen=True, slots=True)
class Bound:
    """What one role may ask for: bytes of a body, requests at once, and the parts of JSON."""

    body: int
    at_once: int
    json: JsonLimits


_MIB = 1 << 20
BOUNDS: Mapping[Role, Bound] = MappingProxyType(
    {
        Role.READ: Bound(_MIB, 128, JsonLimits(depth=32, items=10_000, text=10_000)),
        # Jobs say what a whole lake holds, and what whole pipelines are made of.
        Role.OPERATE: Bound(32 * _MIB, 256, JsonLimits(depth=100, items=1_000_000, text=4 * _MIB)),
    }
)


class _TooSlowError(Exception):
    """The client took longer than it may."""


class Bounds:
    """Lets a request through with a body that was read and checked, or answers it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._under_way: Counter[Role] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        role = caller_of(scope).role
        try:
            _check_address(scope)
            if scope["path"] == _STREAM:
                await self._app(scope, receive, _patient(send))
                return
            if self._under_way[role] >= BOUNDS[role].at_once:
                raise QueryError("TOO_MANY_REQUESTS", "Too many requests are under way", retryable=True)
        except TautochroneError as error:
            await _send_refusal(scope, receive, send, error)
            return
        self._under_way[role] += 1
        try:
            await self._bounded(scope, receive, send, BOUNDS[role])
        finally:
            self._under_way[role] -= 1

    async def _bounded(self, scope: Scope, receive: Receive, send: Send, bound: Bound) -> None:
        try:
            body = await _read(Request(scope), receive, bound.body)
            if body is None:
                return  # the client is gone
            if scope["path"].startswith(_JSON_PATHS) and scope["method"] in ("POST", "PUT", "PATCH"):
                await _check_json(Request(scope), body, bound.json)
        except TautochroneError as error:
            await _send_refusal(scope, receive, send, error)
            return
        await self._app(scope, _replayed(body, receive), _patient(send))


def _check_address(scope: Scope) -> None:
    path, query = scope["path"], scope["query_string"]
    if len(path) > LONGEST_PATH or len(query) > LONGEST_QUERY:
        raise QueryError(
            "ADDRESS_TOO_LONG",
            f"An address has at most {LONGEST_PATH} characters, and {LONGEST_QUERY} behind its question mark",
        )
    if "\0" in path or b"%00" in query or not query.isascii():
        raise QueryError("REQUEST_INVALID", "The address holds a NUL character, or one that is not encoded")


async def _read(request: Request, receive: Receive, max_bytes: int) -> bytes | None:
    """The body; None when the client left. What is too large is not kept."""
    length = request.headers.get("content-length", "0")
    too_large = not length.isdigit() or len(length) > 18 or int(length) > max_bytes
    parts: list[bytes] = []
    read, until = 0, time.monotonic() + BODY_S
    while True:
        if too_large:
            # Taken from the wire and forgotten, for a while: many clients see no answer before they sent all.
            parts.clear()
            until = min(until, time.monotonic() + _DISCARD_S)
        try:
            message = await asyncio.wait_for(receive(), max(0.0, until - time.monotonic()))
        except TimeoutError:
            if too_large:
                break
            raise AccessError("BODY_TOO_SLOW", f"The body took longer than {BODY_S:g} seconds") from None
        if message["type"] == "http.disconnect":
            return None
        read += len(message.get("body", b""))
        too_large = too_large or read > max_bytes
        if not too_large:
            parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            break
    if too_large:
        raise AccessError("BODY_TOO_LARGE", f"A body has at most {max_bytes} bytes with this role")
    return b"".join(parts)


async def _check_json(request: Request, body: bytes, limits: JsonLimits) -> None:
    if not body:
        return  # the route knows whether it needs one
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise AccessError("CONTENT_TYPE_REFUSED", "The body must be of the type application/json")
    try:
        if len(body) <= _AT_ONCE_BYTES:
            checked_json(body, limits)
        else:
            await asyncio.to_thread(checked_json, body, limits)
    except UnfitJsonError as error:
        raise QueryError("REQUEST_INVALID", f"The body {error}") from None


def _replayed(body: bytes, receive: Receive) -> Receive:
    given = False

    async def message() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return message


def _patient(send: Send) -> Send:
    """A client that takes nothing of its answer must not keep it for ever."""

    async def sent(message: Message) -> None:
        try:
            await asyncio.wait_for(send(message), BODY_S)
        except TimeoutError:
            raise _TooSlowError(f"the client took nothing for {BODY_S:g} seconds") from None

    return sent


async def _send_refusal(scope: Scope, receive: Receive, send: Send, error: TautochroneError) -> None:
    answer = _refusal(scope, error)
    if error.error_class in ("BODY_TOO_LARGE", "BODY_TOO_SLOW"):
        answer.headers["Connection"] = "close"
    await answer(scope, receive, send)


def _refusal(scope: Scope, error: TautochroneError) -> Response:
    answer = problem_of(error)
    return refusal(answer.status_code, error) if scope["path"].startswith("/v1/") else answer


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Whether the numbers among the arguments of a call of the store can be ones.

    Raises:
        UnreadableError: negative where nothing is, or too large to count on.
    """
    for name, value in arguments.items():
        values = value if name in _WITHOUT_NUMBERS else (value,)
        for number in values:
            if isinstance(number, int) and not isinstance(number, bool):
                _check_number(name, number)


def _check_number(name: str, number: int) -> None:
    most = _MOST_LIMIT if name == "limit" else _LONGEST_MS if name.endswith("_ms") else _BIGGEST_NUMBER
    # The lease of a pin is refused by its own class.
    least = -most if name.endswith("_ms") else 0
    if not least <= number <= most:
        raise UnreadableError(f"{name} is from {least} to {most}, not {number}")

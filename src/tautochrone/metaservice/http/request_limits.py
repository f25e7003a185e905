"""Limits of requests: time for the head, length of the address, size and content of the body, number at once.

The middleware runs after `AccessMiddleware`, because the limits depend on the role. It reads and checks the
body; routes get it complete. Event streams are limited by their route. The time for the head, which uvicorn
does not limit, is in `head_timeout`.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tautochrone.errors import AccessError, QueryError, TautochroneError
from tautochrone.metaservice.http.access import Role, caller_of
from tautochrone.metaservice.http.problems import TRANSACTIONS, refusal_of, status_of
from tautochrone.metaservice.http.validation import InvalidJsonError, JsonLimits, parse_json

__all__ = ["ROLE_LIMITS", "RequestLimits", "RoleLimits"]

MAX_PATH, MAX_QUERY = 8_000, 32_000
"""Characters of an address before and after the question mark."""
BODY_TIMEOUT_S = 30.0
"""How long a client may take to send a body, and to receive a part of an answer."""
_DISCARD_S = 2.0
_CHECKED_INLINE_BYTES = 16_384
_JSON_PATHS = ("/rpc/", "/version/", "/api/v1/pins", f"{TRANSACTIONS}/")
_EVENT_STREAM = "/api/v1/events"


@dataclass(frozen=True, slots=True)
class RoleLimits:
    """The limits of one role: bytes of a body, concurrent requests, size of JSON values."""

    body: int
    concurrent: int
    json: JsonLimits


_MIB = 1 << 20
ROLE_LIMITS: Mapping[Role, RoleLimits] = MappingProxyType(
    {
        Role.READ: RoleLimits(_MIB, 128, JsonLimits(depth=32, items=10_000, text=10_000)),
        # Jobs report all tables of a lake and all definitions of a pipeline.
        Role.OPERATE: RoleLimits(32 * _MIB, 256, JsonLimits(depth=100, items=1_000_000, text=4 * _MIB)),
    }
)


class _ClientTimeoutError(Exception):
    """The client was too slow."""


class RequestLimits:
    """Passes on a request with its checked body, or refuses it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._running: Counter[Role] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        role = caller_of(scope).role
        try:
            _check_address(scope)
            if scope["path"] == _EVENT_STREAM:
                await self._app(scope, receive, _send_with_timeout(send))
                return
            if self._running[role] >= ROLE_LIMITS[role].concurrent:
                raise QueryError("TOO_MANY_REQUESTS", "Too many requests are under way", retryable=True)
        except TautochroneError as error:
            await _send_refusal(scope, receive, send, error)
            return
        self._running[role] += 1
        try:
            await self._check_and_run(scope, receive, send, ROLE_LIMITS[role])
        finally:
            self._running[role] -= 1

    async def _check_and_run(self, scope: Scope, receive: Receive, send: Send, bound: RoleLimits) -> None:
        try:
            body = await _read_body(Request(scope), receive, bound.body)
            if body is None:
                return  # the client has disconnected
            if scope["path"].startswith(_JSON_PATHS) and scope["method"] in ("POST", "PUT", "PATCH"):
                await _check_json(Request(scope), body, bound.json)
        except TautochroneError as error:
            await _send_refusal(scope, receive, send, error)
            return
        await self._app(scope, _receive_again(body, receive), _send_with_timeout(send))


def _check_address(scope: Scope) -> None:
    path, query = scope["path"], scope["query_string"]
    if len(path) > MAX_PATH or len(query) > MAX_QUERY:
        raise QueryError(
            "ADDRESS_TOO_LONG",
            f"An address has at most {MAX_PATH} characters, and {MAX_QUERY} behind its question mark",
        )
    if "\0" in path or b"%00" in query or not query.isascii():
        raise QueryError("REQUEST_INVALID", "The address holds a NUL character, or one that is not encoded")


async def _read_body(request: Request, receive: Receive, max_bytes: int) -> bytes | None:
    """The body; None when the client disconnected. A body that is too large is not kept."""
    length = request.headers.get("content-length", "0")
    too_large = not length.isdigit() or len(length) > 18 or int(length) > max_bytes
    parts: list[bytes] = []
    read, until = 0, time.monotonic() + BODY_TIMEOUT_S
    while True:
        if too_large:
            # Read and discarded for a while, because many clients read no answer until all is sent.
            parts.clear()
            until = min(until, time.monotonic() + _DISCARD_S)
        try:
            message = await asyncio.wait_for(receive(), max(0.0, until - time.monotonic()))
        except TimeoutError:
            if too_large:
                break
            raise AccessError(
                "BODY_TOO_SLOW", f"The body took longer than {BODY_TIMEOUT_S:g} seconds"
            ) from None
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
        return  # the route refuses a missing body if it needs one
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise AccessError("CONTENT_TYPE_REFUSED", "The body must be of the type application/json")
    try:
        if len(body) <= _CHECKED_INLINE_BYTES:
            parse_json(body, limits)
        else:
            await asyncio.to_thread(parse_json, body, limits)
    except InvalidJsonError as error:
        raise QueryError("REQUEST_INVALID", f"The body {error}") from None


def _receive_again(body: bytes, receive: Receive) -> Receive:
    delivered = False

    async def message() -> Message:
        nonlocal delivered
        if delivered:
            return await receive()
        delivered = True
        return {"type": "http.request", "body": body, "more_body": False}

    return message


def _send_with_timeout(send: Send) -> Send:
    """`send` with a time-out, so that a client that reads nothing does not keep the request open."""

    async def send_in_time(message: Message) -> None:
        try:
            await asyncio.wait_for(send(message), BODY_TIMEOUT_S)
        except TimeoutError:
            raise _ClientTimeoutError(f"the client read nothing for {BODY_TIMEOUT_S:g} seconds") from None

    return send_in_time


async def _send_refusal(scope: Scope, receive: Receive, send: Send, error: TautochroneError) -> None:
    answer = refusal_of(scope["path"], error, status_of(error))
    if error.error_class in ("BODY_TOO_LARGE", "BODY_TOO_SLOW"):
        answer.headers["Connection"] = "close"
    await answer(scope, receive, send)

"""Reading your own writes: write tokens, and the wait for a checkpoint that is after one.

A writer asks for a token when its write is done; it is the store's time. A checkpoint is *after* a token
when everything that its sources held at that time is in it (`meta.queries.source_observations`).
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from typing import TypeVar

from tautochrone.errors import CheckpointUnavailableError, QueryError
from tautochrone.meta import Store

__all__ = ["WRITE_TOKEN", "read_after", "time_of", "wait_for", "write_token"]

T = TypeVar("T")

WRITE_TOKEN = r"^w[0-9]{1,18}$"
_PAUSE_S = 0.25
# Only waiting helps in these cases: nothing is published yet, or not what belongs to the token.
_LATE = ("READ_NOT_YET", "CHECKPOINT_NOT_FOUND", "CHECKPOINT_BEHIND_SESSION")


def write_token(store: Store) -> str:
    """A token for what is written by now."""
    return f"w{store.now_ms()}"


def time_of(token: str | None) -> int | None:
    """The store's time in a token, in epoch milliseconds.

    Raises:
        QueryError: `WRITE_TOKEN_INVALID`.
    """
    if token is None:
        return None
    if re.fullmatch(WRITE_TOKEN, token) is None:
        raise QueryError(
            "WRITE_TOKEN_INVALID",
            "A write token is a w and a number, as the service gave it",
            hint="`taut token` and POST /api/v1/tokens give one",
        )
    return int(token[1:])


def wait_for(read: Callable[[], T], after: str | None, wait_ms: int) -> T:
    """The first answer of `read` that is after the token; it is asked again for `wait_ms`.

    Raises:
        CheckpointUnavailableError: that of the last try, when the time is over.
    """
    until = time.monotonic() + wait_ms / 1000
    while True:
        try:
            return read()
        except CheckpointUnavailableError as error:
            _require_time(error, after, until)
        time.sleep(_PAUSE_S)


async def read_after(read: Callable[[], T], after: str | None, wait_ms: int) -> T:
    """As `wait_for`, in a service: who waits holds no thread that the jobs need to make it come true."""
    until = time.monotonic() + wait_ms / 1000
    while True:
        try:
            return await asyncio.to_thread(read)
        except CheckpointUnavailableError as error:
            _require_time(error, after, until)
        await asyncio.sleep(_PAUSE_S)


def _require_time(error: CheckpointUnavailableError, after: str | None, until: float) -> None:
    if after is None or error.error_class not in _LATE or time.monotonic() + _PAUSE_S > until:
        raise error

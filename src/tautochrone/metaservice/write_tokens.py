"""Write tokens: to read its own writes a writer asks for a token when its write is done.

The token is the store's time. A checkpoint is *after* a token when it shows everything that its sources held
at that time (`meta.queries.source_observations`); a read with the token waits for such a checkpoint.

Readers without a service use it too, so it imports nothing of one: that takes a third of a second.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tautochrone.errors import CheckpointUnavailableError, QueryError
from tautochrone.meta import Store

__all__ = ["WRITE_TOKEN", "read_after", "token_time_ms", "wait_for", "write_token"]

Answer = TypeVar("Answer")

WRITE_TOKEN = r"^w[0-9]{1,18}$"
_POLL_S = 0.25
# Cases that a later checkpoint can end. Others are raised at once.
_NOT_YET = ("READ_NOT_YET", "CHECKPOINT_NOT_FOUND", "CHECKPOINT_BEHIND_SESSION")


def write_token(store: Store) -> str:
    """A token for what the sources hold now, `w` and the store's time in epoch milliseconds."""
    return f"w{store.now_ms()}"


def token_time_ms(token: str | None) -> int | None:
    """The time in a token, by the store's clock in epoch milliseconds; None without a token.

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


def wait_for(read: Callable[[], Answer], after: str | None, wait_ms: int) -> Answer:
    """The answer of `read`, called again for `wait_ms` while no checkpoint is after the token `after`.

    Raises:
        CheckpointUnavailableError: that of the last call.
    """
    deadline = time.monotonic() + wait_ms / 1000
    while True:
        try:
            return read()
        except CheckpointUnavailableError as error:
            _raise_unless_waiting(error, after, deadline)
        time.sleep(_POLL_S)


async def read_after(
    read: Callable[[], Answer],
    after: str | None,
    wait_ms: int,
    *,
    in_thread: Callable[[Callable[[], Answer]], Awaitable[Answer]] = asyncio.to_thread,
) -> Answer:
    """As `wait_for` for a service: a waiting request occupies no thread, which jobs need for their calls.

    Args:
        in_thread: calls `read` in a thread.
    """
    deadline = time.monotonic() + wait_ms / 1000
    while True:
        try:
            return await in_thread(read)
        except CheckpointUnavailableError as error:
            _raise_unless_waiting(error, after, deadline)
        await asyncio.sleep(_POLL_S)


def _raise_unless_waiting(error: CheckpointUnavailableError, after: str | None, deadline: float) -> None:
    if after is None or error.error_class not in _NOT_YET or time.monotonic() + _POLL_S > deadline:
        raise error

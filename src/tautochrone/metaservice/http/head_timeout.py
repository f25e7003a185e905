"""The time for the head of a request, which uvicorn does not limit.

A job's own server has it from its start, and the rest of the web framework once somebody asks it for
something, so this imports nothing of that.
"""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["HEAD_TIMEOUT_S", "HeadTimeoutProtocol"]

HEAD_TIMEOUT_S = 10.0
"""How long a client may take from the opening, or the first byte, to the end of a request's head."""


class HeadTimeoutProtocol(H11Protocol):
    """Closes a connection on which the head of a request is not complete in time."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._update_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._update_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        super().connection_lost(exc)

    def _update_timer(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._cancel_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._close_connection)

    def _cancel_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _close_connection(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.close()

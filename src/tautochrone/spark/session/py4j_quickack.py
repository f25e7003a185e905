"""Long answers from the JVM without a pause of 40 ms.

Py4J writes an answer in parts of 8 KB. The JVM's kernel holds the last part back until the parts before are
acknowledged (Nagle's algorithm), and ours waits 40 ms for something to send along with that (RFC 1122,
delayed acknowledgements). Asking for more bytes is the moment to acknowledge at once.
"""

from __future__ import annotations

import io
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from py4j.clientserver import JavaClient

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

__all__ = ["enable_quickack"]

_BUFFER_BYTES = 1 << 16


class _Prompt(io.RawIOBase):
    """The reading end of a socket that acknowledges what it has before it waits for more."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        # Not a setting: the kernel goes back to waiting by itself.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return self._socket.recv_into(buffer)


def enable_quickack(gateway: Any) -> None:
    """Have the connections to the JVM of a Py4J gateway, this thread's and those that others will make, read
    this way, where the system can."""
    client = gateway._gateway_client  # noqa: SLF001
    if not isinstance(client, JavaClient) or not hasattr(socket, "TCP_QUICKACK"):
        return
    make: Callable[[], Any] = client._create_new_connection  # noqa: SLF001

    def prompt(connection: Any) -> Any:
        connection.stream = io.BufferedReader(_Prompt(connection.socket), _BUFFER_BYTES)
        return connection

    client._create_new_connection = lambda: prompt(make())  # noqa: SLF001
    mine = client.get_thread_connection()
    if mine is not None:
        prompt(mine)

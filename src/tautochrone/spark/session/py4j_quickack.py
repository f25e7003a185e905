"""Py4J sockets with TCP_QUICKACK: long answers from the JVM without a pause of 40 ms.

Py4J writes an answer in parts of 8 KB. On the JVM's side Nagle's algorithm delays the last part until the
earlier ones are acknowledged; on the Python side the kernel delays that acknowledgement by 40 ms (RFC 1122,
delayed ACK). So the acknowledgement is sent at once, each time before more bytes are read.
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


class _QuickAckReader(io.RawIOBase):
    """Reads a socket and acknowledges received bytes before it waits for more."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        # The kernel resets the option by itself, so it is set before every read.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return self._socket.recv_into(buffer)


def enable_quickack(gateway: Any) -> None:
    """Set TCP_QUICKACK on a Py4J gateway's connections: this thread's and all later ones.

    Does nothing where the operating system has no TCP_QUICKACK.
    """
    client = gateway._gateway_client  # noqa: SLF001
    if not isinstance(client, JavaClient) or not hasattr(socket, "TCP_QUICKACK"):
        return
    create_connection: Callable[[], Any] = client._create_new_connection  # noqa: SLF001

    def with_quickack(connection: Any) -> Any:
        connection.stream = io.BufferedReader(_QuickAckReader(connection.socket), _BUFFER_BYTES)
        return connection

    client._create_new_connection = lambda: with_quickack(create_connection())  # noqa: SLF001
    thread_connection = client.get_thread_connection()
    if thread_connection is not None:
        with_quickack(thread_connection)

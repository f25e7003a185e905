"""The server by which the JVM calls Python takes connections as soon as it is started."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from tautochrone.spark.jvm.catalyst import start_callback_server


def test_server_listens_before_its_thread_does() -> None:
    with socket.socket() as server_socket:
        server_socket.bind(("127.0.0.1", 0))
        address = server_socket.getsockname()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, 5)
        gateway = SimpleNamespace(_callback_server=SimpleNamespace(server_socket=server_socket))
        session: Any = SimpleNamespace(sparkContext=SimpleNamespace(_gateway=gateway))
        for _ in range(2):
            start_callback_server(cast(SparkSession, session))
        socket.create_connection(address, 5).close()

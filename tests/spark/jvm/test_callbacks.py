"""The JVM calls Python: the server takes connections as soon as it is started, and answers arrive."""

from __future__ import annotations

import gc
import socket
from collections.abc import Iterator
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any, cast

import pytest
from py4j.java_gateway import GatewayClient, JavaObject
from pyspark.sql import SparkSession

from tautochrone.spark.analysis.analyzed_plan import analyzed_plan
from tautochrone.spark.jvm.catalyst import kind, start_callback_server, transformed


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


@pytest.fixture
def eager_collector() -> Iterator[None]:
    """Another thread collects unreachable objects all the time, of those that are made from now on."""
    ended = Event()

    def collect() -> None:
        while not ended.is_set():
            gc.collect()

    thread = Thread(target=collect)
    gc.freeze()
    thread.start()
    yield
    ended.set()
    thread.join()
    gc.unfreeze()


@pytest.mark.spark
@pytest.mark.usefixtures("eager_collector")
def test_an_answer_is_there_however_soon_python_drops_it(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Py4J makes a cycle of references with each object that it answers, so that the collector drops it."""
    start_callback_server(spark)
    gateway: Any = spark.sparkContext._gateway
    client = gateway._gateway_client

    def drop_now(target_id: str, enqueue: bool = True) -> None:
        GatewayClient.garbage_collect_object(client, target_id)

    def without_filters(node: JavaObject) -> JavaObject:
        return node.child() if kind(node) == "Filter" else node

    query = "SELECT * FROM (SELECT id, id + 1 AS n FROM range(9) WHERE id > 3) WHERE n > 5"
    plan = analyzed_plan(spark.sql(query))
    monkeypatch.setattr(client, "garbage_collect_object", drop_now)
    for _ in range(100):
        assert "Filter" not in str(transformed(plan.transformUp, without_filters).toString())

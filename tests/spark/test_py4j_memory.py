"""Java forgets what Python dropped, by a few messages."""

from __future__ import annotations

import time
from typing import Any

import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

OBJECTS = 500


def kept(gateway: Any) -> int:
    """How many objects Java keeps for Python."""
    return int(gateway.java_gateway_server.getGateway().getBindings().size())


def test_java_forgets_dropped_objects_together(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway: Any = spark.sparkContext._gateway
    client, sent = gateway._gateway_client, []
    send = client.send_command
    objects = [gateway.jvm.java.lang.Object() for _ in range(OBJECTS)]
    before = kept(gateway)
    assert before >= OBJECTS

    def counting(command: str, *arguments: Any, **options: Any) -> Any:
        sent.append(command)
        return send(command, *arguments, **options)

    monkeypatch.setattr(client, "send_command", counting)
    remaining = objects.pop()
    objects.clear()
    deadline = time.monotonic() + 10
    while kept(gateway) > before - OBJECTS // 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert remaining.toString().startswith("java.lang.Object@"), "this one is not dropped"
    assert len(sent) < OBJECTS // 2
    time.sleep(0.5)
    sent.clear()
    time.sleep(0.5)
    assert len(sent) < 10, "without dropped objects nothing is sent"


def test_other_references_to_a_dropped_object_stay(spark: SparkSession) -> None:
    java_list: Any = spark._jvm.java.util.ArrayList()  # type: ignore[union-attr]
    java_list.add(spark._jvm.java.lang.Object())  # type: ignore[union-attr]
    for _ in range(50):
        # Each answer is another reference to one object of Java, and all but the last are dropped.
        element = java_list.get(0)
    time.sleep(0.3)
    assert element.toString() == java_list.get(0).toString()

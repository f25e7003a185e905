"""Java forgets what Python dropped, by a few messages."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

OBJECTS = 500


def kept(gateway: Any) -> int:
    """How many objects Java keeps for Python."""
    return int(gateway.java_gateway_server.getGateway().getBindings().size())


def commands_about_objects(gateway: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands that tell Java of dropped objects from now on."""
    client, sent = gateway._gateway_client, []
    send = client.send_command

    def counting(command: str, *arguments: Any, **options: Any) -> Any:
        if threading.current_thread().name == "py4j-memory":
            sent.append(command)
        return send(command, *arguments, **options)

    monkeypatch.setattr(client, "send_command", counting)
    return sent


def forgotten(gateway: Any, objects: int) -> bool:
    """Whether Java keeps as few objects at last; it forgets them a moment after Python dropped them."""
    deadline = time.monotonic() + 10
    while kept(gateway) > objects:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_java_forgets_dropped_objects_together(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway: Any = spark.sparkContext._gateway
    sent = commands_about_objects(gateway, monkeypatch)
    objects = [gateway.jvm.java.lang.Object() for _ in range(OBJECTS)]
    before = kept(gateway)
    assert before >= OBJECTS
    remaining = objects.pop()
    objects.clear()
    assert forgotten(gateway, before - OBJECTS // 2)
    assert remaining.toString().startswith("java.lang.Object@"), "this one is not dropped"
    assert len(sent) < OBJECTS // 2


def test_nothing_is_sent_while_nothing_drops(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway: Any = spark.sparkContext._gateway
    sent = commands_about_objects(gateway, monkeypatch)
    before = kept(gateway)
    objects = [gateway.jvm.java.lang.Object() for _ in range(OBJECTS)]
    objects.clear()
    assert forgotten(gateway, before + OBJECTS // 2)
    # Each message leaves an object of its own behind; a thread that sent those at once would send for ever.
    time.sleep(0.5)
    sent.clear()
    time.sleep(0.5)
    assert len(sent) < 10


def test_other_references_to_a_dropped_object_stay(spark: SparkSession) -> None:
    gateway: Any = spark.sparkContext._gateway
    java_list: Any = gateway.jvm.java.util.ArrayList()
    java_list.add(gateway.jvm.java.lang.Object())
    before = kept(gateway)
    objects = [gateway.jvm.java.lang.Object() for _ in range(OBJECTS)]
    for _ in range(50):
        # Each answer is another reference to one object of Java, and all but the last are dropped.
        element = java_list.get(0)
    objects.clear()
    assert forgotten(gateway, before + OBJECTS // 2)
    assert element.toString() == java_list.get(0).toString()

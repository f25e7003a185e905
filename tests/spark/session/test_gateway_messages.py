"""How Python speaks with the JVM: objects are forgotten together, names are asked for once, and long answers
are not delayed."""

from __future__ import annotations

import socket
import statistics
import threading
import time
from typing import Any

import pytest
from py4j.java_gateway import JavaPackage
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

OBJECTS = 500
DELAYED_ACK_S = 0.04
"""How long Linux delays an acknowledgement."""


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


@pytest.fixture
def messages(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The messages to the JVM, but for those that free its objects."""
    client: Any = spark._jvm._gateway_client
    send, sent = client.send_command, list[str]()

    def recording(command: str, *arguments: Any, **options: Any) -> Any:
        if not command.startswith("m\n"):
            sent.append(command)
        return send(command, *arguments, **options)

    monkeypatch.setattr(client, "send_command", recording)
    return sent


def test_names_are_resolved_once(spark: SparkSession, messages: list[str]) -> None:
    def use() -> int:
        messages.clear()
        jvm = spark._jvm
        assert jvm.java.util.concurrent.TimeUnit.valueOf("DAYS").toHours(2) == 48
        assert jvm.java.util.AbstractMap.SimpleEntry("a", "b").getKey() == "a"
        assert jvm.scala.collection.immutable.Nil.isEmpty()
        return len(messages)

    assert use() > 8, "other tests know some of the packages, and none of the classes"
    # The calls themselves: valueOf, toHours, the constructor, getKey, isEmpty.
    assert use() == 5


def test_values_of_fields_are_read_each_time(spark: SparkSession, messages: list[str]) -> None:
    numbers = spark._jvm.java.lang.Long
    assert numbers.MAX_VALUE == 2**63 - 1
    messages.clear()
    assert numbers.MAX_VALUE == 2**63 - 1
    assert len(messages) == 1


def test_a_class_may_come_later(spark: SparkSession, messages: list[str]) -> None:
    assert isinstance(spark._jvm.org.example.Later, JavaPackage)
    messages.clear()
    assert isinstance(spark._jvm.org.example.Later, JavaPackage)
    assert len(messages) == 1


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="other systems have no such delay")
@pytest.mark.parametrize("length", [10, 10_000, 100_000])
def test_answer_of_any_length_is_not_delayed(spark: SparkSession, length: int) -> None:
    text = spark._jvm.java.lang.StringBuilder("x" * length)
    durations = []
    for _ in range(15):
        started = time.perf_counter()
        assert text.toString() == "x" * length
        durations.append(time.perf_counter() - started)
    assert statistics.median(durations) < DELAYED_ACK_S

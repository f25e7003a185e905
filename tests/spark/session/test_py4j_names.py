"""What a name of the JVM stands for is asked for once."""

from __future__ import annotations

from typing import Any

import pytest
from py4j.java_gateway import JavaPackage
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


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

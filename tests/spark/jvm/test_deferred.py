"""Objects that are made later are those that would be made at once."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from tautochrone.spark.jvm import deferred
from tautochrone.spark.jvm.catalyst import Catalyst, kind
from tautochrone.spark.jvm.driver_calls import driver_calls

pytestmark = pytest.mark.spark

TREES = "org.apache.spark.sql.catalyst.expressions"


@pytest.fixture
def catalyst(spark: SparkSession) -> Catalyst:
    return Catalyst(spark)


def messages(monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> list[str]:
    client: Any = spark.sparkContext._gateway._gateway_client
    sent: list[str] = []
    send = client.send_command

    def counting(command: str, *arguments: Any, **options: Any) -> Any:
        if not command.startswith("m"):  # that Python dropped an object
            sent.append(command)
        return send(command, *arguments, **options)

    monkeypatch.setattr(client, "send_command", counting)
    return sent


def test_all_that_waits_is_one_message(
    spark: SparkSession, catalyst: Catalyst, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, right = catalyst.literal(1), catalyst.literal(2)
    true = catalyst.literal(True)
    for name in ("And", "EqualTo"):  # Py4J asks for a class once
        catalyst.expression(name)(true, true).toString()
    sent = messages(monkeypatch, spark)
    equal = catalyst.expression("EqualTo")(left, right)
    both = catalyst.expression("And")(equal, true)
    elements = catalyst.seq([both, equal])
    assert [kind(equal), kind(both)] == ["EqualTo", "And"]
    assert sent == []
    assert elements.size() == 2
    assert len(sent) == 2  # what waited, and the call
    assert str(both.left().toString()) == "(1 = 2)"
    assert bool(both.left().equals(equal))


@pytest.mark.parametrize("value", [True, False, 0, -1, 2**31 - 1, 2**31, -(2**63), "", "a\nb", "ä😀", None])
def test_values_are_passed_as_py4j_passes_them(spark: SparkSession, value: Any) -> None:
    jvm: Any = spark._jvm
    expected = jvm.org.apache.spark.api.python.PythonUtils.toSeq([value])
    passed = deferred.sequence([value])
    assert passed.apply(0) == value
    assert bool(expected.equals(passed))


def test_what_cannot_wait_is_made_at_once(catalyst: Catalyst) -> None:
    assert not deferred.can_wait("a\0b")
    assert not deferred.can_wait(1.5)
    assert not deferred.can_wait([1])
    alias = catalyst.alias(catalyst.literal(1), "a\0b", catalyst.new_expr_id()[1])
    assert str(alias.name()) == "a\0b"


def test_an_object_that_python_dropped_is_still_part_of_others(catalyst: Catalyst) -> None:
    def negated() -> Any:
        return catalyst.expression("Not")(catalyst.expression("Not")(catalyst.literal(True)))

    outer = catalyst.expression("Not")(negated())
    gc.collect()
    assert str(outer.toString()) == "NOT NOT NOT true"


def test_an_error_is_raised_where_the_object_is_used_and_ends_nothing_else(catalyst: Catalyst) -> None:
    wrong = deferred.new(f"{TREES}.And", 7)
    behind = catalyst.expression("Not")(catalyst.literal(True))
    with pytest.raises(Py4JJavaError, match="And"):
        wrong.toString()
    with pytest.raises(Py4JJavaError, match="And"):
        behind.toString()
    assert str(catalyst.expression("Not")(catalyst.literal(True)).toString()) == "NOT true"


def test_an_object_of_another_thread(catalyst: Catalyst) -> None:
    not_true = catalyst.expression("Not")(catalyst.literal(True))
    with ThreadPoolExecutor(4) as threads:
        parts = list(threads.map(lambda _: catalyst.expression("Not")(not_true), range(40)))
    whole = catalyst.seq([not_true, *parts])
    assert whole.size() == 41
    assert {str(whole.apply(index).toString()) for index in range(1, 41)} == {"NOT NOT true"}


def test_many_objects_wait_for_no_use(catalyst: Catalyst) -> None:
    tree = catalyst.literal(True)
    for _ in range(3 * deferred._MAX_WAITING // 2):
        tree = catalyst.expression("Not")(tree)
    assert kind(tree) == "Not"
    assert str(driver_calls().kind(tree)) == "Not"

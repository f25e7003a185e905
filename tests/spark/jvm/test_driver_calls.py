"""What is asked of the driver's JVM in one message is what many messages would answer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from tautochrone.spark.analysis.session_context import use_session
from tautochrone.spark.jvm import driver_calls
from tautochrone.spark.jvm.catalyst import children_of, items, kind, walk

pytestmark = pytest.mark.spark


@pytest.fixture
def plan(spark: SparkSession) -> Any:
    frame = spark.sql("SELECT id + 1 AS n FROM range(3) WHERE id > 0 UNION ALL SELECT 7L")
    return frame._jdf.queryExecution().analyzed()


def test_nodes_come_parents_first_with_the_names_of_their_classes(plan: Any) -> None:
    def one_by_one(node: Any) -> list[tuple[str, str]]:
        named = [(str(node.getClass().getSimpleName()), str(node.toString()))]
        for index in range(node.children().size()):
            named += one_by_one(node.children().apply(index))
        return named

    assert [(kind(node), str(node.toString())) for node in walk(plan)] == one_by_one(plan)
    assert [kind(child) for child in children_of(plan)] == ["Project", "Project"]


def test_elements_are_objects_and_values(spark: SparkSession) -> None:
    gateway: Any = spark.sparkContext._gateway
    values = ["a\nb", "", 7, 2**40, True, 1.5, None]
    sequence = gateway.jvm.org.apache.spark.api.python.PythonUtils.toSeq(values)
    assert list(items(sequence)) == values


def test_threads_share_one_object(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    assert spark
    # Not the compiled class: Py4J takes methods of a second one with its name for those of the first.
    monkeypatch.setattr(driver_calls, "_singletons", {})
    barrier = Barrier(4)

    def ask(_: int) -> Any:
        barrier.wait(10)
        return driver_calls.driver_calls()

    with ThreadPoolExecutor(4) as threads:
        first, *others = threads.map(ask, range(4))
    assert all(other is first for other in others)


def test_a_session_that_cannot_be_entered_leaves_everything_as_it_was(spark: SparkSession) -> None:
    session, static = spark.newSession(), "spark.sql.warehouse.dir"
    session.conf.set("spark.sql.shuffle.partitions", "3")
    settings = {"spark.sql.shuffle.partitions": "5", static: "/elsewhere"}
    before = session.catalog.currentDatabase()
    with pytest.raises(AnalysisException, match="CANNOT_MODIFY"), use_session(session, None, None, settings):
        pass
    assert session.conf.get("spark.sql.shuffle.partitions") == "3"
    with use_session(session, "lake", ("default",), {"spark.sql.shuffle.partitions": "5"}):
        assert session.conf.get("spark.sql.shuffle.partitions") == "5"
        assert SparkSession.getActiveSession() is session
    assert session.conf.get("spark.sql.shuffle.partitions") == "3"
    assert session.catalog.currentDatabase() == before


def test_a_text_that_contains_the_separator_is_refused(spark: SparkSession) -> None:
    session = spark.newSession()
    with pytest.raises(ValueError, match="NUL"):
        driver_calls.new_session(session, settings={"spark.a": "x\0y"})
    session.conf.set("spark.a", "x\0y")
    with pytest.raises(Exception, match="NUL"):
        driver_calls.settings_of(session)

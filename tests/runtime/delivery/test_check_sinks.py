"""What is wrong with a sink is told before a run: its format, its options."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from tautochrone.errors import DefinitionError, SinkError
from tautochrone.model.definitions import FlowInputs, SourceLocation
from tautochrone.model.names import TableName
from tautochrone.project.definitions import Sink
from tautochrone.project.queries import Project, PythonQuery
from tautochrone.project.settings import SinkSettings
from tautochrone.runtime.delivery.check_sinks import check_sinks
from tautochrone.sinks import check_sink, known_formats, register_sink

HERE = SourceLocation("pipeline.py", 3)
OUT = TableName("lake", ("default",), "out")
ORDERS = TableName("lake", ("default",), "orders")


def check(session: Any, format_name: str, *data_sources: Any, **options: str) -> None:
    """The sink of a project, with one flow into it and one table that names it."""
    project = Project(Path(), data_sources=list(data_sources))
    query = PythonQuery(lambda: None, project, None, None)  # type: ignore[arg-type]
    sink = Sink(name=OUT, format=format_name, options=options, location=HERE)
    flow = SimpleNamespace(
        flow=SimpleNamespace(name="f", location=HERE, query=query), inputs=FlowInputs(), passes_on=ORDERS
    )
    definitions: Any = SimpleNamespace(sinks={OUT: sink}, datasets={})
    if format_name in known_formats():
        definitions.datasets = {ORDERS: SimpleNamespace(name=ORDERS, properties={}, location=HERE)}
    schemas = {ORDERS: StructType([StructField("Id", LongType())])}
    graph: Any = SimpleNamespace(flows_of=lambda _target: (flow,), schemas=schemas)
    check_sinks(session, definitions, graph, {"out": SinkSettings()})


@pytest.mark.spark
def test_formats_that_spark_lacks_are_refused(spark: SparkSession) -> None:
    for format_name in ("parquet", "console", "noop"):
        check(spark, format_name)
    check(spark, "Alerts", SimpleNamespace(name=lambda: "alerts"))
    with pytest.raises(DefinitionError, match="kafka-transactionl") as refused:
        check(spark, "kafka-transactionl")
    assert refused.value.error_class == "SINK_FORMAT_UNKNOWN"
    assert "kafka-transactional" in str(refused.value.hint)
    assert refused.value.location == str(HERE)


def test_options_of_adapters_are_checked_without_their_system(tmp_path: Path) -> None:
    for format_name, options, error_class in (
        ("postgresql", {}, "SINK_OPTION_MISSING"),
        ("postgresql", {"url": "postgresql://u:p@h/d"}, "SINK_OPTION_INVALID"),
        ("mariadb", {"url": "mariadb://u@h/d", "shema": "s"}, "SINK_OPTION_INVALID"),
        ("starrocks", {}, "SINK_OPTION_MISSING"),
        ("kafka-transactional", {"kafka.bootstrap.servers": "h:1", "mode": "x"}, "SINK_OPTION_INVALID"),
        ("kafka-transactional", {"kafka.bootstrap.servers": "h:1"}, "SINK_NEEDS_KEY"),
        ("kafka-transactional", {"kafka.bootstrap.servers": "h:1", "key": "nr"}, "SINK_COLUMN_MISSING"),
        ("clickhouse", {"url": "clickhouse://embedded/a", "no": "1"}, "SINK_OPTION_INVALID"),
    ):
        with pytest.raises(SinkError) as refused:
            check(None, format_name, **options)
        assert refused.value.error_class == error_class, format_name
        assert refused.value.location == str(HERE)
    check(None, "clickhouse", url=f"clickhouse://embedded/{tmp_path}/none")
    for more in ({"key": "id"}, {"mode": "changelog"}):
        check(None, "kafka-transactional", **{"kafka.bootstrap.servers": "h:1", **more})
    assert not list(tmp_path.iterdir())
    with pytest.raises(SinkError) as refused:
        check_sink("mirror", "of-nobody", {})
    assert refused.value.error_class == "SINK_FORMAT_UNKNOWN"


def test_an_adapter_of_another_package_checks_its_options() -> None:
    checked: list[tuple[str, Any]] = []

    def factory(name: str, options: Any) -> Any:
        raise AssertionError((name, options))

    register_sink("toy-checked", factory)
    check_sink("mirror", "toy-checked", {"a": "b"})
    factory.check_options = lambda name, options: checked.append((name, options))  # type: ignore[attr-defined]
    check_sink("mirror", "toy-checked", {"a": "b"})
    assert checked == [("mirror", {"a": "b"})]

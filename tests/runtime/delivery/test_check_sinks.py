"""What is wrong with a sink is told before a run: its format, its options."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as spark_types

from tautochrone.errors import DefinitionError, SinkError
from tautochrone.model.definitions import FlowInputs, SourceLocation
from tautochrone.model.names import TableName
from tautochrone.project.definitions import Sink
from tautochrone.project.queries import Project, PythonQuery
from tautochrone.project.settings import SinkSettings
from tautochrone.runtime.delivery.check_sinks import MirroredTable, check_sinks
from tautochrone.sinks import check_sink, known_formats, register_sink

HERE = SourceLocation("pipeline.py", 3)
OUT = TableName("lake", ("default",), "out")
ORDERS = TableName("lake", ("default",), "orders")


SCHEMA = spark_types.StructType().add("id", "long").add("word", "string")


def check(
    session: Any,
    format_name: str,
    *data_sources: Any,
    columns: Any = None,
    settings: SinkSettings = SinkSettings(),  # noqa: B008
    **options: str,
) -> list[MirroredTable]:
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
    graph: Any = SimpleNamespace(flows_of=lambda _target: (flow,), schemas={ORDERS: columns or SCHEMA})
    return check_sinks(session, definitions, graph, {"out": settings})


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


def test_an_adapter_of_another_package_says_that_it_ignores_keys() -> None:
    def factory(name: str, options: Any) -> Any:
        raise AssertionError((name, options))

    register_sink("toy-keyless", factory)
    schema = spark_types.StructType().add("word", TEXT)
    settings = SinkSettings(key=("id",))
    with pytest.raises(SinkError, match="SINK_COLUMN_MISSING"):
        check(None, "toy-keyless", columns=schema, settings=settings)
    factory.uses_keys = False  # type: ignore[attr-defined]
    assert check(None, "toy-keyless", columns=schema, settings=settings)


TEXT = spark_types.StringType()
FORMATS = {
    "clickhouse": {"url": "clickhouse://h/shop"},
    "kafka-transactional": {"kafka.bootstrap.servers": "h:1", "mode": "changelog"},
    "mariadb": {"url": "mariadb://u@h/shop"},
    "postgresql": {"url": "postgresql://h/d", "schema": "shop"},
    "starrocks": {"url": "http://u@h:8030/shop"},
}


@pytest.mark.parametrize("format_name", FORMATS)
def test_what_a_sink_cannot_have_is_refused_without_its_system(format_name: str) -> None:
    options = FORMATS[format_name]
    (mirror,) = check(None, format_name, settings=SinkSettings(keys={"orders": ("id",)}), **options)
    assert mirror.shown_as == ("out.orders" if format_name == "kafka-transactional" else "shop.orders")
    assert mirror.key == ("id",)
    cases: list[tuple[dict[str, spark_types.DataType], str]] = [
        ({"id": spark_types.NullType()}, "SINK_TYPE_UNSUPPORTED")
    ]
    if format_name == "clickhouse":
        # It ignores keys, and so it does those that a table lacks.
        schema = spark_types.StructType().add("word", TEXT)
        check(None, format_name, columns=schema, settings=SinkSettings(key=("id",)), **options)
    else:
        cases.append(({"word": TEXT}, "SINK_COLUMN_MISSING"))
    if format_name != "kafka-transactional":
        cases.append(({"id": TEXT, "_taut_hash": TEXT}, "SINK_COLUMN_NAME_RESERVED"))
    if format_name in ("mariadb", "postgresql"):
        cases.append(({"id": TEXT, "x" * 65: TEXT}, "SINK_SCHEMA_UNSUPPORTED"))
    for columns, error_class in cases:
        schema = spark_types.StructType([spark_types.StructField(*column) for column in columns.items()])
        with pytest.raises(SinkError) as refused:
            check(None, format_name, columns=schema, settings=SinkSettings(key=("id",)), **options)
        assert refused.value.error_class == error_class
        assert refused.value.location == str(HERE)


def test_a_key_is_for_a_table_of_the_sink() -> None:
    with pytest.raises(DefinitionError) as refused:
        check(None, "postgresql", settings=SinkSettings(keys={"lines": ("id",)}), **FORMATS["postgresql"])
    assert refused.value.error_class == "SINK_TABLE_NOT_FOUND"
    assert refused.value.hint == "Its tables: default.orders"


def test_two_names_of_a_table_have_the_same_key() -> None:
    def keys(*of_table: tuple[str, ...]) -> SinkSettings:
        return SinkSettings(keys=dict(zip(("orders", "default.orders"), of_table, strict=True)))

    check(None, "postgresql", settings=keys(("id",), ("id",)), **FORMATS["postgresql"])
    with pytest.raises(DefinitionError) as refused:
        check(None, "postgresql", settings=keys(("id",), ("word",)), **FORMATS["postgresql"])
    assert refused.value.error_class == "SINK_KEY_AMBIGUOUS"
    assert "(id) and (word)" in refused.value.message

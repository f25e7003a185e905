"""Which sinks run as Spark's streaming queries, and what is refused before a run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tautochrone.errors import DefinitionError
from tautochrone.model.definitions import FlowInputs, SourceLocation
from tautochrone.model.names import TableName
from tautochrone.model.sink import DeliveryPolicy
from tautochrone.project.definitions import Sink
from tautochrone.project.settings import SinkSettings
from tautochrone.project.sinks import StreamSink, stream_sinks

HERE = SourceLocation("pipeline.py", 3)
ORDERS = TableName("lake", ("default",), "orders")


def sinks(
    format_name: str, flows: tuple[str, ...] = ("copy",), settings: SinkSettings | None = None
) -> tuple[StreamSink, ...]:
    name = TableName("lake", ("default",), "out")
    sink = Sink(name=name, format=format_name, options={"path": "/a"}, location=HERE)
    resolved = [
        SimpleNamespace(
            flow=SimpleNamespace(name=flow, location=HERE), inputs=FlowInputs(stream=frozenset({ORDERS}))
        )
        for flow in flows
    ]
    definitions: Any = SimpleNamespace(sinks={name: sink})
    graph: Any = SimpleNamespace(flows_of=lambda _target: tuple(resolved))
    return stream_sinks(definitions, graph, {"out": settings} if settings else {}, lambda text: text == "toy")


def test_formats_without_an_adapter_are_streamed() -> None:
    (sink,) = sinks("org.example.MySource", ("a", "b"), SinkSettings(options={"path": "/b"}))
    assert (sink.name, sink.format, sink.options) == ("out", "org.example.MySource", {"path": "/b"})
    assert sink.inputs == {ORDERS}
    assert sinks("toy") == ()


@pytest.mark.parametrize(
    ("format_name", "flows", "settings", "error_class"),
    [
        ("foreachBatch", ("a",), SinkSettings(), "SINK_FORMAT_NEEDS_FUNCTION"),
        ("Parquet", ("a", "b"), SinkSettings(), "SINK_FILES_TAKE_ONE_FLOW"),
        ("kafka", ("a",), SinkSettings(policy=DeliveryPolicy.HOLD_BACK), "SINK_POLICY_NEEDS_ADAPTER"),
        ("kafka", ("a",), SinkSettings(format="console"), "SINK_DECLARED_TWICE"),
    ],
)
def test_what_spark_cannot_write_is_refused(
    format_name: str, flows: tuple[str, ...], settings: SinkSettings, error_class: str
) -> None:
    with pytest.raises(DefinitionError) as refused:
        sinks(format_name, flows, settings)
    assert refused.value.error_class == error_class

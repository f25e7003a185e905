"""Values as Avro: what other readers see, and the way through a schema registry."""

from __future__ import annotations

import datetime as dt
import io
import json
import math
import struct
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from pyspark.sql import types as spark
from tests.sinks.kafka.benches import KafkaBench, committed_messages
from tests.sinks.kafka.fake_registry import FakeSchemaRegistry, running_registry
from tests.support.kafka import KafkaBroker

from tautochrone.errors import SinkError
from tautochrone.model.lake import RowChange
from tautochrone.model.names import CheckpointNumber, Fence, TableName
from tautochrone.model.sink import Intent, Sink, TransactionId
from tautochrone.sinks.json_rows import JsonRows
from tautochrone.sinks.kafka.avro import Codec, envelope_schema, row_schema
from tautochrone.sinks.kafka.options import kafka_options
from tautochrone.testing.sink_conformance import begin
from tautochrone.testing.sqlite_sink import ListRows

ORDERS = TableName("lake", ("shop",), "orders")
NOON = dt.datetime(2026, 3, 1, 12, 0, 0, 1, tzinfo=dt.UTC)
POINT = spark.StructType([spark.StructField("x", spark.LongType()), spark.StructField("y", spark.DateType())])
FIELDS: dict[str, tuple[spark.DataType, Any]] = {
    "flag": (spark.BooleanType(), True),
    "i": (spark.IntegerType(), -(2**31)),
    "n": (spark.LongType(), 2**63 - 1),
    "d": (spark.DecimalType(38, 2), Decimal("-123456789012345678901234567890123456.50")),
    "z": (spark.DecimalType(5, 0), Decimal("-128")),
    "f": (spark.DoubleType(), -1.7e308),
    "g": (spark.FloatType(), 0.5),
    "inf": (spark.DoubleType(), -math.inf),
    "text": (spark.StringType(), "ü\0\U0001f600"),
    "b": (spark.BinaryType(), b"\x00\xff"),
    "day": (spark.DateType(), dt.date(1582, 10, 4)),
    "t": (spark.TimestampType(), NOON.replace(year=1900)),
    "l": (spark.TimestampNTZType(), NOON.replace(tzinfo=None)),
    "a": (spark.ArrayType(POINT), [{"x": 1, "y": dt.date(2026, 3, 1)}, None]),
    "e": (spark.ArrayType(spark.LongType()), []),
    "m": (spark.MapType(spark.StringType(), spark.DecimalType(4, 1)), {"k": Decimal("1.5"), "o": None}),
    "s": (POINT, {"x": None, "y": None}),
}
SCHEMA = spark.StructType([spark.StructField(name, kind) for name, (kind, _) in FIELDS.items()])


def encoded_rows() -> list[Any]:
    values = [tuple(value for _, value in FIELDS.values()), (None,) * len(FIELDS)]
    return list(JsonRows("mirror", ORDERS, SCHEMA, []).rows(ListRows([*FIELDS], values), 10))


def read_by_fastavro(schema: Any, data: bytes) -> Any:
    return fastavro.schemaless_reader(io.BytesIO(data), fastavro.parse_schema(schema), None)


def test_another_reader_sees_the_values() -> None:
    schema = row_schema("mirror", ORDERS, SCHEMA)
    row, empty = encoded_rows()
    stored = read_by_fastavro(schema, Codec(schema).encode(row))
    assert stored == {name: value for name, (_, value) in FIELDS.items()}
    assert read_by_fastavro(schema, Codec(schema).encode(empty)) == dict.fromkeys(FIELDS)


def test_values_come_back_as_they_were() -> None:
    schema = envelope_schema(row_schema("mirror", ORDERS, SCHEMA))
    row, empty = encoded_rows()
    source = {"connector": "tautochrone", "name": "mirror", "db": "shop", "table": "orders", "checkpoint": 7}
    for before, after in ((row, empty), (None, row), (row, None)):
        envelope = {"before": before, "after": after, "op": "u", "source": source}
        data = Codec(schema).encode(envelope)
        assert Codec(json.loads(json.dumps(schema))).decode(data) == envelope
        assert read_by_fastavro(schema, data)["source"] == source


@pytest.mark.parametrize("name", ["a b", "ä", "1"])
def test_names_that_avro_lacks_are_refused(name: str) -> None:
    with pytest.raises(SinkError) as refused:
        row_schema("mirror", ORDERS, spark.StructType([spark.StructField(name, spark.LongType())]))
    assert refused.value.error_class == "SINK_TYPE_UNSUPPORTED"


@pytest.mark.parametrize(
    ("option", "error_class"),
    [
        ({"value.format": "xml"}, "SINK_OPTION_INVALID"),
        ({"value.format": "avro"}, "SINK_OPTION_MISSING"),
        ({"value.format": "avro", "schema.registry.url": "registry:8081"}, "SINK_OPTION_INVALID"),
        ({"value.format": "avro", "schema.registry.url": "http://u:secret@r:8081"}, "SINK_OPTION_INVALID"),
    ],
)
def test_wrong_options_are_refused(option: dict[str, str], error_class: str) -> None:
    with pytest.raises(SinkError) as refused:
        kafka_options("mirror", {"kafka.bootstrap.servers": "broker:9092", **option})
    assert refused.value.error_class == error_class


# -- over a broker --------------------------------------------------------------------------------


@pytest.fixture
def registry() -> Iterator[FakeSchemaRegistry]:
    with running_registry() as registry:
        yield registry


def deliver(
    sink: Sink, checkpoint: int, columns: list[str], added: list[Any], removed: list[Any], attempt: int = 1
) -> None:
    opened = TransactionId(
        incarnation="store-1",
        sink="mirror",
        checkpoint=CheckpointNumber(checkpoint),
        fence=Fence(1),
        attempt=attempt,
    )
    begin(sink, Intent(transaction=opened, versions={}))
    change = RowChange(
        added=ListRows(columns, added) if added else None,
        removed=ListRows(columns, removed) if removed else None,
        rows=len(added) + len(removed),
    )
    sink.prepare(opened, sink.write(opened, ORDERS, change))
    sink.commit(opened, Fence(1))


def decoded(bench: KafkaBench, registry: FakeSchemaRegistry) -> list[Any]:
    """By another reader, each value of the topic with the schema that its header names."""
    values = []
    for message in committed_messages(bench.bootstrap, bench.options.topic_of(ORDERS)):
        value = message.value()
        if value is not None:
            magic, number = struct.unpack(">bI", value[:5])
            assert magic == 0
            value = read_by_fastavro(json.loads(registry.schemas[number - 1]), value[5:])
        values.append(value)
    return values


@pytest.mark.parametrize("mode", ["upsert", "changelog"])
def test_a_topic_of_avro_values_equals_the_lake(
    broker: KafkaBroker, registry: FakeSchemaRegistry, mode: str
) -> None:
    options = {"value.format": "avro", "schema.registry.url": registry.url}
    bench = KafkaBench(broker.bootstrap, mode, **options)
    sink: Any = bench.open()
    sink.fence(Fence(1))
    sink.ensure(ORDERS, bench.schema(), ["id"], Fence(1))
    for status, error_class in (
        (503, "SINK_NOT_REACHABLE"),
        (409, "SINK_SCHEMA_REFUSED"),
        (401, "SINK_LOGIN_REFUSED"),
        (403, "SINK_RIGHTS_MISSING"),
    ):
        registry.status = status
        with pytest.raises(SinkError) as refused:
            deliver(sink, 1, ["id", "word"], [(1, "one")], [], attempt=status)
        assert refused.value.error_class == error_class
    deliver(sink, 1, ["id", "word"], [(1, "one"), (2, None)], [])
    sink.ensure(ORDERS, bench.schema("more"), ["id"], Fence(1))
    deliver(sink, 2, ["id", "word", "more"], [(1, "uno", "x")], [(1, "one", None), (2, None, None)])
    rows = ListRows(["id", "word", "more"], [(1, "uno", "x")])
    assert sink.audit(ORDERS, CheckpointNumber(2)) == sink.digest(ORDERS, rows)
    topic = bench.options.topic_of(ORDERS)
    assert [*registry.subjects] == [f"{topic}-value"]
    assert len(registry.schemas) == 2
    values = decoded(bench, registry)
    first, second, newest = (
        {"id": 1, "word": "one"},
        {"id": 2, "word": None},
        {"id": 1, "word": "uno", "more": "x"},
    )
    if mode == "upsert":
        assert values == [first, second, newest, None]
        sink.close()
        given = {"topic": f"{bench.prefix}.{{table}}", "control_topic": f"{bench.prefix}.control"}
        bench.options = kafka_options("mirror", {"kafka.bootstrap.servers": broker.bootstrap, **given})
        as_json = bench.open()
        as_json.fence(Fence(2))
        with pytest.raises(SinkError, match="avro") as refused:
            as_json.ensure(ORDERS, bench.schema("more"), ["id"], Fence(2))
        assert refused.value.error_class == "SINK_OPTION_INVALID"
    else:
        missing = {"more": None}
        assert [(value["op"], value["before"], value["after"]) for value in values] == [
            ("c", None, first),
            ("c", None, second),
            ("u", {**first, **missing}, newest),
            ("d", {**second, **missing}, None),
        ]
        assert values[2]["source"]["checkpoint"] == 2
    bench.close()

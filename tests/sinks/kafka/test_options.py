"""Options of the Kafka sink, and how values are written."""

from __future__ import annotations

import datetime as dt
import json
import logging
import math
from decimal import Decimal

import pytest
from confluent_kafka import KafkaError, KafkaException
from pyspark.sql import types as spark
from tests.sinks.common.test_mirrored import TABLES

from tautochrone.errors import SinkError
from tautochrone.model.names import TableName
from tautochrone.sinks import has_adapter
from tautochrone.sinks.json_rows import JsonRows, comparable
from tautochrone.sinks.kafka import client
from tautochrone.sinks.kafka.options import Mode, is_topic_name, kafka_options, topic_name
from tautochrone.testing.sqlite_sink import ListRows

ORDERS = TableName("lake", ("default",), "orders")
NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
BROKER = {"kafka.bootstrap.servers": "broker:9092"}


def test_options_have_types_and_defaults() -> None:
    options = kafka_options("mirror", {**BROKER, "kafka.sasl.password": "secret", "mode": "changelog"})
    assert options.mode is Mode.CHANGELOG
    assert options.topic_of(ORDERS) == "mirror.orders"
    assert options.topic_of(TableName("lake", ("shop",), "orders")) == "mirror.shop.orders"
    assert options.control_topic == "mirror.taut-control"
    assert options.client["sasl.password"] == "secret"
    assert "secret" not in repr(options)


@pytest.mark.parametrize(
    ("option", "error_class"),
    [
        ({}, "SINK_OPTION_MISSING"),
        ({**BROKER, "mode": "append"}, "SINK_OPTION_INVALID"),
        ({**BROKER, "topics": "x"}, "SINK_OPTION_INVALID"),
        ({**BROKER, "partitions": "0"}, "SINK_OPTION_INVALID"),
        ({**BROKER, "kafka.transactional.id": "x"}, "SINK_OPTION_INVALID"),
        ({**BROKER, "topic": "größe.{table}"}, "SINK_OPTION_INVALID"),
        ({**BROKER, "topic": "x" * 210 + "{table}"}, "SINK_OPTION_INVALID"),
        ({**BROKER, "control_topic": "x" * 250}, "SINK_OPTION_INVALID"),
        ({**BROKER, "control_topic": ""}, "SINK_OPTION_INVALID"),
    ],
)
def test_wrong_options_are_refused(option: dict[str, str], error_class: str) -> None:
    with pytest.raises(SinkError) as refused:
        kafka_options("mirror", option)
    assert refused.value.error_class == error_class


def test_the_format_kafka_stays_with_spark() -> None:
    assert has_adapter("kafka-transactional")
    assert not has_adapter("kafka")


def test_values_as_json() -> None:
    fields = {
        "n": (spark.LongType(), 2**60, 2**60),
        "d": (spark.DecimalType(12, 2), Decimal("1.50"), "1.50"),
        "f": (spark.DoubleType(), math.nan, "NaN"),
        "g": (spark.FloatType(), -0.0, 0.0),
        "t": (spark.TimestampType(), NOON, "2026-03-01T12:00:00.000000Z"),
        "l": (spark.TimestampNTZType(), NOON.replace(tzinfo=None), "2026-03-01T12:00:00.000000"),
        "b": (spark.BinaryType(), b"\x00\xff", "AP8="),
        "day": (spark.DateType(), dt.date(2026, 3, 1), "2026-03-01"),
        "a": (spark.ArrayType(spark.StringType()), ["x", None], ["x", None]),
        "m": (spark.MapType(spark.IntegerType(), spark.StringType()), {2: "b"}, {"2": "b"}),
        "s": (spark.StructType([spark.StructField("x", spark.LongType())]), {"x": None}, {"x": None}),
        "none": (spark.StringType(), None, None),
    }  # fmt: skip
    schema = spark.StructType([spark.StructField(name, kind) for name, (kind, _, _) in fields.items()])
    rows = JsonRows("mirror", ORDERS, schema, ["N"])
    (row,) = rows.rows(ListRows([*fields], [tuple(value for _, value, _ in fields.values())]), 10)
    assert row == {name: written for name, (_, _, written) in fields.items()}
    assert rows.key_of(row) == f'{{"n":{2**60}}}'
    assert "none" not in json.loads(comparable(row))


def test_types_and_keys_that_do_not_fit_are_refused() -> None:
    variant = spark.StructType([spark.StructField("v", spark.VariantType())])
    with pytest.raises(SinkError) as refused:
        JsonRows("mirror", ORDERS, variant, [])
    assert refused.value.error_class == "SINK_TYPE_UNSUPPORTED"
    with pytest.raises(SinkError) as refused:
        JsonRows("mirror", ORDERS, spark.StructType(), ["id"])
    assert refused.value.error_class == "SINK_COLUMN_MISSING"


def test_a_cluster_that_does_not_answer_in_time_is_not_reachable() -> None:
    with (
        pytest.raises(SinkError, match="SINK_NOT_REACHABLE") as refused,
        client.kafka_errors("feed"),
    ):
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
    assert refused.value.retryable
    assert "kafka.bootstrap.servers" in str(refused.value.hint)


def refused_by(code: int, text: str) -> SinkError:
    with pytest.raises(SinkError) as refused, client.kafka_errors("feed"):
        raise KafkaException(KafkaError(code, text))
    return refused.value


def test_a_log_in_that_was_cut_is_tried_again() -> None:
    cut = "SaslAuthenticateRequest failed: Local: Broker transport failure"
    assert refused_by(KafkaError._AUTHENTICATION, cut).error_class == "SINK_NOT_REACHABLE"
    refusal = refused_by(KafkaError._AUTHENTICATION, "Authentication failed: Invalid username or password")
    assert (refusal.error_class, refusal.retryable) == ("SINK_LOGIN_REFUSED", False)
    missing = refused_by(KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "not authorized")
    assert (missing.error_class, missing.retryable) == ("SINK_RIGHTS_MISSING", False)


def test_attempts_to_connect_are_logged_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger(client.__name__)
    for number in range(20):
        log.error("FAIL [thrd:broker:9092]: Connection refused (after %dms in state CONNECT)", number)
    log.warning("GETPID [thrd:main]: Failed to acquire transactional PID: Broker: Not coordinator: retrying")
    log.error("FAIL [thrd:other:9092]: Connection refused (after 0ms in state CONNECT)")
    assert len(caplog.records) == 2


@pytest.mark.parametrize("template", ["{table}", "shop.{table}", "{table}_", "a" * 209 + "{table}"])
def test_names_of_topics_are_injective_and_fit(template: str) -> None:
    names: dict[str, TableName] = {}
    more = [TableName("lake", ("default",), part) for part in ("x" * 230, "x" * 249 + "y", "x" * 250, "..")]
    for table in sorted({*TABLES, *more}, key=str):
        name = topic_name(template, table)
        assert is_topic_name(name)
        assert names.setdefault(name, table) == table
    # A table that is called like the hashed name of another one gets another name.
    for name, table in list(names.items()):
        if template == "{table}" and name.endswith("_"):
            called = TableName("lake", ("default",), name)
            assert topic_name(template, called) != name or called == table

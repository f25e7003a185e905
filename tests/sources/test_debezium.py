"""Debezium's records as rows: each form of an event, of a value and of an order."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from tautochrone.errors import DefinitionError
from tautochrone.sources import debezium

pytestmark = pytest.mark.spark

COLUMNS = (
    "id BIGINT, name STRING, amount DECIMAL(20, 2), day DATE, "
    "at TIMESTAMP_NTZ, zoned TIMESTAMP, tags ARRAY<STRING>"
)

RECORD = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT"


def records(spark: SparkSession, values: Iterable[Any], keys: Iterable[Any] = ()) -> DataFrame:
    """Records as Kafka's source gives them; None stands for a record without a value."""
    texts = [None if value is None else json.dumps(value).encode() for value in values]
    key_texts = [json.dumps(key).encode() for key in keys] or [None] * len(texts)
    both = zip(key_texts, texts, strict=True)
    rows = [(key, text, "orders", 0, offset) for offset, (key, text) in enumerate(both)]
    return spark.createDataFrame(rows, RECORD)


def event(operation: str, before: Any, after: Any, **source: Any) -> dict[str, Any]:
    return {"op": operation, "before": before, "after": after, "source": {**source, "table": "orders"}}


def precise(unscaled: int) -> str:
    """A decimal as Debezium's `precise` mode writes it."""
    size = (unscaled.bit_length() + 8) // 8
    return base64.b64encode(unscaled.to_bytes(size, "big", signed=True)).decode()


def test_envelopes_of_postgresql(spark: SparkSession) -> None:
    row = {
        "id": 1, "name": "Ana", "amount": precise(-12345), "day": 20000, "at": 1700000000123456,
        "zoned": "2026-01-31T12:00:00.5+02:00", "tags": ["a", None], "unknown": 1,
    }  # fmt: skip
    sent = [
        event("r", None, row, lsn=10),
        # With the schema of each message, as Kafka Connect's JsonConverter writes it unless told otherwise.
        {
            "schema": {"type": "struct"},
            "payload": event("u", None, {**row, "amount": precise(10**20 - 1)}, lsn=12),
        },
        event("d", {"id": 1}, None, lsn=13),
        None,
        event("m", None, None, lsn=14),
        event("t", None, None, lsn=15),
        {"status": "no event of a row"},
    ]
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    rows = debezium.events(records(session, sent), COLUMNS, connector="postgresql").collect()
    assert [(row._op, row._sequence and row._sequence.lsn) for row in rows] == [
        ("r", 10), ("u", 12), ("d", 13), ("t", 15), (None, None),
    ]  # fmt: skip
    assert rows[0][:5] == (
        1,
        "Ana",
        Decimal("-123.45"),
        date(2024, 10, 4),
        datetime.fromisoformat("2023-11-14T22:13:20.123456"),
    )
    assert rows[0].tags == ["a", None]
    assert rows[1].amount == Decimal("999999999999999999.99")
    assert (rows[2].id, rows[2].name, rows[3].id) == (1, None, None)
    times = debezium.events(records(session, sent[:1]), COLUMNS, connector="postgresql")
    assert times.selectExpr("cast(zoned AS STRING) AS text").first() == Row(text="2026-01-31 10:00:00.5")


def in_order(events: DataFrame) -> list[Row]:
    """In one partition, which takes no shuffle."""
    return events.coalesce(1).sortWithinPartitions("_sequence").collect()


def test_positions_of_databases_order_changes(spark: SparkSession) -> None:
    def order(connector: str, *sources: dict[str, Any]) -> list[int]:
        sent = [event("u", None, {"id": number}, **source) for number, source in enumerate(sources)]
        rows = debezium.events(records(spark, sent), "id INT", connector=connector)
        return [row.id for row in in_order(rows.where("_sequence IS NOT NULL"))]

    assert order(
        "mysql",
        {"file": "bin.1000000", "pos": 4, "row": 0},
        {"file": "bin.999999", "pos": 9, "row": 1},
        {"file": "bin.999999", "pos": 9, "row": 0},
        {"file": "bin.999999", "pos": 10, "row": 0},
        {"pos": 1},
    ) == [2, 1, 3, 0]
    assert order(
        "sqlserver",
        {
            "commit_lsn": "00000027:00000ac0:0002",
            "change_lsn": "00000027:00000ab0:0003",
            "event_serial_no": 2,
        },
        {
            "commit_lsn": "00000027:00000ac0:0002",
            "change_lsn": "00000027:00000ab0:0003",
            "event_serial_no": 1,
        },
        {"commit_lsn": "00000026:00000ac0:0002"},
    ) == [2, 1, 0]
    assert order("oracle", {"scn": "18446744073709551616"}, {"scn": "9"}, {"scn": "9"}) == [1, 2, 0]
    assert order("tidb", {"commit_ts": 449}, {"commit_ts": 448}) == [1, 0]
    assert order("kafka", {}, {}) == [0, 1]
    # A transaction in which two rows exchanged their keys: the deletion came first.
    exchanged = [event("c", None, {"id": 1}, commit_ts=9), event("d", {"id": 1}, None, commit_ts=9)]
    rows = debezium.events(records(spark, exchanged), "id INT", connector="tidb")
    assert [row._op for row in in_order(rows)] == ["d", "c"]


def test_flattened_records_are_ordered_by_their_offsets(spark: SparkSession) -> None:
    values = [
        {"id": 1, "amount": "3.50", "at": 5},
        {"id": 1, "amount": None, "__deleted": "true", "__op": "d"},
        None,
    ]
    keys = [{"id": 1}, {"id": 1}, {"schema": {}, "payload": {"id": 2}}]
    rows = debezium.events(
        records(spark, values, keys),
        "id INT, amount DECIMAL(9, 2), at TIMESTAMP_NTZ",
        connector="kafka",
        flattened=True,
        decimals="string",
        timestamps={"at": "millis"},
    ).collect()
    assert [(row.id, row.amount, row._op, row._sequence.offset) for row in rows] == [
        (1, Decimal("3.50"), "u", 0), (1, None, "d", 1), (2, None, "d", 2),
    ]  # fmt: skip
    assert rows[0].at == datetime.fromisoformat("1970-01-01T00:00:00.005")


def test_only_the_wrapper_of_kafka_connect_is_unwrapped(spark: SparkSession) -> None:
    """A table may have columns `payload` and `schema`, of any type."""
    columns = "id BIGINT, payload STRING, schema STRING, note STRING"
    inner = {"id": 99, "note": "x", "payload": "deep", "__deleted": "true"}
    values = [
        {"id": 1, "payload": "text", "note": "a"},
        {"id": 2, "payload": inner, "note": None},
        {"id": 3, "payload": json.dumps(inner), "schema": "s"},
        {"schema": {"type": "struct"}, "payload": inner},
        {"payload": inner, "schema": None},
        {"payload": "alone"},
        {"payload": "p", "schema": "s"},
        None,
    ]
    keys: list[Any] = [{"id": 0}] * 7 + [{"id": 7, "payload": "k"}]
    sent = records(spark, values, keys)
    rows = debezium.events(sent, columns, connector="kafka", flattened=True).collect()
    text = json.dumps(inner, separators=(",", ":"))
    assert [(row.id, row.payload, row.schema, row.note, row._op) for row in rows] == [
        (1, "text", None, "a", "u"),
        (2, text, None, None, "u"),
        (3, json.dumps(inner), "s", None, "u"),
        (99, "deep", None, "x", "d"),
        (None, text, None, None, "u"),
        (None, "alone", None, None, "u"),
        (None, "p", "s", None, "u"),
        (7, "k", None, None, "d"),
    ]
    wrapped = {"schema": {}, "payload": event("c", None, {"id": 1, "payload": "p"}, lsn=1)}
    plain = event("u", None, {"id": 1, "payload": {"id": 5}}, lsn=2)
    rows = debezium.events(records(spark, [wrapped, plain]), columns, connector="postgresql").collect()
    assert [(row.id, row.payload) for row in rows] == [(1, "p"), (1, '{"id":5}')]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (event("u", None, {"id": "many"}, lsn=1), "MALFORMED_RECORD_IN_PARSING"),
        (event("u", None, {"id": 1, "name": "__debezium_unavailable_value"}, lsn=1), "REPLICA IDENTITY FULL"),
    ],
)
def test_values_that_cannot_be_read_fail(spark: SparkSession, value: Any, message: str) -> None:
    rows = debezium.events(records(spark, [value]), "id BIGINT, name STRING", connector="postgresql")
    with pytest.raises(Exception, match=message):
        rows.collect()


PLACEHOLDER = "__debezium_unavailable_value"
WRONG_VALUES: list[tuple[str, Any, dict[str, Any]]] = [
    # Other forms of a decimal than the one that was declared.
    *(("DECIMAL(10, 2)", value, {}) for value in ("12.50", "", "NaN")),
    ("DECIMAL(10, 2)", {"scale": 1, "value": "fQ=="}, {}),
    ("DECIMAL(3, 2)", precise(123456), {}),
    *(("DECIMAL(10, 2)", value, {"decimals": "string"}) for value in (precise(-12345), "1e12")),
    ("DECIMAL(10, 2)", "Infinity", {"decimals": "double"}),
    ("DATE", "yesterday", {}),
    ("DATE", "99999999999", {}),
    ("TIMESTAMP", "99999999999999999999", {}),
    ("TIMESTAMP_NTZ", "12:61", {}),
    # What stands for a long value that did not change.
    ("STRING", PLACEHOLDER, {}),
    ("BINARY", base64.b64encode(PLACEHOLDER.encode()).decode(), {}),
    ("ARRAY<STRING>", [PLACEHOLDER], {}),
    ("ARRAY<INT>", list(PLACEHOLDER.encode()), {}),
    # What the JSON parser checks.
    ("INT", 3_000_000_000, {}),
]
MORE_WRONG_VALUES: list[tuple[str, Any, dict[str, Any]]] = [
    *(("DECIMAL(10, 2)", value, {}) for value in ("-1250", 12.5, 1e3, "12")),
    *(("DECIMAL(10, 2)", value, {"decimals": "string"}) for value in ("NaN", "x")),
    ("DATE", "1.5", {}),
    ("TIMESTAMP", "noon", {}),
    ("TIMESTAMP_NTZ", "1.5e9", {}),
    ("ARRAY<BIGINT>", list(PLACEHOLDER.encode()), {}),
    ("BIGINT", "many", {}),
    ("BOOLEAN", "yes", {}),
]


@pytest.mark.parametrize(
    ("ansi", "values"),
    [
        ("false", WRONG_VALUES),
        pytest.param("false", MORE_WRONG_VALUES, marks=pytest.mark.slow),
        pytest.param("true", WRONG_VALUES + MORE_WRONG_VALUES, marks=pytest.mark.slow),
    ],
    ids=["some", "more", "ansi"],
)
def test_values_of_other_forms_fail(
    spark: SparkSession, ansi: str, values: list[tuple[str, Any, dict[str, Any]]]
) -> None:
    """Whatever the session's casts do with them: no value may become another one, or NULL."""
    session = spark.newSession()
    session.conf.set("spark.sql.ansi.enabled", ansi)
    silent = []
    for kind, value, options in values:
        sent = records(session, [event("u", None, {"id": 1, "x": value}, lsn=1)])
        rows = debezium.events(sent, f"id BIGINT, x {kind}", connector="postgresql", **options)
        try:
            silent.append((kind, value, rows.collect()[0].x))
        except (PySparkException, Py4JError):
            continue
    assert silent == []


def test_unknown_operations_and_texts_are_no_changes(spark: SparkSession) -> None:
    sent = [event(operation, None, {"id": 1}, lsn=1) for operation in ("c", "u", "r", "x", "C", "", None)]
    rows = debezium.events(records(spark, sent), "id BIGINT", connector="postgresql").collect()
    assert [row._op for row in rows if row._sequence is not None] == ["c", "u", "r"]
    flat = [{"id": 1, "__op": operation} for operation in ("c", "x", None)]
    rows = debezium.events(records(spark, flat), "id BIGINT", connector="kafka", flattened=True).collect()
    assert [row._op for row in rows if row._sequence is not None] == ["c", "u"]
    bad = b'{"op": "c", "after": {"id": 1, "name": "\xe4"}, "source": {"lsn": 1}}'
    frame = spark.createDataFrame([(None, bad, "orders", 0, 0)], RECORD)
    with pytest.raises(PySparkException, match="UTF8"):
        debezium.events(frame, "id BIGINT, name STRING", connector="postgresql").collect()


def test_unknown_options_are_refused(spark: SparkSession) -> None:
    sent = records(spark, [])
    for options in (
        {"connector": "db2"},
        {"connector": "postgresql", "flattened": True},
        {"connector": "kafka", "decimals": "exact"},
        {"connector": "kafka", "timestamps": {"at": "seconds"}},
    ):
        with pytest.raises(DefinitionError) as refused:
            debezium.events(sent, "id INT", **options)  # type: ignore[arg-type]
        assert refused.value.error_class == "DEBEZIUM_OPTION_UNKNOWN"
    for column in ("topic", "partition", "offset"):
        with pytest.raises(DefinitionError) as refused:
            debezium.events(sent.drop(column), "id INT", connector="postgresql")
        assert refused.value.error_class == "CHANGE_EVENTS_WITHOUT_OFFSETS"

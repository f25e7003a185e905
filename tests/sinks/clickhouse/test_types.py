"""Values of every type arrive as they were, and have the same digest on both sides."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import types as spark
from tests.sinks.clickhouse.benches import EmbeddedBench

from tautochrone.errors import SinkError
from tautochrone.model.lake import RowChange
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.sink import Intent, RowAudit, Sink, TransactionId
from tautochrone.sinks.clickhouse import types
from tautochrone.testing.sink_conformance import begin
from tautochrone.testing.sqlite_sink import ListRows

TABLE = TableName("lake", ("shop",), "everything")
INSTANT = dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC)
VALUES: list[tuple[spark.DataType, list[Any]]] = [
    (spark.BooleanType(), [True, False, None]),
    (spark.ByteType(), [-128, 127, None]),
    (spark.ShortType(), [-(2**15), 0, None]),
    (spark.IntegerType(), [-(2**31), 7, None]),
    (spark.LongType(), [-(2**63), 2**63 - 1, None]),
    (spark.FloatType(), [0.1, -math.inf, None]),
    (spark.DoubleType(), [math.nan, -0.0, None]),
    (
        spark.DecimalType(38, 10),
        [Decimal("-9999999999999999999999999999.1234567890"), Decimal("0E-10"), None],
    ),
    (spark.DecimalType(5, 0), [Decimal(100), Decimal(-1), None]),
    (spark.StringType(), ["", "ü\\'\t\n`", None]),
    (spark.BinaryType(), [b"\x00\xff\n", b"", None]),
    (spark.DateType(), [dt.date(1900, 1, 1), dt.date(2299, 12, 31), None]),
    (spark.TimestampType(), [INSTANT, dt.datetime(2026, 3, 29, 1, 30, tzinfo=dt.UTC), None]),
    (spark.TimestampNTZType(), [dt.datetime(2026, 3, 29, 2, 30), dt.datetime(1950, 1, 1), None]),  # noqa: DTZ001
    (spark.ArrayType(spark.StringType()), [["a", None, ""], [], None]),
    (spark.ArrayType(spark.ArrayType(spark.IntegerType())), [[[1], [], None], [[2, 3]], None]),
    (spark.MapType(spark.StringType(), spark.LongType()), [{"b": 1, "a": None}, {}, None]),
    (
        spark.MapType(spark.IntegerType(), spark.ArrayType(spark.DateType())),
        [{2: [dt.date(2026, 1, 1)], 1: None}, {}, None],
    ),
    (
        spark.StructType(
            [
                spark.StructField("a b", spark.DecimalType(9, 2)),
                spark.StructField("inner", spark.StructType([spark.StructField("x", spark.DoubleType())])),
            ]
        ),
        [{"a b": Decimal("1.50"), "inner": {"x": 2.5}}, {"a b": None, "inner": None}, None],
    ),
]
SCHEMA = spark.StructType([spark.StructField(f"c{number}", kind) for number, (kind, _) in enumerate(VALUES)])
ROWS = [tuple(values[row] for _, values in VALUES) for row in range(3)]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[EmbeddedBench]:
    bench = EmbeddedBench(tmp_path / "engine", chunk_rows="2")
    yield bench
    bench.close()


def deliver(sink: Sink, checkpoint: int, change: RowChange) -> None:
    transaction = TransactionId(
        incarnation="store", sink="mirror", checkpoint=CheckpointNumber(checkpoint), fence=Fence(1)
    )
    begin(sink, Intent(transaction=transaction, versions={TABLE: Version(str(checkpoint))}))
    sink.prepare(transaction, sink.write(transaction, TABLE, change))
    sink.commit(transaction, Fence(1))


def opened(bench: EmbeddedBench, schema: spark.StructType = SCHEMA) -> Sink:
    sink = bench.open()
    sink.fence(Fence(1))
    sink.ensure(TABLE, schema, (), Fence(1))
    return sink


def test_every_type_arrives_and_goes_again(bench: EmbeddedBench) -> None:
    sink, rows = opened(bench), ListRows(SCHEMA.names, ROWS)
    deliver(sink, 1, RowChange(added=rows))
    assert sink.audit(TABLE, CheckpointNumber(1)) == sink.digest(TABLE, rows)
    (listed,) = bench.reader.rows(
        "SELECT c7, c9, c12, c13, c14, c16, c18 FROM lake.shop__everything WHERE c1 = -128"
    )
    assert listed[1:] == [
        "",
        "1969-12-31 23:59:59.999999",
        "2026-03-29 02:30:00.000000",
        ["a", None, ""],
        {"a": None, "b": 1},
        {"a b": 1.5, "inner": {"x": 2.5}},
    ]
    (nulls,) = bench.reader.rows("SELECT max(_nulls) FROM lake.taut_rows_shop__everything")
    assert nulls == ["c18.inner"]
    deliver(sink, 2, RowChange(removed=ListRows(SCHEMA.names, ROWS[1:])))
    kept = ListRows(SCHEMA.names, ROWS[:1])
    assert sink.audit(TABLE, CheckpointNumber(2)) == sink.digest(TABLE, kept)
    # The older checkpoint can still be read.
    assert sink.audit(TABLE, CheckpointNumber(1)) == sink.digest(TABLE, rows)
    counts = "SELECT toUInt32(count()) FROM lake.shop__everything_at(checkpoint = {})"
    assert [bench.reader.rows(counts.format(number)) for number in (0, 1, 2)] == [[[0]], [[3]], [[1]]]


def test_an_audit_names_the_rows_that_differ(bench: EmbeddedBench) -> None:
    schema = spark.StructType([spark.StructField(name, spark.LongType()) for name in ("id", "part")])
    sink = opened(bench, schema)
    assert isinstance(sink, RowAudit)
    deliver(sink, 1, RowChange(added=ListRows(["id", "part"], [(number, 0) for number in range(40)])))
    lake = ListRows(["id", "part"], [*((number, 0) for number in range(39)), (39, 1), (3, 0)])
    differences = sink.differences(TABLE, CheckpointNumber(1), lake, 10)
    assert {(json.loads(row.row)["id"], json.loads(row.row)["part"], row.in_sink, row.in_lake) for row in
            differences} == {(39, 0, 1, 0), (39, 1, 0, 1), (3, 0, 1, 2)}  # fmt: skip
    assert len(sink.differences(TABLE, CheckpointNumber(1), lake, 2)) == 2
    same = ListRows(["id", "part"], [(number, 0) for number in range(40)])
    assert not sink.differences(TABLE, CheckpointNumber(1), same, 10)


def test_equal_floats_of_spark_are_equal_rows(bench: EmbeddedBench) -> None:
    schema = spark.StructType([spark.StructField("x", spark.DoubleType())])
    sink = opened(bench, schema)
    deliver(sink, 1, RowChange(added=ListRows(["x"], [(-0.0,), (math.nan,)])))
    deliver(sink, 2, RowChange(removed=ListRows(["x"], [(0.0,), (-math.nan,)])))
    assert bench.reader.rows("SELECT * FROM lake.shop__everything") == []


def test_a_null_array_and_an_empty_one_differ(bench: EmbeddedBench) -> None:
    schema = spark.StructType([spark.StructField("x", spark.ArrayType(spark.LongType()))])
    sink = opened(bench, schema)
    deliver(sink, 1, RowChange(added=ListRows(["x"], [([],), (None,)])))
    deliver(sink, 2, RowChange(removed=ListRows(["x"], [(None,)])))
    remaining = ListRows(["x"], [([],)])
    assert sink.audit(TABLE, CheckpointNumber(2)) == sink.digest(TABLE, remaining)


def test_dates_far_away_are_shown_as_they_are(bench: EmbeddedBench) -> None:
    names = ["day", "moment"]
    kinds = (spark.DateType(), spark.TimestampType())
    sink = opened(bench, spark.StructType(list(map(spark.StructField, names, kinds))))
    moments = [dt.datetime(year, 1, 1, tzinfo=dt.UTC) for year in (1, 1582, 9999)]
    deliver(sink, 1, RowChange(added=ListRows(names, [(moment.date(), moment) for moment in moments])))
    shown = bench.reader.rows("SELECT * FROM lake.shop__everything ORDER BY moment")
    assert shown == [[str(moment.date()), f"{moment.date()} 00:00:00.000000"] for moment in moments]


@pytest.mark.parametrize(
    "kind",
    [
        spark.DayTimeIntervalType(),
        spark.NullType(),
        spark.VariantType(),
        spark.ArrayType(spark.VariantType()),
        spark.MapType(spark.ArrayType(spark.StringType()), spark.LongType()),
    ],
)
def test_an_unsupported_type_is_named(bench: EmbeddedBench, kind: spark.DataType) -> None:
    with pytest.raises(SinkError, match=r"everything\.x") as refused:
        opened(bench, spark.StructType([spark.StructField("x", kind)]))
    assert refused.value.error_class == "SINK_TYPE_UNSUPPORTED"
    assert refused.value.hint


def test_columns_that_cannot_be_stored_are_refused(bench: EmbeddedBench) -> None:
    sink = opened(bench, spark.StructType([spark.StructField("x", spark.LongType())]))
    schema = spark.StructType([spark.StructField("_sign", spark.LongType())])
    with pytest.raises(SinkError) as refused:
        sink.ensure(TABLE, schema, (), Fence(1))
    assert refused.value.error_class == "SINK_COLUMN_NAME_RESERVED"


def test_names_of_other_tables_are_not_taken(bench: EmbeddedBench) -> None:
    schema = spark.StructType([spark.StructField("x", spark.LongType())])
    tables = [TableName("lake", ("shop",), name) for name in ("orders", "odd `name", "sold")]
    bench.open().ensure(tables[0], schema, (), Fence(1))
    bench.reader.run("CREATE TABLE lake.shop__sold (x Int64) ENGINE = MergeTree ORDER BY x")
    sink = bench.open()
    for table in tables[:2] * 2:
        sink.ensure(table, schema, (), Fence(1))
    for table in tables[2:]:
        with pytest.raises(SinkError) as refused:
            sink.ensure(table, schema, (), Fence(1))
        assert refused.value.error_class == "SINK_NAME_TAKEN"
    assert bench.reader.rows("SELECT toString(count()) FROM lake.shop__sold") == [["0"]]


def test_instants_at_the_first_day_of_the_calendar_are_counted_in_any_zone() -> None:
    kolkata = dt.timezone(dt.timedelta(hours=5, minutes=30))
    microseconds, _ = types._timestamp(dt.datetime(1, 1, 1, tzinfo=kolkata))
    assert microseconds == -62_135_596_800_000_000 - 19_800_000_000

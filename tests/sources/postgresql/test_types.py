"""Values of PostgreSQL's types: the same text from a copy and from the log, and what Spark reads from it."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tautochrone.sources.postgresql.change_log import Capture, PostgreSQLChangeLog
from tautochrone.sources.postgresql.log_schema import SPARK_SCHEMA
from tautochrone.sources.postgresql.tables import CapturedTable, captured_tables, read_tables
from tautochrone.sources.postgresql.types import lake_type, value_sql

_DDL = """
CREATE TYPE mood AS ENUM ('ok', 'it''s bad');
CREATE DOMAIN price AS numeric(6, 2);
CREATE TABLE v (
    id int PRIMARY KEY, b bool, i2 smallint, i8 bigint, r real, f double precision,
    n numeric(12, 3), free numeric, wide numeric(50, 2), p price,
    d date, ts timestamp, tz timestamptz, t time, iv interval,
    j json, jb jsonb, u uuid, y bytea, c char(5), vc varchar(9), x text, m mood, a int[], aa text[], ip inet,
    mo money, bits bit(3), g int GENERATED ALWAYS AS (id + 1) STORED, "Odd ""' name" text
);
"""
_ROWS = [
    "(1, true, 32767, 9223372036854775807, 1.5, 'Infinity', -123456789.125, 1e30, 12.50, 9999.99, "
    "'2024-02-29', '2024-02-29 23:59:59.999999', '2024-06-01 00:30:00+05:30', '24:00', '1 mon 2 days 03:00', "
    "'{\"a\": 1}', '{\"a\":  1}', 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', '\\xdeadbeef00', 'ab', 'é', "
    "E'tab\\t\\'quote\\\\', 'it''s bad', '{1,NULL,3}', '{\"a,b\",\"\"}', '10.0.0.1/8', 12.5, B'101', "
    "DEFAULT, 'odd')",
    "(2)",
    "(3, false, -32768, -9223372036854775808, '-0', 'NaN', 0, 'NaN', 0, 0, '9999-12-31', "
    "'0001-01-01 00:00:00', '1970-01-01 00:00:00+00', '00:00', '0', 'null', '[]', NULL, '', '', '', '', "
    "'ok', '{}', '{}', '::1', 0, B'000', DEFAULT, '')",
]


def capture(connection: psycopg.Connection) -> tuple[PostgreSQLChangeLog, CapturedTable]:
    info = connection.info
    tables = captured_tables(read_tables(connection, "types"), ["public.v"], (), "types")
    url = f"host={info.host} dbname={info.dbname} user=postgres"
    return PostgreSQLChangeLog(Capture("types", url, tables, f"t_{info.dbname[-8:]}", "types")), tables[0]


@pytest.fixture
def table(database: psycopg.Connection) -> psycopg.Connection:
    database.execute(_DDL)
    return database


def insert(connection: psycopg.Connection) -> None:
    for row in _ROWS:
        connection.execute(
            f"INSERT INTO v VALUES {row}" if "," in row else f"INSERT INTO v (id) VALUES {row}"
        )


def test_copy_and_log_have_the_same_text(table: psycopg.Connection) -> None:
    log, _ = capture(table)
    position = log.begin("reader")
    insert(table)
    chunk = position.bulk.next_chunk()
    assert chunk is not None
    copied = log.read_chunk(*chunk)[0]["columns"].to_pylist()
    logged = log.read(position, 100).rows["columns"].to_pylist()
    assert len(copied) == 3
    assert copied == logged
    assert "g" not in dict(copied[0])
    log.close()


@pytest.mark.spark
def test_spark_reads_the_values(spark: SparkSession, table: psycopg.Connection) -> None:
    log, captured = capture(table)
    insert(table)
    rows = log.read_chunk("public.v", "{}")[0]
    log.close()
    columns = [
        f"{value_sql(column, captured.name, as_text=False)} AS `{column.name}`" for column in captured.columns
    ]
    frame = spark.createDataFrame(rows, SPARK_SCHEMA).selectExpr(*columns)
    for column, field in zip(captured.columns, frame.schema.fields, strict=True):
        expected = lake_type(column).replace(" ", "").lower()
        assert field.dataType.simpleString() == expected, column
    first, second, third = (row.asDict() for row in frame.orderBy("id").collect())
    assert first["b"] is True
    assert third["b"] is False
    assert (first["i2"], first["i8"], first["r"], first["f"]) == (32767, 2**63 - 1, 1.5, float("inf"))
    assert first["n"] == Decimal("-123456789.125")
    assert (first["free"], first["wide"], first["p"]) == ("1" + "0" * 30, "12.50", "9999.99")
    assert first["d"] == dt.date(2024, 2, 29)
    assert str(first["ts"]) == "2024-02-29 23:59:59.999999"
    assert first["tz"].timestamp() == dt.datetime(2024, 5, 31, 19, 0, tzinfo=dt.UTC).timestamp()
    assert third["tz"].timestamp() == 0
    assert (first["y"], third["y"]) == (bytearray(b"\xde\xad\xbe\xef\x00"), bytearray())
    texts: dict[str, Any] = {
        "t": "24:00:00",
        "j": '{"a": 1}',
        "u": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
        "c": "ab   ",
        "x": "tab\t'quote\\",
        "m": "it's bad",
        "a": "{1,NULL,3}",
        "aa": '{"a,b",""}',
        "Odd \"' name": "odd",
    }
    assert {name: first[name] for name in texts} == texts
    assert {name for name, value in second.items() if value is not None} == {"id"}
    assert third["d"] == dt.date(9999, 12, 31)
    assert third["f"] != third["f"]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("column", "value"), [("d", "infinity"), ("ts", "0044-03-15 BC"), ("tz", "-infinity"), ("n", "NaN")]
)
def test_values_without_a_counterpart_are_refused(
    spark: SparkSession, table: psycopg.Connection, column: str, value: str
) -> None:
    table.execute(f"INSERT INTO v (id, {column}) VALUES (1, '{value}')")
    log, captured = capture(table)
    rows = spark.createDataFrame(log.read_chunk("public.v", "{}")[0], SPARK_SCHEMA)
    log.close()
    (definition,) = (item for item in captured.columns if item.name == column)
    with pytest.raises(PySparkException) as raised:
        rows.selectExpr(value_sql(definition, captured.name, as_text=False)).collect()
    assert f"public.v has a value in {column}" in str(raised.value)
    (row,) = rows.selectExpr(value_sql(definition, captured.name, as_text=True)).collect()
    assert "infinity" in row[0] or row[0] in ("NaN", "0044-03-15 00:00:00 BC")

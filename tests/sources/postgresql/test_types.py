"""Values of PostgreSQL's types: the same text from a copy and from the log, and what Spark reads from it."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.sources.capture.typed_values import count_equal_values

from tautochrone.sources.capture.log_table import SPARK_SCHEMA
from tautochrone.sources.postgresql.bulk import TEXT_FORMAT
from tautochrone.sources.postgresql.change_log import Capture, PostgreSQLChangeLog
from tautochrone.sources.postgresql.tables import CapturedTable, captured_tables, read_tables
from tautochrone.sources.postgresql.types import (
    invalid_value_sql,
    lake_type,
    value_sql,
    with_built_in_types,
)

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
    chunk = position.bulk.next_chunks(1)[0]
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
    built_in = with_built_in_types(table, captured.columns)
    columns = [f"{value_sql(column, captured.name, as_text=False)} AS `{column.name}`" for column in built_in]
    frame = spark.createDataFrame(rows, SPARK_SCHEMA).selectExpr(*columns)
    for column, field in zip(built_in, frame.schema.fields, strict=True):
        expected = lake_type(column).replace(" ", "").lower()
        assert field.dataType.simpleString() == expected, column
    first, second, third = (row.asDict() for row in frame.orderBy("id").collect())
    assert first["b"] is True
    assert third["b"] is False
    assert (first["i2"], first["i8"], first["r"], first["f"]) == (32767, 2**63 - 1, 1.5, float("inf"))
    assert first["n"] == Decimal("-123456789.125")
    assert (first["free"], first["wide"], first["p"]) == ("1" + "0" * 30, "12.50", Decimal("9999.99"))
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
        "a": [1, None, 3],
        "aa": ["a,b", ""],
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


_MORE = """
CREATE TYPE size AS ENUM ('S', 'a,"b\\c');
CREATE DOMAIN amount AS numeric(8, 2) CHECK (VALUE > -100000);
CREATE DOMAIN net AS amount;
CREATE DOMAIN tags AS text[];
CREATE TYPE pair AS (a int, b text)
"""
_CASES: list[tuple[str, str, str, list[tuple[str, Any]]]] = [
    # type, Spark's type, an invalid value or '', literals and what Spark shows
    ("bool[]", "array<boolean>", "{{t},{f}}", [("{t,f,NULL}", [True, False, None])]),
    ("smallint[]", "array<smallint>", "", [("{-32768,32767}", [-32768, 32767]), ("{}", [])]),
    ("int[]", "array<int>", "{{1},{2}}", [("[0:1]={7,8}", [7, 8]), ("{-2147483648}", [-(2**31)])]),
    (
        "bigint[]",
        "array<bigint>",
        "",
        [("{-9223372036854775808,9223372036854775807}", [-(2**63), 2**63 - 1])],
    ),
    ("real[]", "array<float>", "", [("{1.5,-Infinity}", [1.5, float("-inf")])]),
    ("float8[]", "array<double>", "", [("{1e308,NULL,Infinity}", [1e308, None, float("inf")])]),
    (
        "numeric(6,2)[]",
        "array<decimal(6,2)>",
        "{NaN}",
        [("{9999.99,-1}", [Decimal("9999.99"), Decimal("-1.00")])],
    ),
    ("numeric[]", "array<string>", "", [("{1e30,NaN}", ["1" + "0" * 30, "NaN"])]),
    ("date[]", "array<date>", "{infinity}", [("{2024-02-29,NULL}", [dt.date(2024, 2, 29), None])]),
    (
        "timestamp[]",
        "array<timestamp_ntz>",
        "{-infinity}",
        [("{2024-02-29 01:02:03}", [dt.datetime.fromisoformat("2024-02-29 01:02:03")])],
    ),
    ("timestamptz[]", "array<timestamp>", '{"0044-03-15 BC"}', []),
    ("bytea[]", "array<binary>", "", [('{"\\\\xdead",NULL}', [bytearray(b"\xde\xad"), None])]),
    (
        "text[]",
        "array<string>",
        "{{a,b},{c,d}}",
        [
            (
                '{"a,b","",NULL,"NULL","null","{x}","q\\"\\\\z",é}',
                ["a,b", "", None, "NULL", "null", "{x}", 'q"\\z', "é"],
            ),
            ("{}", []),
            ('{" a\n"}', [" a\n"]),
            ('{"(1)","[0:1]={2}"}', ["(1)", "[0:1]={2}"]),
        ],
    ),
    # A long element does not exhaust the stack of the regular expression.
    ("text[]", "array<string>", "", [('{"' + '\\"' * 100_000 + '"}', ['"' * 100_000])]),
    ("varchar(5)[]", "array<string>", "", [("{abc}", ["abc"])]),
    (
        "uuid[]",
        "array<string>",
        "",
        [("{A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11}", ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"])],
    ),
    ("jsonb[]", "array<string>", "", [('{"{\\"a\\": [1, \\"x\\"]}"}', ['{"a": [1, "x"]}'])]),
    ("size[]", "array<string>", "", [('{S,"a,\\"b\\\\c"}', ["S", 'a,"b\\c'])]),
    ("pair[]", "array<string>", "", [('{"(1,x)"}', ["(1,x)"])]),
    ("net[]", "array<decimal(8,2)>", "", [("{1.5}", [Decimal("1.50")])]),
    ("tags", "array<string>", "{{a}}", [("{a,NULL}", ["a", None])]),
    (
        "amount",
        "decimal(8,2)",
        "NaN",
        [("999999.99", Decimal("999999.99")), ("-99999.99", Decimal("-99999.99"))],
    ),
    ("net", "decimal(8,2)", "", [("7", Decimal("7.00"))]),
    ("size", "string", "", [("S", "S")]),
    ("numeric(3,-2)", "decimal(5,0)", "", [("99900", Decimal(99900)), ("149", Decimal(100))]),
    ("numeric(3,5)", "decimal(5,5)", "", [("0.00999", Decimal("0.00999"))]),
    ("numeric(38,0)", "decimal(38,0)", "NaN", [("-" + "9" * 38, Decimal("-" + "9" * 38))]),
    ("numeric(38,-1)", "string", "", [("10", "10")]),
    ("numeric", "string", "", [("NaN", "NaN"), ("-Infinity", "-Infinity"), ("1.500", "1.500")]),
    (
        "date",
        "date",
        "0044-03-15 BC",
        [("0001-01-01", dt.date(1, 1, 1)), ("9999-12-31", dt.date(9999, 12, 31))],
    ),
    (
        "timestamp",
        "timestamp_ntz",
        "294276-12-31 23:59:59.999999",
        [("0001-01-01", dt.datetime.fromisoformat("0001-01-01"))],
    ),
    ("timestamptz", "timestamp", "4713-01-01 00:00:00+00 BC", []),
    (
        "interval",
        "string",
        "",
        [("-1 year 2 days 03:04:05.6", "-1 years +2 days 03:04:05.6"), ("0", "00:00:00")],
    ),
    ("money", "string", "", [("-1234.5", "-$1,234.50")]),
    ("bit(3)", "string", "", [("101", "101")]),
    ("bit varying", "string", "", [("", ""), ("1", "1")]),
    ("int4range", "string", "", [("[1,5]", "[1,6)"), ("empty", "empty"), ("(,)", "(,)")]),
    ("tstzrange", "string", "", [("[2024-01-01 00:00+02,infinity)", '["2023-12-31 22:00:00+00",infinity)')]),
    ("json", "string", "", [('{"a":  1}', '{"a":  1}'), ("null", "null")]),
    ("jsonb", "string", "", [('{"b": 1, "a":  1e3}', '{"a": 1000, "b": 1}')]),
    ("time", "string", "", [("24:00", "24:00:00")]),
    ("timetz", "string", "", [("01:02:03+14", "01:02:03+14")]),
    ("inet", "string", "", [("::1", "::1")]),
    ("point", "string", "", [("(1,2)", "(1,2)")]),
    ("oidvector", "string", "", [("1 2", "1 2")]),
    ("box[]", "string", "", [("{(1,1),(0,0);(2,2),(1,1)}", "{(1,1),(0,0);(2,2),(1,1)}")]),
    ('"char"', "string", "", [("x", "x")]),
]


def _fill(connection: psycopg.Connection) -> tuple[CapturedTable, pa.Table]:
    """A table of all types, and its rows from a copy, which equal those of the log."""
    connection.execute(_MORE)
    columns = ", ".join(f"c{number} {case[0]}" for number, case in enumerate(_CASES))
    connection.execute(f"CREATE TABLE v (id int PRIMARY KEY, {columns})")
    log, table = capture(connection)
    position = log.begin("reader")
    for row in range(max(len(case[3]) for case in _CASES) + 2):
        # The last but one row has the invalid values, the last one NULL.
        literals = [
            case[3][row][0] if row < len(case[3]) else case[2] or None if row == 4 else None
            for case in _CASES
        ]
        marks = ", ".join(f"%s::text::{case[0]}" for case in _CASES)
        connection.execute(f"INSERT INTO v VALUES ({row}, {marks})", literals)
    chunk = position.bulk.next_chunks(1)[0]
    rows = log.read_chunk(*chunk)[0]
    logged = log.read(position, 100).rows["columns"].to_pylist()
    assert rows["columns"].to_pylist() == logged
    log.close()
    return table, rows


@pytest.mark.spark
def test_arrays_domains_and_extremes(spark: SparkSession, database: psycopg.Connection) -> None:
    table, rows = _fill(database)
    built_in = with_built_in_types(database, table.columns)
    values = [
        f"{value_sql(column, table.name, as_text=False, invalid_is_null=True)} AS {column.name}"
        for column in built_in
    ]
    problems = [f"{invalid_value_sql(column) or 'NULL'} AS {column.name}" for column in built_in]
    events = spark.createDataFrame(rows, SPARK_SCHEMA)
    typed = events.selectExpr(*values).orderBy("id")
    shown = typed.collect()
    invalid = events.selectExpr(*problems[1:]).collect()
    for number, (name, spark_type, bad, literals) in enumerate(_CASES):
        assert typed.schema[f"c{number}"].dataType.simpleString() == spark_type, name
        assert [row[f"c{number}"] for row in shown][: len(literals)] == [value for _, value in literals], name
        assert shown[-1][f"c{number}"] is None
        problems_found = [row[f"c{number}"] for row in invalid if row[f"c{number}"] is not None]
        assert len(problems_found) == (1 if bad else 0), (name, problems_found)
        if bad and not spark_type.startswith("array"):
            assert shown[4][f"c{number}"] is None, name
    texts = sorted(map(dict, rows["columns"].to_pylist()), key=lambda row: int(row["id"]))
    # All but arrays, and what is a value only for Spark.
    assert count_equal_values(texts, typed, TEXT_FORMAT) > 35

"""Values of both databases' types: the same text from a copy and from the log, and what Spark reads."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest
from pyspark.sql import SparkSession
from tests.sources.capture.typed_values import count_equal_values

from tautochrone.errors import DefinitionError
from tautochrone.sources.capture.log_table import SPARK_SCHEMA
from tautochrone.sources.mysql.bulk import TEXT_FORMAT
from tautochrone.sources.mysql.types import (
    invalid_value_sql,
    lake_type,
    require_known_types,
    value_sql,
)

from .conftest import Schema

_DDL = """
CREATE TABLE v (
    id INT PRIMARY KEY, i1 TINYINT, u1 TINYINT UNSIGNED, i2 SMALLINT, u2 SMALLINT UNSIGNED,
    i3 MEDIUMINT, u3 MEDIUMINT UNSIGNED, u4 INT UNSIGNED, i8 BIGINT, u8 BIGINT UNSIGNED,
    f FLOAT, d DOUBLE, n DECIMAL(12, 3), s DECIMAL(4, 4), w DECIMAL(65, 30), n9 DECIMAL(9, 0),
    day DATE, t TIME, t6 TIME(6), t1 TIME(1), dt DATETIME, dt6 DATETIME(6), dt3 DATETIME(3),
    ts TIMESTAMP NULL, ts6 TIMESTAMP(6) NULL, ts1 TIMESTAMP(1) NULL, y YEAR,
    c CHAR(5), vc VARCHAR(9), big VARCHAR(300), l1 VARCHAR(9) CHARACTER SET latin1,
    cy TEXT CHARACTER SET cp1251, u16 VARCHAR(9) CHARACTER SET utf16, lc CHAR(200) CHARACTER SET utf8mb4,
    tt TINYTEXT, lt LONGTEXT, j JSON, b BINARY(4), vb VARBINARY(9), bl BLOB, mb MEDIUMBLOB, g GEOMETRY,
    e ENUM('one', 'it''s', 'drei,4'), m SET('a', 'b''', 'c'), b1 BIT(1), b12 BIT(12), b64 BIT(64),
    gv INT AS (i1 + 1) VIRTUAL, gs INT AS (i1 + 2) STORED, z INT(6) ZEROFILL,
    zn DECIMAL(65, 2) ZEROFILL, `Odd "'` TEXT, UNIQUE (lt)
)
"""
_ROWS = [
    "(1, 127, 255, 32767, 65535, 8388607, 16777215, 4294967295, 9223372036854775807, 18446744073709551615, "
    "0.1, 1.7976931348623157e308, 123456789.125, 0.9999, "
    "12345678901234567890123456789012345.123456789012345678901234567891, 999999999, "
    "'9999-12-31', '838:59:59', '-838:59:58.999999', '-00:00:00.1', '9999-12-31 23:59:59', "
    "'2024-02-29 23:59:59.999999', '1000-01-01 00:00:00.001', '2038-01-19 03:14:07', "
    "'2024-06-01 00:30:00.000001', '1970-01-01 00:00:00.5', 2155, 'ab', 'é€', REPEAT('y', 299), 'é€', "
    "'Привет', '😀a', REPEAT('ü', 200), 'tiny', REPEAT('z', 70000), '{\"a\": 1}', 'ab', X'00FF00', "
    "X'DEADBEEF00', REPEAT('b', 70000), ST_GeomFromText('POINT(1 2)'), 'it''s', 'a,c', 1, 4095, "
    "18446744073709551615, DEFAULT, DEFAULT, 42, 7.5, 'tab\t''quote\\\\')",
    "(3, -128, 0, -32768, 0, -8388608, 0, 0, -9223372036854775808, 0, -0.1, -1e-300, -123456789.125, "
    "-0.0001, -0.5, -1, '0000-00-00', '00:00:00', '-00:00:01.000001', '12:00:00.9', '0000-00-00 00:00:00', "
    "'1000-01-01 00:00:00', '2026-02-00 00:00:00', '0000-00-00 00:00:00', '1970-01-01 00:00:01', "
    "'2001-09-09 01:46:40', 0, '', '', '', '', '', '', '', '', '', '[]', '', '', '', '', NULL, '', '', 0, "
    "0, 0, DEFAULT, DEFAULT, 0, 0, '')",
]


def prepare(schema: Schema) -> None:
    # MySQL has no unique keys over whole texts.
    ddl = _DDL.replace(", UNIQUE (lt)", "") if schema.is_mysql else _DDL
    schema.run("SET SESSION sql_mode = '', time_zone = '+00:00'", ddl)


def insert(schema: Schema) -> None:
    # MySQL's TIMESTAMP begins half a second later than MariaDB's.
    rows = [row.replace("00:00:00.5", "00:00:01.5") if schema.is_mysql else row for row in _ROWS]
    schema.run(*(f"INSERT INTO v VALUES {row}" for row in rows), "INSERT INTO v (id) VALUES (2)")


@pytest.mark.parametrize("compressed", [False, True])
def test_copy_and_log_have_the_same_text(schema: Schema, compressed: bool) -> None:
    prepare(schema)
    log = schema.change_log()
    position = log.begin("reader")
    if schema.is_mysql:
        schema.run(f"SET SESSION binlog_transaction_compression = {compressed}")
        insert(schema)
    else:
        schema.run(f"SET GLOBAL log_bin_compress = {compressed}, GLOBAL log_bin_compress_min_len = 10")
        insert(schema)
        schema.run("SET GLOBAL log_bin_compress = 0")
    chunk = position.bulk.next_chunks(1)[0]
    copied = {dict(row)["id"]: dict(row) for row in log.read_chunk(*chunk)[0]["columns"].to_pylist()}
    logged = {dict(row)["id"]: dict(row) for row in log.read(position, 100).rows["columns"].to_pylist()}
    log.close()
    assert len(copied) == 3
    assert not {"gv", "gs"} & set(copied["1"])
    for key, row in copied.items():
        for name, value in row.items():
            assert logged[key][name] == value, (key, name)


@pytest.mark.spark
def test_spark_reads_the_values(spark: SparkSession, schema: Schema) -> None:
    prepare(schema)
    insert(schema)
    log = schema.change_log()
    (table,) = schema.capture().tables
    rows = log.read_chunk(table.name, "{}")[0]
    log.close()
    values = [
        f"{value_sql(column, table.name, as_text=False, invalid_is_null=True)} AS `{column.name}`"
        for column in table.columns
    ]
    problems = ", ".join(filter(None, map(invalid_value_sql, table.columns)))
    frame = spark.createDataFrame(rows, SPARK_SCHEMA).selectExpr(
        *values, f"array_compact(array({problems})) AS problems"
    )
    for column, data_type in zip(table.columns, frame.schema.fields, strict=False):
        assert data_type.dataType.simpleString().upper() == lake_type(column).replace(", ", ","), column
    texts = sorted(map(dict, rows["columns"].to_pylist()), key=lambda row: int(row["id"]))
    typed = frame.drop("problems").orderBy("id")
    assert count_equal_values(texts, typed, TEXT_FORMAT) > 80
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    first, empty, last = frame.orderBy("id").collect()
    assert spark.createDataFrame(rows, SPARK_SCHEMA).count() == 3
    spark.conf.set("spark.sql.session.timeZone", zone or "UTC")
    assert (first.i1, first.u1, first.u4, first.i8) == (127, 255, 2**32 - 1, 2**63 - 1)
    assert first.u8 == Decimal(2**64 - 1)
    assert (first.n, last.n, last.s) == (
        Decimal("123456789.125"),
        Decimal("-123456789.125"),
        Decimal("-1e-4"),
    )
    assert first.w == "12345678901234567890123456789012345.123456789012345678901234567891"
    assert first.d == 1.7976931348623157e308
    assert first.f == pytest.approx(0.1)
    assert first.day == dt.date(9999, 12, 31)
    assert first.dt6.isoformat() == "2024-02-29T23:59:59.999999"
    assert (first.t, first.t6, first.t1) == ("838:59:59", "-838:59:58.999999", "-00:00:00.1")
    assert (first.vc, first.l1, first.cy, first.u16) == ("é€", "é€", "Привет", "😀a")
    assert (first.b, first.vb) == (b"ab\0\0", b"\0\xff\0")
    assert (first.e, first.m, first.b1, first.b12) == ("it's", "a,c", True, 4095)
    assert first.y == 2155
    assert first["Odd \"'"] == "tab\t'quote\\"
    assert first.problems == []
    assert [value for value in empty.asDict().values() if value is not None] == [2, []]
    assert (last.day, last.ts) == (None, None)
    assert sorted(last.problems) == [
        "day = 0000-00-00",
        "dt = 0000-00-00 00:00:00",
        "dt3 = 2026-02-00 00:00:00.000",
        "ts = 0000-00-00 00:00:00+00:00",
    ]


def test_bytes_that_are_no_character(schema: Schema) -> None:
    """Such as UTF-8 in a column of latin1, which old programs wrote."""
    schema.run(
        "CREATE TABLE v (id INT PRIMARY KEY, a VARCHAR(9) CHARACTER SET latin1, "
        "b VARCHAR(9) CHARACTER SET cp1251)"
    )
    log = schema.change_log()
    position = log.begin("reader")
    schema.run("INSERT INTO v VALUES (1, X'C38180818D8F909D', X'61')")
    chunk = position.bulk.next_chunks(1)[0]
    texts = [
        [dict(row) for row in rows["columns"].to_pylist()]
        for rows in (log.read_chunk(*chunk)[0], log.read(position, 10).rows)
    ]
    assert texts == [[{"id": "1", "a": "Ã\x81€\x81\x8d\x8f\x90\x9d", "b": "a"}]] * 2
    log.close()


def test_labels_with_backslashes(schema: Schema) -> None:
    schema.run(r"CREATE TABLE v (id INT PRIMARY KEY, e ENUM('a\\b', 'n\nl', '\\''\\n'), s SET('p\\q', 'r'))")
    log = schema.change_log()
    position = log.begin("reader")
    schema.run("INSERT INTO v VALUES (1, 1, 3), (2, 2, 1), (3, 3, 0)")
    chunk = position.bulk.next_chunks(1)[0]
    for rows in (log.read_chunk(*chunk)[0], log.read(position, 10).rows):
        texts = [(row["e"], row["s"]) for row in map(dict, rows["columns"].to_pylist())]
        assert texts == [("a\\b", "p\\q,r"), ("n\nl", "p\\q"), ("\\'\\n", "")]
    log.close()


def test_generated_columns_of_the_key(schema: Schema) -> None:
    if not schema.is_mysql:
        pytest.skip("MariaDB has no generated columns in keys")
    schema.run("CREATE TABLE v (a INT, k INT AS (a + 1) STORED PRIMARY KEY, b INT AS (a) STORED)")
    log = schema.change_log()
    position = log.begin("reader")
    schema.run("INSERT INTO v (a) VALUES (1)")
    chunk = position.bulk.next_chunks(1)[0]
    for rows in (log.read_chunk(*chunk)[0], log.read(position, 10).rows):
        assert [dict(row) for row in rows["columns"].to_pylist()] == [{"a": "1", "k": "2"}]
    log.close()


def test_unknown_types_are_refused(schema: Schema) -> None:
    data_type = "VECTOR(3)" if schema.is_mysql else "UUID"
    schema.run(f"CREATE TABLE v (id INT PRIMARY KEY, u {data_type})")
    with pytest.raises(DefinitionError, match=r"type (uuid|vector.*) of its column u") as raised:
        require_known_types(schema.capture().tables[0], "test")
    assert raised.value.error_class == "CAPTURED_TYPE_NOT_SUPPORTED"


def test_two_tables_with_one_name_are_refused(schema: Schema) -> None:
    """A dot joins schema and table, and both names may have dots."""
    other = f"{schema.name}.a"
    try:
        schema.run(
            "CREATE TABLE `a.b` (id INT PRIMARY KEY)",
            f"CREATE DATABASE `{other}`",
            f"CREATE TABLE `{other}`.b (id INT PRIMARY KEY)",
        )
        with pytest.raises(DefinitionError, match=f"two tables that are both {other}.b") as raised:
            schema.capture()
    finally:
        schema.run(f"DROP DATABASE IF EXISTS `{other}`")
    assert raised.value.error_class == "CAPTURED_TABLE_NAME_TAKEN"

"""Namespaces, full names, `spark_catalog`, USE, SET, hyphens, views in any order, types."""

from __future__ import annotations

import pytest

from .conftest import Survey

pytestmark = pytest.mark.spark

# Downstream first: the order of statements and of files must not matter.
NAMES = """
CREATE MATERIALIZED VIEW lake.mart.summary COMMENT 'per kind; "all"'
  TBLPROPERTIES ('delta.autoOptimize' = 'true', 'team' = 'me') CLUSTER BY (kind)
AS SELECT kind, count(*) AS n FROM spark_catalog.default.`the-items` GROUP BY kind;

CREATE VIEW cheap COMMENT 'persisted' AS SELECT * FROM pens WHERE price < 2;

CREATE TEMPORARY VIEW pens AS SELECT * FROM `the-items` WHERE kind = 'pen';

CREATE MATERIALIZED VIEW `the-items` PARTITIONED BY (kind) AS SELECT id, kind, price FROM stage.items;

CREATE MATERIALIZED VIEW cheap_pens AS SELECT id FROM cheap;

CREATE MATERIALIZED VIEW both AS
  SELECT s.kind, s.n, c.id FROM mart.summary AS s LEFT JOIN lake.default.cheap_pens c ON s.kind = 'pen';

SET spark.sql.session.timeZone = Asia/Tokyo;

USE stage;

CREATE MATERIALIZED VIEW pricey AS SELECT id FROM items WHERE price > 3;

CREATE MATERIALIZED VIEW lake.mart.pricey_names AS
  SELECT concat('item-', id, ' ', current_timezone()) AS name FROM pricey
"""

ITEMS = """
from pyspark import pipelines as dp


@dp.table(name="stage.items")
def items():
    reader = spark.readStream.schema("id INT, kind STRING, price DOUBLE")
    return reader.option("header", True).csv("@IN@/items")


@dp.table(name="stage.`late-items`")
def late_items():
    return spark.readStream.table("stage.items").where("id > 2")


@dp.materialized_view(name="lake.mart.late", cluster_by=["id"])
def late():
    first = spark.sql("SELECT i.id FROM lake.stage.`late-items` AS i")
    return first.union(spark.table("stage.`late-items`").select("id"))
"""


def test_names(survey: Survey) -> None:
    survey.define("a/names.sql", NAMES)
    survey.define("z/deeper/items.py", ITEMS)
    survey.data("items/1.csv", "id,kind,price\n1,pen,1.5\n2,ink,4\n")
    survey.build()
    assert survey.rows("SELECT * FROM mart.summary") == [("ink", 1), ("pen", 1)]
    assert survey.rows("SELECT * FROM both") == [("ink", 1, None), ("pen", 1, 1)]
    assert survey.rows("SELECT * FROM lake.mart.pricey_names") == [("item-2 Asia/Tokyo",)]
    survey.data("items/2.csv", "id,kind,price\n3,pen,3.5\n4,cap,1\n")
    survey.build()
    assert survey.rows("SELECT * FROM mart.summary") == [("cap", 1), ("ink", 1), ("pen", 2)]
    assert survey.rows("SELECT * FROM both") == [("cap", 1, None), ("ink", 1, None), ("pen", 2, 1)]
    names = survey.rows("SELECT * FROM mart.pricey_names")
    assert names == [("item-2 Asia/Tokyo",), ("item-3 Asia/Tokyo",)]
    assert survey.rows("SELECT * FROM mart.late") == [(3,), (3,), (4,), (4,)]
    detail = survey.pipeline.session.sql("DESCRIBE TABLE EXTENDED lake.mart.summary").collect()
    described = {row[0]: row[1] for row in detail}
    assert described["Comment"] == 'per kind; "all"'
    assert "team=me" in described["Table Properties"]


TYPES = """
CREATE MATERIALIZED VIEW odd AS
SELECT CAST(1 AS TINYINT) AS tiny, CAST(2 AS SMALLINT) AS small, CAST('ab' AS CHAR(4)) AS fixed,
  CAST('xyz' AS VARCHAR(5)) AS varying, CAST(1.25 AS DECIMAL(38, 18)) AS exact, DATE'2026-01-02' AS day,
  TIMESTAMP_NTZ'2026-01-02 03:04:05.123456' AS local, TIMESTAMP'2026-01-02 03:04:05Z' AS instant,
  array(1, NULL, 3) AS list, map('a', 1, 'b', NULL) AS pairs, X'00FF' AS bytes,
  named_struct('x', 1, 'inner', named_struct('y', array('q'))) AS nested, CAST(NULL AS STRING) AS nothing,
  true AS flag, CAST(1.5 AS FLOAT) AS short_float, id
FROM range(3);

CREATE STREAMING TABLE strict (
  id BIGINT NOT NULL COMMENT 'the key', day DATE, price DECIMAL(8, 2), tags ARRAY<STRING>,
  place STRUCT<lat: DOUBLE, lon: DOUBLE>, extra MAP<STRING, STRING>) ;

CREATE FLOW into_strict AS INSERT INTO strict BY NAME SELECT id, day, price, tags, place FROM STREAM raw;

CREATE MATERIALIZED VIEW per_day AS
  SELECT day, sum(price) AS price, collect_set(place.lat) AS lats FROM strict GROUP BY day;

CREATE MATERIALIZED VIEW exploded AS SELECT id, tag FROM strict LATERAL VIEW explode(tags) t AS tag
"""

TYPES_PY = """
from pyspark import pipelines as dp
from pyspark.sql.types import *

FIELDS = StructType([
    StructField("id", LongType(), False),
    StructField("day", DateType()),
    StructField("price", DecimalType(8, 2)),
    StructField("tags", ArrayType(StringType())),
    StructField("place", StructType([StructField("lat", DoubleType()), StructField("lon", DoubleType())])),
])


@dp.table(schema=FIELDS)
def raw():
    return spark.readStream.schema(FIELDS).json("@IN@/raw")


@dp.materialized_view(schema="id BIGINT NOT NULL, label STRING")
def labels():
    return spark.range(3).selectExpr("id", "concat('l', id) AS label")


@dp.materialized_view
def small_ints():
    columns = ["CAST(id AS TINYINT) AS t", "CAST(id AS SMALLINT) AS s", "current_database() AS home"]
    return spark.range(4).selectExpr(*columns)
"""


def test_types(survey: Survey) -> None:
    survey.define("types.sql", TYPES)
    survey.define("types.py", TYPES_PY)
    location = {"lat": 1.5, "lon": 2}
    survey.json(
        "raw/1.json", {"id": 1, "day": "2026-01-01", "price": 1.25, "tags": ["a", "b"], "place": location}
    )
    survey.build()
    survey.json(
        "raw/2.json", {"id": 2, "day": "2026-01-01", "price": 2, "tags": []}, {"id": 3, "place": location}
    )
    survey.run()
    per_day = "SELECT coalesce(CAST(day AS STRING), '-'), CAST(price AS DOUBLE), lats FROM per_day"
    assert survey.rows(per_day) == [("-", None, [1.5]), ("2026-01-01", 3.25, [1.5])]
    assert survey.rows("SELECT * FROM exploded") == [(1, "a"), (1, "b")]
    assert (
        survey.rows("SELECT tiny, small, fixed, varying, pairs['a'], nested.inner.y[0], size(list) FROM odd")
        == [(1, 2, "ab", "xyz", 1, "q", 3)] * 3
    )
    assert survey.rows("SELECT pairs['b'] FROM odd") == [(None,)] * 3
    assert survey.verdicts["odd"] is True


VARIANT = """
from pyspark import pipelines as dp
from pyspark.sql.functions import col, expr, parse_json, variant_get


@dp.table
def changes():
    return (
        spark.readStream.text("@IN@/debezium")
        .select(parse_json(col("value")).alias("envelope"), col("_metadata.file_name").alias("file"))
    )


@dp.table
def customer_changes():
    return spark.readStream.table("changes").select(
        variant_get("envelope", "$.payload.op", "string").alias("op"),
        variant_get("envelope", "$.payload.ts_ms", "bigint").alias("ts_ms"),
        expr("coalesce(variant_get(envelope, '$.payload.after.id', 'int'),"
             " variant_get(envelope, '$.payload.before.id', 'int'))").alias("id"),
        expr("try_variant_get(envelope, '$.payload.after.name', 'string')").alias("name"),
        expr("variant_get(envelope, '$.payload.after')").alias("after"),
    )
"""

VARIANT_SQL = """
CREATE MATERIALIZED VIEW customers AS
SELECT id, name, after FROM (
  SELECT *, row_number() OVER (PARTITION BY id ORDER BY ts_ms DESC) AS rn FROM customer_changes)
WHERE rn = 1 AND op <> 'd';

CREATE MATERIALIZED VIEW ops AS SELECT op, count(*) AS n FROM customer_changes GROUP BY op
"""


def test_variant(survey: Survey) -> None:
    def change(op: str, ts_ms: int, before: str, after: str) -> str:
        return f'{{"payload": {{"op": "{op}", "ts_ms": {ts_ms}, "before": {before}, "after": {after}}}}}\n'

    survey.define("debezium.py", VARIANT)
    survey.define("customers.sql", VARIANT_SQL)
    ann, bob = '{"id": 1, "name": "ann"}', '{"id": 2, "name": "bob"}'
    survey.data("debezium/1.txt", change("c", 1, "null", ann) + change("c", 2, "null", bob))
    survey.build()
    assert survey.rows("SELECT id, name FROM customers") == [(1, "ann"), (2, "bob")]
    anna = '{"id": 1, "name": "anna"}'
    survey.data("debezium/2.txt", change("u", 3, ann, anna) + change("d", 4, bob, "null"))
    survey.build()
    assert survey.rows("SELECT id, name, variant_get(after, '$.name', 'string') FROM customers") == [
        (1, "anna", "anna")
    ]
    assert survey.rows("SELECT * FROM ops") == [("c", 2), ("d", 1), ("u", 1)]

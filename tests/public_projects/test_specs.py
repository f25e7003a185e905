"""The project around its definitions: the spec's fields, parameters, folders outside of the project."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.harness import Pipeline

from .conftest import Survey

pytestmark = pytest.mark.spark

SPEC = """\
name: shop-pipeline
catalog: spark_catalog
database: shop
storage: target/state
configuration:
  spark.sql.shuffle.partitions: "2"
  shop.floor: "5"
  shop.label: a b
libraries:
  - glob: {include: transformations/**}
  - glob: {include: ../shared/**}
"""

SHARED = """
from pyspark import pipelines as dp
from pyspark.sql.functions import col, lit

FLOOR = int(spark.conf.get("shop.floor"))


@dp.materialized_view(name="spark_catalog.shop.expensive")
def expensive():
    prices = spark.table("spark_catalog.shop.prices").where(col("price") > FLOOR)
    return prices.withColumn("label", lit(spark.conf.get("shop.label")))


@dp.materialized_view
def ticks_per_value():
    return spark.table("audit.ticks").groupBy((col("value") % 2).alias("odd")).count().where("count < 0")


@dp.table(name="audit.ticks")
def ticks():
    return spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()
"""

PRICES = """
CREATE MATERIALIZED VIEW prices AS SELECT * FROM VALUES (1, 4.5), (2, 6.5) AS t(id, price);
CREATE MATERIALIZED VIEW audit.copies AS SELECT id FROM shop.expensive WHERE price > ${shop.floor} -- the end
"""


def test_spec(tmp_path: Path, spark: SparkSession) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "common.py").write_text(SHARED)
    pipeline = Pipeline(project, spark, spec=SPEC)
    pipeline.write("transformations/deep/prices.sql", PRICES)
    for _ in range(2):
        happened = pipeline.run()
        assert happened.state == "COMPLETED", [event["error"] for event in happened if "error" in event]
        assert pipeline.query("SELECT id, label FROM lake.shop.expensive") == [(2, "a b")]
        assert pipeline.query("SELECT * FROM audit.copies") == [(2,)]
    pipeline.verify()
    assert (project / "target" / "state" / "meta.db").exists()
    pipeline.close()


JOINED = """
from pyspark import pipelines as dp
from pyspark.sql.functions import expr


def stream(name, schema):
    return spark.readStream.schema(schema).json(f"@IN@/{name}")


@dp.table
def matches():
    shown = stream("shown", "ad INT, shown_at TIMESTAMP").withWatermark("shown_at", "1 hour")
    clicked = stream("clicked", "clicked_ad INT, clicked_at TIMESTAMP").withWatermark("clicked_at", "1 hour")
    near = "ad = clicked_ad AND clicked_at BETWEEN shown_at AND shown_at + INTERVAL 10 MINUTES"
    return shown.join(clicked, expr(near)).select("ad", "clicked_at")


@dp.table
def seen():
    return stream("shown", "ad INT, shown_at TIMESTAMP").dropDuplicates(["ad"]).select("ad")


@dp.temporary_view
def long_ads():
    return spark.readStream.table("seen").where("ad > 1")


@dp.table
def from_view():
    return spark.sql("SELECT ad * 10 AS ad FROM STREAM long_ads")


@dp.table
def union_of_streams():
    return spark.readStream.table("seen").unionByName(spark.readStream.table("from_view"))
"""


def test_streams_are_joined_and_united(survey: Survey) -> None:
    survey.define("joined.py", JOINED)
    survey.json(
        "shown/1.json",
        {"ad": 1, "shown_at": "2026-01-01T10:00:00Z"},
        {"ad": 2, "shown_at": "2026-01-01T10:00:00Z"},
    )
    survey.json("clicked/1.json", {"clicked_ad": 1, "clicked_at": "2026-01-01T10:05:00Z"})
    survey.build()
    assert survey.rows("SELECT ad FROM matches") == [(1,)]
    # The second row of a pair arrives later: the first one is in the state of the first run.
    survey.json("clicked/2.json", {"clicked_ad": 2, "clicked_at": "2026-01-01T10:09:00Z"})
    survey.json(
        "shown/2.json",
        {"ad": 2, "shown_at": "2026-01-01T10:20:00Z"},
        {"ad": 3, "shown_at": "2026-01-01T10:20:00Z"},
    )
    survey.build()
    assert survey.rows("SELECT ad FROM matches") == [(1,), (2,)]
    assert survey.rows("SELECT ad FROM seen") == [(1,), (2,), (3,)]
    assert survey.rows("SELECT ad FROM union_of_streams") == [(1,), (2,), (3,), (20,), (30,)]

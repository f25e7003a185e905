"""Python projects with more than queries: loops, helpers, local data, UDFs, times and random numbers."""

from __future__ import annotations

import pytest

from .conftest import Survey

pytestmark = pytest.mark.spark

HELPERS = """
from pyspark.sql.functions import udf

RATE = 1.5


@udf("double")
def taxed(amount):
    return None if amount is None else amount * RATE


def clean(frame):
    return frame.where("amount IS NOT NULL").withColumn("amount", taxed("amount"))
"""

PIPELINE = """
import importlib.util
import os
import sys
from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.functions import pandas_udf

import sibling
from sibling import NAMES

here = Path(__file__).parent
found = importlib.util.spec_from_file_location("helpers_by_path", here / "lib" / "_helpers.py")
helpers = importlib.util.module_from_spec(found)
found.loader.exec_module(helpers)

print("defining", len(NAMES), "tables")
spark = SparkSession.active()
TENANTS = ["a-corp", "b_corp"]


def make(tenant):
    @dp.materialized_view(name=f"`{tenant}_sales`", comment=f"sales of {tenant}", spark_conf={})
    def sales():
        return helpers.clean(spark.read.table("sales")).filter(F.col("tenant") == tenant)


for tenant in TENANTS:
    make(tenant)


@dp.materialized_view
def sales():
    return spark.read.csv("@IN@/sales", header=True, inferSchema=True)


@dp.materialized_view
def generated():
    return spark.createDataFrame([(n, f"name {n}", n / 7) for n in range(3000)], ["id", "name", "share"])


@dp.materialized_view
def generated_stats():
    totals = [F.count("*").alias("n"), F.sum("share").alias("share"), F.max("name").alias("last")]
    return spark.table("generated").agg(*totals)


@dp.materialized_view
def stamped():
    now = sibling.numbers().withColumn("at", F.current_timestamp())
    return now.withColumn("dice", F.rand(seed=42)).withColumn("die", F.rand())


@dp.materialized_view
def from_parquet():
    return spark.sql("SELECT id, kind FROM parquet.`@IN@/lookup`")


@dp.temporary_view
def shaped():
    return spark.table("from_parquet").withColumn("kind", F.upper("kind"))


@dp.materialized_view
def pivoted():
    return spark.table("sales").groupBy("tenant").pivot("kind", ["x", "y"]).agg(F.sum("amount"))


@dp.materialized_view
def looked_up():
    kinds = F.broadcast(spark.table("shaped").alias("k"))
    joined = spark.table("sales").alias("s").join(kinds, F.expr("s.kind = lower(k.kind)"))
    return joined.select("s.tenant", "k.id")
"""

SIBLING = """
from pyspark.sql import SparkSession

NAMES = ["one", "two"]


def numbers():
    return SparkSession.getActiveSession().range(5)
"""


def test_python(survey: Survey) -> None:
    survey.define("pipeline.py", PIPELINE)
    survey.define("sibling.py", SIBLING)
    survey.define("lib/_helpers.py", HELPERS)
    session = survey.pipeline.session
    session.createDataFrame([(1, "x")], "id INT, kind STRING").write.parquet(str(survey.inputs / "lookup"))
    survey.data("sales/1.csv", "tenant,kind,amount\na-corp,x,10\nb_corp,y,\nb_corp,x,2\n")
    survey.build()
    assert survey.rows("SELECT * FROM `a-corp_sales`") == [("a-corp", "x", 15.0)]
    assert survey.rows("SELECT n, last FROM generated_stats") == [(3000, "name 999")]
    assert survey.rows("SELECT * FROM looked_up") == [("a-corp", 1), ("b_corp", 1)]
    survey.data("sales/2.csv", "tenant,kind,amount\nb_corp,y,4\n")
    session.createDataFrame([(2, "y")], "id INT, kind STRING").write.mode("append").parquet(
        str(survey.inputs / "lookup")
    )
    happened = survey.build()
    assert happened.refresh("generated")["rows_inserted"] == 0
    assert survey.rows("SELECT * FROM b_corp_sales") == [("b_corp", "x", 3.0), ("b_corp", "y", 6.0)]
    assert survey.rows("SELECT * FROM pivoted") == [("a-corp", 10, None), ("b_corp", 2, 4)]
    assert survey.rows("SELECT * FROM looked_up") == [
        ("a-corp", 1),
        ("b_corp", 1),
        ("b_corp", 2),
        ("b_corp", 2),
    ]
    assert survey.rows("SELECT count(at), count(DISTINCT die) FROM stamped") == [(5, 5)]


PARTITIONED = """
from pyspark import pipelines as dp
from pyspark.sql import functions as F


@dp.table(partition_cols=["region"])
def readings():
    return (
        spark.readStream.schema("sensor STRING, value DOUBLE, year INT, region STRING")
        .option("maxFilesPerTrigger", 2)
        .json("@IN@/readings")
        .withColumn("file", F.col("_metadata.file_name"))
    )


@dp.materialized_view
def by_partition():
    groups = spark.read.json("@IN@/readings").groupBy("year", "region")
    return groups.agg(F.count("*").alias("n"), F.avg("value").alias("mean"))


@dp.materialized_view
def per_region():
    groups = spark.read.table("readings").groupBy("region", "year")
    return groups.agg(F.max_by("sensor", "value").alias("top"))
"""


@pytest.mark.slow
def test_partition_folders(survey: Survey) -> None:
    survey.define("readings.py", PARTITIONED)
    for region in ("eu", "us"):
        survey.json(f"readings/year=2025/region={region}/a.json", {"sensor": f"{region}1", "value": 1.0})
    survey.build()
    survey.json(
        "readings/year=2026/region=eu/a.json", {"sensor": "eu2", "value": 4.0}, {"sensor": "eu1", "value": 2}
    )
    survey.json("readings/year=2025/region=us/b.json", {"sensor": "us2", "value": 3.0})
    survey.json("readings/year=2026/region=us/c.json", {"sensor": "us3", "value": 3.0})
    happened = survey.run()
    assert len([event for event in happened.of("batch") if event["rows"]]) == 2
    assert survey.rows("SELECT * FROM per_region") == [
        ("eu", 2025, "eu1"),
        ("eu", 2026, "eu2"),
        ("us", 2025, "us2"),
        ("us", 2026, "us3"),
    ]
    assert survey.rows("SELECT year, region, n, mean FROM by_partition") == [
        (2025, "eu", 1, 1.0),
        (2025, "us", 2, 2.0),
        (2026, "eu", 2, 3.0),
        (2026, "us", 1, 3.0),
    ]

"""Projects that configure their catalog in the spec, as public projects do."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.harness import Pipeline

pytestmark = pytest.mark.spark

SPEC = """\
name: shop
storage: storage
catalog: local
database: bronze
configuration:
  spark.sql.extensions: "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
  spark.sql.catalog.local: "org.apache.iceberg.spark.SparkCatalog"
  spark.sql.catalog.local.type: "hadoop"
  spark.sql.catalog.local.warehouse: "warehouse"
  spark.sql.catalog.spark_catalog: "org.apache.spark.sql.delta.catalog.DeltaCatalog"
  spark.sql.shuffle.partitions: "3"
  shop.kind: "b"
libraries:
  - glob:
      include: definitions/**
"""
PYTHON = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession, functions as F

spark = SparkSession.active()


@dp.table(format="iceberg")
def orders():
    return spark.readStream.schema("id BIGINT, kind STRING").json("{inputs}")


@dp.materialized_view(name="local.silver.chosen")
def chosen():
    partitions = spark.conf.get("spark.sql.shuffle.partitions")
    rows = spark.read.table("local.bronze.orders").where(F.col("kind") == spark.conf.get("shop.kind"))
    return rows.withColumn("partitions", F.lit(partitions))
"""
SQL = "CREATE MATERIALIZED VIEW gold.totals AS SELECT count(*) AS n FROM spark_catalog.silver.chosen"


def test_hadoop_catalog_of_the_spec(tmp_path: Path, spark: SparkSession) -> None:
    inputs = tmp_path / "in"
    inputs.mkdir()
    (inputs / "1.json").write_text('{"id": 1, "kind": "a"}\n{"id": 2, "kind": "b"}\n')
    pipeline = Pipeline(tmp_path, spark, spec=SPEC)
    pipeline.write("definitions/a.py", PYTHON.format(inputs=inputs))
    pipeline.write("definitions/b.sql", SQL)
    happened = pipeline.run()
    assert happened.state == "COMPLETED", happened
    assert pipeline.query("SELECT * FROM local.silver.chosen") == [(2, "b", "3")]
    assert pipeline.query("SELECT * FROM gold.totals") == [(1,)]
    assert [entry["setting"] for entry in happened.of("setting_ignored")] == [
        "spark.sql.catalog.spark_catalog"
    ]
    (inputs / "2.json").write_text('{"id": 3, "kind": "b"}\n')
    pipeline.run()
    assert pipeline.query("SELECT * FROM gold.totals") == [(2,)]
    assert pipeline.query("SELECT * FROM gold.totals", checkpoint=1) == [(1,)]
    assert (tmp_path / "warehouse/silver/chosen/metadata/version-hint.text").exists()
    # Another engine reads the same folders.
    other = spark.newSession()
    other.conf.set("spark.sql.catalog.plain", "org.apache.iceberg.spark.SparkCatalog")
    other.conf.set("spark.sql.catalog.plain.type", "hadoop")
    other.conf.set("spark.sql.catalog.plain.warehouse", str(tmp_path / "warehouse"))
    assert other.sql("SELECT n FROM plain.gold.totals").collect()[0][0] == 2
    pipeline.close()


def test_spec_names_a_catalog_that_nobody_configured(tmp_path: Path, spark: SparkSession) -> None:
    spec = "name: p\nstorage: storage\ncatalog: my_shop\nlibraries:\n  - glob: {include: definitions/**}\n"
    pipeline = Pipeline(tmp_path, spark, spec=spec)
    pipeline.write("definitions/a.sql", "CREATE MATERIALIZED VIEW my_shop.default.one AS SELECT 1 AS a")
    assert pipeline.run().state == "COMPLETED"
    assert pipeline.query("SELECT * FROM one") == [(1,)]
    pipeline.close()

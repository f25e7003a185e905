"""Which Spark settings belong to a definition."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tautochrone.project.session_settings import TUNING_SETTINGS, may_change_rows, row_settings
from tautochrone.spark.analysis.session_context import SqlDefaults


@pytest.mark.parametrize(
    "name",
    [
        "spark.sql.session.timeZone",
        "spark.sql.ansi.enabled",
        "spark.sql.files.ignoreCorruptFiles",
        "spark.sql.legacy.timeParserPolicy",
        "spark.sql.execution.pythonUDF.arrow.enabled",
        "spark.sql.not.known",
        "spark.shop.kind",
        "my.tokenizer",
        "max.tokens",
    ],
)
def test_setting_may_change_rows(name: str) -> None:
    assert may_change_rows(name)


@pytest.mark.parametrize(
    "name",
    [
        "spark.sql.shuffle.partitions",
        "spark.sql.adaptive.enabled",
        "spark.sql.files.maxPartitionBytes",
        "spark.sql.warehouse.dir",
        "spark.sql.catalog.shop.uri",
        "spark.executor.memory",
        "spark.app.name",
        "spark.hadoop.fs.s3a.endpoint",
        "db.password",
        "shop.apiKey",
    ],
)
def test_setting_does_not_change_rows(name: str) -> None:
    assert not may_change_rows(name)


def test_settings_of_a_query() -> None:
    started_with = {
        "spark.sql.a": "1",
        "spark.sql.b": "2",
        "spark.cluster.id": "7",
        "spark.driver.cores": "4",
    }
    configuration = {"spark.sql.b": "3", "own": "x", "db.password": "p", "spark.sql.c": " True"}
    settings = row_settings(started_with, configuration, {"spark.sql.c": "true"}.get)
    assert settings == {"spark.sql.a": "1", "spark.sql.b": "3", "own": "x"}


@pytest.mark.spark
def test_tuning_settings_are_names_that_spark_knows(spark: SparkSession) -> None:
    defaults = SqlDefaults(spark)
    assert defaults("spark.sql.session.timeZone") == "UTC"
    assert defaults("spark.sql.ansi.enabled") == "true"
    assert defaults("spark.sql.not.known") is None
    names = [name for name in TUNING_SETTINGS if not name.endswith(".")]
    assert [name for name in names if defaults(name) is None] == []

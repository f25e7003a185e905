"""The settings of sessions whose catalog is not the lake's real one."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tautochrone.iceberg.sessions.spark_sessions import empty_session, reader_session
from tautochrone.spark.jvm.driver_calls import new_session, settings_of

pytestmark = pytest.mark.spark


def test_settings_are_read_and_given_whole(spark: SparkSession) -> None:
    given = {"spark.mine.empty": "", "spark.mine.lines": "a\nb \\ c", "spark.mine.ä": "→ 🙂"}
    session = new_session(spark, settings=given)
    assert settings_of(session) == session.conf.getAll
    assert settings_of(session).items() >= given.items()
    assert not settings_of(spark).keys() & given.keys()


def test_catalogs_of_spark_defaults_leave_nothing_behind(spark: SparkSession) -> None:
    """What `spark-defaults.conf` says is in each new session."""
    defaults = {
        "spark.sql.catalog.spark_catalog": "org.apache.iceberg.spark.SparkSessionCatalog",
        "spark.sql.catalog.spark_catalog.type": "hive",
        "spark.sql.catalog.shop.type": "hadoop",
        "spark.sql.catalog.shops.type": "hadoop",
    }
    context = spark._jsparkSession.sparkContext().conf()
    before = {key: context.get(key, None) for key in defaults}
    for key, value in defaults.items():
        context.set(key, value)
    try:
        empty = settings_of(empty_session(spark, "shop"))
        reader = settings_of(reader_session(spark, "shop", "http://localhost:1", "strong"))
    finally:
        for key, value in before.items():
            if value is None:
                context.remove(key)
            else:
                context.set(key, value)
    for name in ("shop", "spark_catalog"):
        assert f"spark.sql.catalog.{name}.type" not in empty
        assert empty[f"spark.sql.catalog.{name}.catalog-impl"].endswith("InMemoryCatalog")
        assert reader[f"spark.sql.catalog.{name}.type"] == "rest"
    assert empty["spark.sql.catalog.shops.type"] == "hadoop"

"""The settings of sessions whose catalog is not the lake's real one."""

from __future__ import annotations

from typing import Any

from tautochrone.iceberg.sessions.spark_sessions import empty_session, reader_session


class Session:
    """Stands for a Spark session, whose new sessions have what spark-defaults.conf says."""

    def __init__(self, defaults: dict[str, str]) -> None:
        self.conf: Any = self
        self.getAll = dict(defaults)

    def newSession(self) -> Session:  # noqa: N802
        return Session(self.getAll)

    def set(self, key: str, value: str) -> None:
        self.getAll[key] = value

    def unset(self, key: str) -> None:
        del self.getAll[key]


def test_catalogs_of_spark_defaults_leave_nothing_behind() -> None:
    base: Any = Session(
        {
            "spark.sql.catalog.spark_catalog": "org.apache.iceberg.spark.SparkSessionCatalog",
            "spark.sql.catalog.spark_catalog.type": "hive",
            "spark.sql.catalog.lake.type": "hadoop",
            "spark.sql.catalog.lakes.type": "hadoop",
        }
    )
    empty: Any = empty_session(base, "lake")
    reader: Any = reader_session(base, "lake", "http://localhost:1", "strong")
    for name in ("lake", "spark_catalog"):
        assert f"spark.sql.catalog.{name}.type" not in empty.conf.getAll
        assert empty.conf.getAll[f"spark.sql.catalog.{name}.catalog-impl"].endswith("InMemoryCatalog")
        assert reader.conf.getAll[f"spark.sql.catalog.{name}.type"] == "rest"
    assert empty.conf.getAll["spark.sql.catalog.lakes.type"] == "hadoop"

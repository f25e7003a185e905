"""A lake with history, and a store that knows cuts of it. Each has a catalog of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tautochrone.iceberg.sessions.catalog_settings import CatalogSettings
from tautochrone.meta import DatasetEntry, MetaStore, Store
from tautochrone.metaservice.server import EmbeddedServer
from tautochrone.model.names import Fence, TableName, Version
from tautochrone.model.reason import unclassified
from tautochrone.model.refresh import Refresh, RefreshMode
from tautochrone.rest_catalog.metadata_files import MetadataSource, metadata_source
from tautochrone.rest_catalog.read_points import ReadPoints

FULL = Refresh(mode=RefreshMode.FULL, reason=unclassified("first build"))


def name(table: str, *namespace: str) -> TableName:
    return TableName("lake", namespace or ("db",), table)


@dataclass
class Lake:
    """`orders` is a root, `totals` is derived from it, `outside` is written by no job."""

    spark: SparkSession
    settings: CatalogSettings
    store: Store
    fence: Fence
    source: MetadataSource
    read_points: ReadPoints
    uri: str = ""
    numbers: list[int] = field(default_factory=list)

    def version(self, table: str) -> Version:
        rows = self.spark.sql(f"SELECT snapshot_id FROM lake.{table}.refs WHERE name = 'main'")
        return Version(str(rows.collect()[0][0]))

    def cut(self, *, fail: bool = False, roots: tuple[str, ...] = ("db.orders",)) -> int:
        versions = {TableName.parse(f"lake.{root}"): self.version(root) for root in roots}
        n = self.store.checkpoints.open("job", self.fence, versions, 1).number
        if fail:
            self.store.checkpoints.record_failure(
                "job", self.fence, n, name("totals"), unclassified("division by zero")
            )
        else:
            totals = self.version("db.totals")
            self.store.checkpoints.record_version("job", self.fence, n, name("totals"), totals, FULL)
        self.store.checkpoints.publish("job", self.fence, n, 2)
        self.numbers.append(n)
        return n


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Iterator[Lake]:
    """Two checkpoints: orders {1,2} then {1,2,3} with a new column; totals likewise."""
    settings = CatalogSettings.default(str(tmp_path))
    spark = spark.newSession()
    for key, value in {"": "org.apache.iceberg.spark.SparkCatalog", ".cache-enabled": "false"}.items():
        spark.conf.set(f"spark.sql.catalog.lake{key}", value)
    for key, value in settings.options.items():
        spark.conf.set(f"spark.sql.catalog.lake.{key}", value)
    props = "TBLPROPERTIES ('format-version'='3', 'write.delete.mode'='merge-on-read')"
    spark.sql("CREATE NAMESPACE lake.db")
    spark.sql("CREATE NAMESPACE lake.empty")
    spark.sql("CREATE NAMESPACE lake.a")
    spark.sql("CREATE NAMESPACE lake.a.b")
    spark.sql(f"CREATE TABLE lake.db.orders (id INT, price INT) USING iceberg {props}")
    spark.sql(f"CREATE TABLE lake.db.totals (n BIGINT) USING iceberg {props}")
    spark.sql("CREATE TABLE lake.a.b.outside (id INT, label STRING) USING iceberg")
    spark.sql("INSERT INTO lake.a.b.outside VALUES (1, 'one'), (3, 'three')")
    store = MetaStore.open(f"sqlite:///{tmp_path}/meta.db")
    store.jobs.start_run(
        "shop",
        "job",
        [
            DatasetEntry(name("orders"), "streaming table", "a"),
            DatasetEntry(name("totals"), "materialized view", "b", frozenset({name("orders")})),
        ],
    )
    source, read_points = metadata_source(settings), ReadPoints(store)
    published_lake = Lake(spark, settings, store, store.jobs.take_over("job"), source, read_points)
    spark.sql("INSERT INTO lake.db.orders VALUES (1, 10), (2, 20)")
    spark.sql("INSERT INTO lake.db.totals VALUES (2)")
    published_lake.cut()
    spark.sql("ALTER TABLE lake.db.orders ADD COLUMN note STRING")
    spark.sql("ALTER TABLE lake.db.orders ADD PARTITION FIELD note")
    spark.sql("ALTER TABLE lake.db.orders WRITE ORDERED BY note")
    spark.sql("INSERT INTO lake.db.orders VALUES (3, 30, 'new')")
    spark.sql("INSERT OVERWRITE lake.db.totals VALUES (3)")
    published_lake.cut()
    spark.sql("DELETE FROM lake.db.orders WHERE id = 1")
    spark.sql("INSERT INTO lake.db.orders VALUES (4, 40, 'later')")
    with EmbeddedServer(read_points, source) as server:
        published_lake.uri = server.uri
        yield published_lake
    store.close()

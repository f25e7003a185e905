"""A lake with history, and a store that knows cuts of it. Each has a catalog of its own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tautochrone.iceberg.sessions.catalog_settings import CatalogSettings
from tautochrone.meta import DatasetEntry, MetaStore, Store
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.metaservice.server import EmbeddedServer
from tautochrone.model.checkpoint import Refresh, RefreshMode
from tautochrone.model.names import Fence, TableName, Version
from tautochrone.model.reason import unclassified
from tautochrone.rest_catalog.metadata import MetadataSource, metadata_source
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
        n = self.store.checkpoints.open("job", self.fence, NewCheckpoint(versions, 1)).number
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


def _session(spark: SparkSession, settings: CatalogSettings) -> SparkSession:
    session = spark.newSession()
    for key, value in {"": "org.apache.iceberg.spark.SparkCatalog", ".cache-enabled": "false"}.items():
        session.conf.set(f"spark.sql.catalog.lake{key}", value)
    for key, value in settings.options.items():
        session.conf.set(f"spark.sql.catalog.lake.{key}", value)
    return session


def _build(lake: Lake) -> None:
    sql = lake.spark.sql
    props = "TBLPROPERTIES ('format-version'='3', 'write.delete.mode'='merge-on-read')"
    sql("CREATE NAMESPACE lake.db")
    sql("CREATE NAMESPACE lake.empty")
    sql("CREATE NAMESPACE lake.a")
    sql("CREATE NAMESPACE lake.a.b")
    sql(f"CREATE TABLE lake.db.orders (id INT, price INT) USING iceberg {props}")
    sql(f"CREATE TABLE lake.db.totals (n BIGINT) USING iceberg {props}")
    sql("CREATE TABLE lake.a.b.outside (id INT, label STRING) USING iceberg")
    sql("INSERT INTO lake.a.b.outside VALUES (1, 'one'), (3, 'three')")
    sql("INSERT INTO lake.db.orders VALUES (1, 10), (2, 20)")
    sql("INSERT INTO lake.db.totals VALUES (2)")
    lake.cut()
    sql("ALTER TABLE lake.db.orders ADD COLUMN note STRING")
    sql("ALTER TABLE lake.db.orders ADD PARTITION FIELD note")
    sql("ALTER TABLE lake.db.orders WRITE ORDERED BY note")
    sql("INSERT INTO lake.db.orders VALUES (3, 30, 'new')")
    sql("INSERT OVERWRITE lake.db.totals VALUES (3)")
    lake.cut()
    sql("DELETE FROM lake.db.orders WHERE id = 1")
    sql("INSERT INTO lake.db.orders VALUES (4, 40, 'later')")


@dataclass(frozen=True)
class _Built:
    """The lake as it was built; tests get it back in the same folder, because tables name their files by
    absolute paths."""

    folder: Path
    copy: Path
    fence: Fence
    numbers: tuple[int, ...]


@pytest.fixture(scope="session")
def built_lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> _Built:
    folder = tmp_path_factory.mktemp("published") / "lake"
    folder.mkdir()
    settings = CatalogSettings.default(str(folder))
    with MetaStore.open(f"sqlite:///{folder}/meta.db") as store:
        store.jobs.start_run(
            "shop",
            "job",
            [
                DatasetEntry(name("orders"), "streaming table", "a"),
                DatasetEntry(name("totals"), "materialized view", "b", frozenset({name("orders")})),
            ],
        )
        fence = store.jobs.take_over("job")
        source, read_points = metadata_source(settings), ReadPoints(store)
        lake = Lake(_session(spark, settings), settings, store, fence, source, read_points)
        _build(lake)
    copy = folder.with_name("kept")
    shutil.copytree(folder, copy)
    return _Built(folder, copy, fence, tuple(lake.numbers))


@pytest.fixture
def lake(spark: SparkSession, built_lake: _Built) -> Iterator[Lake]:
    """Two checkpoints: orders {1,2} then {1,2,3} with a new column; totals likewise."""
    shutil.rmtree(built_lake.folder)
    shutil.copytree(built_lake.copy, built_lake.folder)
    settings = CatalogSettings.default(str(built_lake.folder))
    session, source = _session(spark, settings), metadata_source(settings)
    with MetaStore.open(f"sqlite:///{built_lake.folder}/meta.db") as store:
        read_points = ReadPoints(store)
        with EmbeddedServer(read_points, source) as server:
            yield Lake(
                session, settings, store, built_lake.fence, source, read_points, server.uri,
                [*built_lake.numbers],
            )  # fmt: skip

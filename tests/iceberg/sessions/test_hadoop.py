"""The hadoop catalog on a local disk: the port's conformance suites, and two writers at once."""

from __future__ import annotations

import gzip
import json
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.support.lake_conformance import LakeBench, LakeConformance
from tests.support.maintenance_conformance import MaintenanceConformance

from tautochrone.errors import LakeError
from tautochrone.iceberg.commits.compare_and_set import commit_by_link
from tautochrone.iceberg.java.api import MetadataMovedError
from tautochrone.iceberg.sessions.catalog_settings import CatalogSettings
from tautochrone.iceberg.sessions.spark_sessions import lake_conf
from tautochrone.iceberg.tables.catalog import IcebergLake
from tautochrone.model.effects import Durability
from tautochrone.model.names import TableName
from tautochrone.rest_catalog.metadata import metadata_source
from tautochrone.runtime.job.effects import DirectEffects

TABLE = TableName("lake", ("db",), "t")


def hadoop_session(spark: SparkSession, folder: Path) -> SparkSession:
    session = spark.newSession()
    for key in [key for key in session.conf.getAll if key.startswith("spark.sql.catalog.lake")]:
        session.conf.unset(key)
    catalog = CatalogSettings("lake", {"type": "hadoop", "warehouse": str(folder / "ware house")})
    for key, value in lake_conf(catalog).items():
        session.conf.set(key, value)
    session.sql("CREATE NAMESPACE IF NOT EXISTS lake.conformance")
    return session


class Hadoop:
    """The lake of these tests."""

    @pytest.fixture
    def spark(self, spark: SparkSession, tmp_path: Path) -> SparkSession:
        return hadoop_session(spark, tmp_path)

    @pytest.fixture
    def lake(self, spark: SparkSession) -> IcebergLake:
        return IcebergLake(spark, "lake", DirectEffects())


@pytest.mark.spark
class TestHadoop(Hadoop, LakeBench):
    """Behaviours of the port for which its files have other names, and its commits are links."""

    is_there = staticmethod(MaintenanceConformance.is_there)
    test_tables_of_a_new_namespace_at_once = LakeConformance.test_tables_of_a_new_namespace_at_once
    test_prepare_then_commit = LakeConformance.test_prepare_then_commit
    test_main_moved_is_a_conflict = LakeConformance.test_main_moved_is_a_conflict
    test_redefining_keeps_older_versions = LakeConformance.test_redefining_keeps_older_versions
    test_orphans_and_nothing_else = MaintenanceConformance.test_orphans_and_nothing_else
    test_expired_versions_leave_no_orphans = MaintenanceConformance.test_expired_versions_leave_no_orphans


@pytest.mark.slow
@pytest.mark.spark
class TestAllOfHadoop(Hadoop, LakeConformance):
    """All behaviours of the port."""


@pytest.mark.slow
@pytest.mark.spark
class TestHadoopMaintenance(Hadoop, MaintenanceConformance):
    """Expiry, compaction and orphans."""


# -- without Spark --------------------------------------------------------------------------------


class Writer:
    """Stands for Iceberg's classes: a metadata file holds its writer's number."""

    def __init__(self, table_folder: Path, version: int, durability: Durability = Durability.PROCESS) -> None:
        self.removed = 0
        self.durability = durability
        self.api: Any = SimpleNamespace(
            TableMetadataParser=SimpleNamespace(write=lambda text, file: Path(file).write_text(text)),
            CatalogUtil=SimpleNamespace(deleteRemovedMetadataFiles=self._remove),
        )
        self.made_in = table_folder
        self._base = table_folder / f"metadata/v{version}.metadata.json"

    def _remove(self, *_arguments: Any) -> None:
        self.removed += 1

    def commit(self, text: str) -> None:
        io = SimpleNamespace(newOutputFile=str)
        operations = SimpleNamespace(io=lambda: io)
        base = SimpleNamespace(
            metadataFileLocation=lambda: f"file:{self._base}", location=lambda: f"file:{self.made_in}"
        )
        iceberg: Any = self
        commit_by_link(iceberg, TABLE, operations, base, text)


@pytest.fixture
def table_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "ware house" / "db" / "t"
    (folder / "metadata").mkdir(parents=True)
    (folder / "metadata/v7.metadata.json").write_text("{}")
    (folder / "metadata/.version-hint.text.crc").write_text("checksum of the text before")
    return folder


@pytest.mark.parametrize("durability", list(Durability))
def test_commit_makes_the_next_version(table_folder: Path, durability: Durability) -> None:
    writer = Writer(table_folder, 7, durability)
    writer.commit("{}")
    files = sorted(file.name for file in (table_folder / "metadata").iterdir())
    assert files == ["v7.metadata.json", "v8.metadata.json", "version-hint.text"]
    assert (table_folder / "metadata/version-hint.text").read_text() == "8"
    assert writer.removed == 1


def test_one_of_many_writers_wins(table_folder: Path) -> None:
    """Iceberg's own rename let the last writer overwrite the others."""
    barrier, won, refused = threading.Barrier(8), list[str](), list[str]()

    def commit(number: str) -> None:
        writer = Writer(table_folder, 7)
        barrier.wait()
        try:
            writer.commit(number)
        except MetadataMovedError:
            refused.append(number)
        else:
            won.append(number)

    threads = [threading.Thread(target=commit, args=(str(number),)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), len(refused)) == (1, 7)
    assert (table_folder / "metadata/v8.metadata.json").read_text() == won[0]
    assert not list((table_folder / "metadata").glob("*-*.metadata.json"))


@pytest.mark.parametrize("newer", ["v8.metadata.json", "v8.gz.metadata.json", "v109.metadata.json"])
def test_commit_on_an_old_version_is_refused(table_folder: Path, newer: str) -> None:
    """Also when the next version's file was already deleted, or is compressed."""
    (table_folder / "metadata" / newer).write_text("{}")
    with pytest.raises(MetadataMovedError):
        Writer(table_folder, 7).commit("{}")
    assert not (table_folder / "metadata/v8.metadata.json").exists() or newer == "v8.metadata.json"


def metadata(version: int, *earlier: int) -> str:
    log = [
        {"metadata-file": f"file:/t/metadata/v{n}.metadata.json", "timestamp-ms": n * 100} for n in earlier
    ]
    return json.dumps({"last-updated-ms": version * 100, "metadata-log": log})


def test_version_that_others_made_and_deleted_is_not_made_again(table_folder: Path) -> None:
    writer, folder = Writer(table_folder, 7), table_folder / "metadata"

    def write(text: str, file: str) -> None:
        Path(file).write_text(text)
        # The other writers' version 8 is deleted already.
        (folder / "v9.metadata.json").write_text(json.dumps({"metadata-log": []}))
        (folder / "v10.metadata.json").write_text(metadata(10, 9))

    writer.api.TableMetadataParser.write = write
    with pytest.raises(MetadataMovedError, match=r"v10\.metadata"):
        writer.commit(metadata(8, 7))
    assert not (table_folder / "metadata/v8.metadata.json").exists()


@pytest.mark.parametrize("is_compressed", [False, True])
def test_commit_stands_when_others_build_upon_it_at_once(
    table_folder: Path, monkeypatch: pytest.MonkeyPatch, is_compressed: bool
) -> None:
    link, content = os.link, metadata(9, 7, 8).encode()

    def link_then_others(draft: Path, file: Path) -> None:
        link(draft, file)
        name = "v9.gz.metadata.json" if is_compressed else "v9.metadata.json"
        (table_folder / "metadata" / name).write_bytes(gzip.compress(content) if is_compressed else content)

    monkeypatch.setattr(os, "link", link_then_others)
    Writer(table_folder, 7).commit(metadata(8, 7))
    assert (table_folder / "metadata/v8.metadata.json").exists()
    assert (table_folder / "metadata/version-hint.text").read_text() == "9"


def test_commit_to_a_copied_table_is_refused(table_folder: Path, tmp_path: Path) -> None:
    writer = Writer(table_folder, 7)
    writer.made_in = tmp_path / "original"
    with pytest.raises(LakeError, match="CATALOG_MOVED"):
        writer.commit("{}")


def test_readers_find_tables_by_folders(table_folder: Path) -> None:
    warehouse = table_folder.parents[1]
    (table_folder / "metadata/v10.metadata.json").write_text('{"format-version": 3}')
    nested = warehouse / "a/b/u/metadata"
    nested.mkdir(parents=True)
    (nested / "v1.metadata.json").write_text("{}")
    source = metadata_source(CatalogSettings("lake", {"type": "hadoop", "warehouse": str(warehouse)}))
    assert source.namespaces() == [("a",), ("a", "b"), ("db",)]
    assert source.tables() == [TableName("lake", ("a", "b"), "u"), TABLE]
    assert source.tables(("db",)) == [TABLE]
    location, content = source.load(TABLE)
    assert location.endswith("/db/t/metadata/v10.metadata.json")
    assert content == {"format-version": 3}
    assert source.view(TABLE) is None

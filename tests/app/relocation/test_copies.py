"""A project that is copied, moved or restored: no row is lost or doubled, and nothing is written into another
folder."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.harness import Pipeline

from tautochrone.app.connect import open_connection
from tautochrone.app.locate import Options
from tautochrone.app.stores import project_store
from tautochrone.errors import LakeError, MetaError, TautochroneError
from tautochrone.model.effects import Step
from tautochrone.runtime.job.effects import FAULT_VARIABLE

from .world import LONG_AGO_S, SPEC, Died, Dying, Shop, fingerprints, relocate

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Shop:
    """A project that ran twice; tests copy it and do not change it."""
    shop = Shop.new(tmp_path_factory.mktemp("original") / "shop", spark)
    shop.add(1, 2, 3, age_s=LONG_AGO_S)
    shop.run()
    # Of one kind: the row of the other one stays where it is, in the same file of `sales`.
    shop.add(4, 6)
    shop.run()
    shop.check()
    assert list((shop.storage / "warehouse").rglob("*.puffin")), "no row was ever taken out of a file"
    shop.pipeline.close()
    return shop


def refused(action: str, folder: Path, spark: SparkSession) -> str:
    def act() -> object:
        if action == "run":
            return Shop.at(folder, spark, []).run()
        return open_connection(Options(spec=str(folder / "spark-pipeline.yml")))

    with pytest.raises(TautochroneError) as raised:
        act()
    assert raised.value.hint
    return raised.value.error_class


def test_a_copy_writes_nothing_until_it_is_relocated(
    original: Shop, tmp_path: Path, spark: SparkSession
) -> None:
    copy = tmp_path / "copy"
    original.copy_to(copy)
    before, original_files = fingerprints(copy / "storage"), fingerprints(original.folder)
    assert refused("read", copy, spark) == "STORAGE_MOVED"
    assert fingerprints(copy / "storage") == before
    assert refused("run", copy, spark) == "STORAGE_MOVED"
    assert fingerprints(original.folder) == original_files


def test_relocated_copy_and_original_run_independently(
    original: Shop, tmp_path: Path, spark: SparkSession
) -> None:
    kept = tmp_path / "kept"
    shutil.copytree(original.folder, kept)  # no test may change the original
    original_files = fingerprints(original.folder)
    folder = tmp_path / "a copy"
    original.copy_to(folder)
    assert relocate(folder) is not None
    assert relocate(folder) is None
    assert fingerprints(original.folder) == original_files
    copy = Shop.at(folder, spark, original.ids)
    copy.add(7, 8)
    happened = copy.run()
    assert happened.mode("sales")[0] == "incremental"
    copy.check()
    assert fingerprints(original.folder) == original_files
    paths = copy.pipeline.session.sql("SELECT file_path FROM lake.default.sales.all_files").collect()
    assert paths
    assert all(row[0].startswith(str(folder)) for row in paths)
    named = subprocess.run(
        ["grep", "-rlF", f"{original.folder}/", str(folder / "storage")], capture_output=True
    )
    left = [Path(line.decode()).name for line in named.stdout.splitlines()]
    current = {Path(location).name for location in copy.pipeline.pointers().values()}
    assert not current & set(left)
    with sqlite3.connect(folder / "storage" / "meta.db") as store:
        assert not [line for line in store.iterdump() if f"{original.folder}/" in line]
    copy.pipeline.close()


def test_moved_project_continues_by_each_name_of_its_folder(
    original: Shop, tmp_path: Path, spark: SparkSession
) -> None:
    first, second, link = tmp_path / "first", tmp_path / "second", tmp_path / "link"
    original.copy_to(first)
    relocate(first)
    first.rename(second)
    assert refused("run", second, spark) == "STORAGE_MOVED"
    assert relocate(second, moved=True) is not None
    shop = Shop.at(second, spark, original.ids)
    shop.add(9)
    shop.run()
    shop.check()
    shop.pipeline.close()
    assert not first.exists()
    # The same folder by another name is not moved.
    link.symlink_to(second)
    linked = Shop.at(link, spark, shop.ids)
    linked.run()
    linked.check()
    linked.pipeline.close()
    spec = link / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("storage: storage", f"storage: file://{link}/storage/"))
    assert relocate(link) is None


STEPS = [
    (Step.LAKE_RELOCATE, 1),
    (Step.LAKE_RELOCATE, 3),
    (Step.INGEST_RELOCATE, 1),
    (Step.META_BELONG, 1),
    (Step.LAKE_RELOCATED, 1),
    (Step.STORAGE_IDENTIFY, 1),
]


def test_relocation_that_dies_at_any_step_is_completed_by_the_next(
    original: Shop, tmp_path: Path, spark: SparkSession
) -> None:
    folder = tmp_path / "copy"
    original.copy_to(folder)
    original_files = fingerprints(original.folder)
    for step, nth in STEPS:
        for before in (True, False):
            dying = Dying(step, before=before, nth=nth)
            if (step, before) == (Step.STORAGE_IDENTIFY, False):
                relocated = fingerprints(folder / "storage" / "warehouse")
            with pytest.raises(Died):
                relocate(folder, dying)
            complete = (step, before) == (Step.STORAGE_IDENTIFY, False)
            if not complete:
                assert refused("read", folder, spark) == "STORAGE_MOVED"
    assert relocate(folder) is None
    # Although the steps were repeated, each file exists once.
    assert fingerprints(folder / "storage" / "warehouse") == relocated
    shop = Shop.at(folder, spark, original.ids)
    shop.add(10)
    shop.run()
    shop.check()
    shop.pipeline.close()
    assert fingerprints(original.folder) == original_files


@pytest.mark.slow
def test_killed_relocation_is_completed_by_the_next(original: Shop, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    original.copy_to(folder)
    command = [sys.executable, "-m", "tautochrone.cli.main", "relocate", "--json"]
    environment = {**os.environ, FAULT_VARIABLE: "lake.relocated:after:kill"}
    killed = subprocess.run(command, cwd=folder, env=environment, capture_output=True)
    assert killed.returncode == -9, killed
    done = subprocess.run(command, cwd=folder, capture_output=True)
    assert done.returncode == 0, done
    assert b'"relocated"' in done.stdout
    assert relocate(folder) is None


@pytest.mark.slow
def test_a_storage_without_an_identity_is_recognised_by_its_catalog(
    original: Shop, tmp_path: Path, spark: SparkSession
) -> None:
    folder = tmp_path / "copy"
    original.copy_to(folder)
    (folder / "storage" / "storage.json").unlink()
    assert refused("read", folder, spark) == "STORAGE_MOVED"
    assert relocate(folder) is not None
    shop = Shop.at(folder, spark, original.ids)
    shop.run()
    shop.check()
    shop.pipeline.close()


def test_an_incomplete_copy_is_refused_as_a_whole(original: Shop, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    original.copy_to(folder)
    next((folder / "storage" / "warehouse" / "default" / "orders" / "data").rglob("*.parquet")).unlink()
    before = fingerprints(folder)
    with pytest.raises(LakeError) as raised:
        relocate(folder)
    assert raised.value.error_class == "RELOCATION_INCOMPLETE"
    assert fingerprints(folder) == before


def test_a_copy_whose_spec_names_the_original_storage_is_refused(
    original: Shop, tmp_path: Path, spark: SparkSession
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    original.copy_to(first)
    relocate(first)
    text = (first / "spark-pipeline.yml").read_text()
    (first / "spark-pipeline.yml").write_text(
        text.replace("storage: storage", f"storage: file://{first}/storage")
    )
    shutil.copytree(first, second)
    before = fingerprints(first)
    with pytest.raises(LakeError) as raised:
        open_connection(Options(spec=str(second / "spark-pipeline.yml")))
    assert raised.value.error_class == "STORAGE_OF_ANOTHER_PROJECT"
    assert fingerprints(first) == before


def test_a_copy_cannot_take_over_its_original_in_a_shared_store(tmp_path: Path, spark: SparkSession) -> None:
    settings = f'[meta]\nurl = "sqlite:///{tmp_path}/shared.db"\n'
    folder, copied = tmp_path / "original", tmp_path / "copy"
    original = Pipeline(folder, spark, spec=SPEC, settings=settings)
    original.write("definitions/one.sql", "CREATE MATERIALIZED VIEW one AS SELECT 1 AS n;")
    assert original.run().state == "COMPLETED"
    # A new project records its path.
    assert (folder / "storage" / "storage.json").exists()
    assert relocate(folder) is None
    shutil.copytree(folder, copied)
    relocate(copied)
    copy = Pipeline(copied, spark, spec=SPEC, settings=settings)
    with project_store(copy.settings) as store:
        fence = store.jobs.newest_fence("shop")
        with pytest.raises(MetaError) as raised:
            copy.run()
        assert raised.value.error_class == "JOB_OF_ANOTHER_LAKE"
        assert store.jobs.newest_fence("shop") == fence
    original.write("definitions/one.sql", "CREATE MATERIALIZED VIEW one AS SELECT 2 AS n;")
    assert original.run().state == "COMPLETED"
    assert original.query("SELECT n FROM one") == [(2,)]
    copy.close()
    original.close()


@pytest.mark.slow
def test_backup_of_the_whole_storage_continues(original: Shop, tmp_path: Path, spark: SparkSession) -> None:
    folder = tmp_path / "copy"
    original.copy_to(folder)
    relocate(folder)
    shop = Shop.at(folder, spark, original.ids)
    shop.run()
    shop.pipeline.close()
    shutil.copytree(folder / "storage", tmp_path / "backup")
    shop = Shop.at(folder, spark, original.ids)
    shop.add(11, 12)
    shop.run()
    shop.pipeline.close()
    for name in ("catalog.db", "meta.db"):
        for file in (folder / "storage").glob(f"{name}*"):
            file.unlink()
        for file in (tmp_path / "backup").glob(f"{name}*"):
            shutil.copy(file, folder / "storage")
    restored = Shop.at(folder, spark, shop.ids)
    restored.run()
    restored.check()
    restored.pipeline.close()


def test_a_catalog_that_was_restored_alone_is_refused(
    original: Shop, tmp_path: Path, spark: SparkSession
) -> None:
    folder = tmp_path / "copy"
    original.copy_to(folder)
    relocate(folder)
    shutil.copy(folder / "storage" / "catalog.db", tmp_path / "catalog.db")
    shop = Shop.at(folder, spark, original.ids)
    shop.add(13)
    shop.run()
    shop.pipeline.close()
    shutil.copy(tmp_path / "catalog.db", folder / "storage" / "catalog.db")
    restored = Shop.at(folder, spark, shop.ids)
    pointers = restored.pipeline.pointers()
    with pytest.raises(LakeError) as raised:
        restored.run()
    assert raised.value.error_class == "LAKE_BEHIND_STORE"
    assert restored.pipeline.pointers() == pointers
    restored.pipeline.close()
    # As the hint says.
    for file in (folder / "storage").glob("meta.db*"):
        file.unlink()
    again = Shop.at(folder, spark, shop.ids)
    again.run()
    again.check()
    again.pipeline.close()


def test_files_of_other_warehouses_are_reported_and_stay(
    original: Shop, tmp_path: Path, spark: SparkSession
) -> None:
    folder, elsewhere = tmp_path / "copy", tmp_path / "elsewhere"
    original.copy_to(folder)
    relocate(folder)
    session = Shop.at(folder, spark, []).pipeline.session
    session.sql(f"CREATE TABLE lake.default.theirs (id INT) USING iceberg LOCATION '{elsewhere}'")
    session.sql("INSERT INTO lake.default.theirs VALUES (1)")
    second = tmp_path / "second"
    shutil.copytree(folder, second)
    before = fingerprints(elsewhere)
    happened = relocate(second)
    assert happened is not None
    assert [fields["table"] for fields in happened.of("relocation_outside")] == ["lake.default.theirs"]
    assert fingerprints(elsewhere) == before
    with sqlite3.connect(second / "storage" / "catalog.db") as catalog:
        query = "SELECT metadata_location FROM iceberg_tables WHERE table_name = 'theirs'"
        assert catalog.execute(query).fetchone()[0].startswith(f"file:{elsewhere}/")


def test_two_pipelines_may_share_a_storage(tmp_path: Path, spark: SparkSession) -> None:
    shared = f"storage: {tmp_path}/shared"
    pipelines = []
    for name in ("first", "second"):
        folder = tmp_path / name
        text = SPEC.replace("name: shop", f"name: {name}").replace("storage: storage", shared)
        (folder / "rows").mkdir(parents=True)
        (folder / "rows" / "1.json").write_text('{"id": 1}')
        pipeline = Pipeline(folder, spark, spec=text + f"database: {name}\n")
        pipeline.write(
            "definitions/rows.py",
            f"""\
            from pyspark import pipelines as dp
            from pyspark.sql import SparkSession


            @dp.table
            def rows_{name}():
                return SparkSession.active().readStream.schema("id INT").json("{folder}/rows")
            """,
        )
        pipelines.append(pipeline)
    for pipeline in (*pipelines, pipelines[0]):
        assert pipeline.run().state == "COMPLETED"
        pipeline.close()

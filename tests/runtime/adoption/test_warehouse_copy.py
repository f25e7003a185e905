"""`taut adopt --from-warehouse`: tables of a hadoop catalog become tables of the project's own catalog."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from pyspark.sql import SparkSession
from tests.support.ended_runs import as_process, ended
from tests.support.harness import Happened, Pipeline

from tautochrone.app.locate import Options
from tautochrone.app.open import Project
from tautochrone.app.relocation import WarehouseCopy
from tautochrone.errors import LakeError, SettingsError
from tautochrone.model.effects import Step
from tautochrone.runtime.adoption.adopt import Adoption
from tautochrone.runtime.job.effects import CountingEffects

pytestmark = pytest.mark.spark

T = TypeVar("T")
VIEW = "SELECT kind, count(*) AS n, sum(price) AS price FROM src.items GROUP BY kind"


class _DiedError(Exception):
    """Stands for the end of the process."""


class _Dying(CountingEffects):
    """Ends the process before the n-th step of a kind."""

    def __init__(self, step: Step, number: int) -> None:
        super().__init__()
        self._step, self._left = step, number

    def perform(self, step: Step, subject: str, action: Callable[[], T]) -> T:
        if step is self._step:
            self._left -= 1
            if self._left == 0:
                raise _DiedError
        return super().perform(step, subject, action)


def hadoop_warehouse(spark: SparkSession, folder: Path) -> SparkSession:
    """Two tables as vanilla Spark writes them, with old snapshots, partitions and a changed schema."""
    session = spark.newSession()
    prefix = "spark.sql.catalog.h"
    session.conf.set(prefix, "org.apache.iceberg.spark.SparkCatalog")
    session.conf.set(f"{prefix}.type", "hadoop")
    session.conf.set(f"{prefix}.warehouse", str(folder))
    session.sql(
        "CREATE TABLE h.src.items (id BIGINT, kind STRING, price DECIMAL(10, 2)) USING iceberg "
        "PARTITIONED BY (kind) TBLPROPERTIES ('format-version' = '2')"
    )
    session.sql("INSERT INTO h.src.items SELECT id, CAST(id % 3 AS STRING), id FROM range(10)")
    session.sql("DELETE FROM h.src.items WHERE id = 7")
    session.sql("ALTER TABLE h.src.items ADD COLUMN note STRING")
    session.sql("INSERT INTO h.src.items VALUES (100, 'x y', 1.5, 'ü')")
    session.sql(f"CREATE TABLE h.default.totals USING iceberg AS {VIEW.replace('src', 'h.src')}")
    session.sql(f"INSERT OVERWRITE h.default.totals {VIEW.replace('src', 'h.src')}")
    return session


def content(folder: Path) -> dict[str, str]:
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def adopt(pipeline: Pipeline, warehouse: Path, effects: CountingEffects | None = None) -> Happened:
    happened = Happened()

    options = Options(spec=str(pipeline.folder / "spark-pipeline.yml"))
    with Project(options, happened.take, base=pipeline.session, effects=effects) as project:
        project.identify()
        copy = WarehouseCopy(warehouse, project.lake, project.settings, project.effects, happened.take)
        copy.copy_and_register(dry_run=False)
        job = project.job()
        as_process(job)
        try:
            adoption = Adoption(job)
            adoption.adopt_and_publish(adoption.survey())
        finally:
            ended(job)
    return happened


@pytest.mark.parametrize("moved", [pytest.param(False, marks=pytest.mark.slow), True])
def test_warehouse_is_copied_and_adopted(pipeline: Pipeline, spark: SparkSession, *, moved: bool) -> None:
    warehouse = pipeline.folder / "made in"
    source = hadoop_warehouse(spark, warehouse)
    items = sorted(map(tuple, source.sql("SELECT * FROM h.src.items").collect()))
    first = source.sql("SELECT snapshot_id FROM h.src.items.history ORDER BY made_current_at").first()
    assert first is not None
    if moved:
        warehouse = warehouse.rename(pipeline.folder / "elsewhere")
    before = content(warehouse)
    pipeline.write("definitions/v.sql", f"CREATE MATERIALIZED VIEW totals AS {VIEW}")
    for step, number in ((Step.LAKE_RELOCATE, 2), (Step.LAKE_CREATE, 1)):
        with pytest.raises(_DiedError):
            adopt(pipeline, warehouse, _Dying(step, number))
    happened = adopt(pipeline, warehouse)
    # The first table was registered before the process ended.
    assert [entry["dataset"] for entry in happened.of("table_copied")] == ["lake.src.items"]
    assert [entry["action"] for entry in happened.of("adopted")] == ["adopt"]
    assert content(warehouse) == before
    # Nothing of the copy is read from the source.
    warehouse.rename(pipeline.folder / "gone")
    assert pipeline.query("SELECT * FROM src.items") == items
    old = pipeline.session.sql(f"SELECT count(*) FROM lake.src.items VERSION AS OF {first[0]}").first()
    assert old is not None
    assert old[0] == 10
    pipeline.session.sql("INSERT INTO lake.src.items VALUES (101, 'x y', 2.5, NULL)")
    happened = pipeline.run()
    assert happened.refresh("totals")["reason_code"] not in ("FIRST_BUILD", "DEFINITION_CHANGED")
    assert pipeline.query("SELECT n, int(price) FROM totals WHERE kind = 'x y'") == [(2, 4)]
    pipeline.verify()


def test_warehouse_that_cannot_be_copied(pipeline: Pipeline, spark: SparkSession, tmp_path: Path) -> None:
    warehouse = tmp_path / "w"
    session = hadoop_warehouse(spark, warehouse)
    pipeline.write("definitions/v.sql", f"CREATE MATERIALIZED VIEW totals AS {VIEW}")
    with pytest.raises(LakeError) as error:
        adopt(pipeline, tmp_path / "definitions")
    assert error.value.error_class == "WAREHOUSE_NOT_FOUND"
    with pytest.raises(SettingsError) as own:
        adopt(pipeline, tmp_path / "storage/warehouse")
    assert own.value.error_class == "WAREHOUSE_NOT_COPIED"
    session.sql("ALTER TABLE h.src.items SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    session.sql("DELETE FROM h.src.items WHERE id = 4")
    with pytest.raises(LakeError) as error:
        adopt(pipeline, warehouse)
    assert error.value.error_class == "WAREHOUSE_DELETES"
    next(warehouse.rglob("*.parquet")).unlink()
    with pytest.raises(LakeError) as error:
        adopt(pipeline, warehouse)
    assert error.value.error_class == "WAREHOUSE_INCOMPLETE"
    assert not list((tmp_path / "storage/warehouse").rglob("*.parquet"))

"""A table that got no rows for long goes back to what it was made from, or is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tautochrone.errors import MetaError

from .world import SETTINGS, World

pytestmark = pytest.mark.spark

SHORT = """
[maintenance]
keep = "0s"
keep_last = 2
history = "HISTORY"
every = "0s"
min_versions = 1
min_files = 0
"""
PROJECT = """
    from pyspark import pipelines as dp

    @dp.table
    def events():
        return spark.readStream.schema("id long, kind int").json({folder!r})

    @dp.table
    def clean():
        return spark.readStream.table("events").where("id < 100")

    @dp.table(table_properties={{"tautochrone.apply.keys": "id", "tautochrone.apply.sequence": "kind"}})
    def latest():
        return spark.readStream.table("events").where("id < 100")
"""


class Quiet(World):
    def __init__(self, folder: Path, spark: SparkSession) -> None:
        super().__init__(folder, spark, settings=SETTINGS + SHORT.replace("HISTORY", "0s"))
        for definition in (folder / "definitions").glob("*.sql"):
            definition.unlink()
        self.pipeline.write("definitions/p.py", PROJECT.format(folder=str(folder / "in")))

    def keep_history(self) -> None:
        self.pipeline.write("tautochrone.toml", SETTINGS + SHORT.replace("HISTORY", "1h"))
        self.pipeline.reload()


@pytest.mark.parametrize("is_store_lost", [False, True])
def test_a_table_with_expired_inputs_goes_back(
    tmp_path: Path, spark: SparkSession, is_store_lost: bool
) -> None:
    world = Quiet(tmp_path / "project", spark)
    world.put("a", (1, 0), (2, 0))
    world.run()
    for number in range(100, 104):
        world.put(f"b{number}", (number, 1))
        world.run()
    if is_store_lost:
        world.close()
        store = world.folder / "storage" / "meta.db"
        store.rename(store.with_name("lost.db"))
        world = Quiet(tmp_path / "project", spark)
        for number in range(104, 107):
            world.put(f"b{number}", (number, 1))
            world.run()
    world.keep_history()
    world.put("q", (500, 1))
    to = world.run().checkpoints[-1]
    world.put("w", (1, 9))
    world.run()

    # Offsets of a stream name versions of its input that are gone.
    with pytest.raises(MetaError, match="clean cannot be reverted") as refused:
        world.plan("events", to=to, again=True)
    assert refused.value.error_class == "REVISION_NOT_REPLAYABLE"
    # What a table has merged by key at a checkpoint is known without them.
    world.revise("latest", to=to)
    assert world.rows("latest") == [(1, 0), (2, 0)]
    world.run()
    assert world.rows("latest") == [(1, 9), (2, 0)]
    world.close()

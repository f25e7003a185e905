"""Whoever writes and reads with a token finds the write, in a continuous run and after one that ended."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from tautochrone.errors import CheckpointUnavailableError
from tautochrone.testing.harness import Pipeline

pytestmark = pytest.mark.spark

DEFINITIONS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession, functions as sf

spark = SparkSession.active()

@dp.table
def events():
    return spark.readStream.schema("id BIGINT").json("{input}/events")

@dp.table
def slow():
    return spark.readStream.schema("id BIGINT").option("maxFilesPerTrigger", "1").json("{input}/slow")

@dp.materialized_view
def together():
    return (
        spark.table("events").withColumn("place", sf.lit("events"))
        .unionByName(spark.table("slow").withColumn("place", sf.lit("slow")))
        .unionByName(spark.table("outside").withColumn("place", sf.lit("outside")))
    )
"""
TRIES, WAIT_MS = 2, 120_000


class World:
    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.input = folder / "input"
        self.pipeline = Pipeline(folder, spark, may_fall_back=True)
        self.pipeline.write("definitions/all.py", DEFINITIONS.format(input=self.input))
        for place in ("events", "slow"):
            (self.input / place).mkdir(parents=True)
        storage = Path(self.pipeline.settings.storage.removeprefix("file:"))
        catalog = SqlCatalog("lake", uri=f"sqlite:///{storage}/catalog.db", warehouse=f"{storage}/warehouse")
        self.outside = catalog.create_table("default.outside", pa.schema([("id", pa.int64())]))

    def write(self, place: str, number: int) -> None:
        if place == "outside":
            self.outside.append(pa.table({"id": [number]}))
            return
        hidden = self.input / f"{place}-{number}"
        hidden.write_text(f'{{"id": {number}}}\n')
        hidden.rename(self.input / place / f"{number}.json")

    def found(self, place: str, number: int, wait_ms: int = WAIT_MS) -> bool:
        query = f"SELECT 1 FROM together WHERE place = '{place}' AND id = {number}"
        token = self.pipeline.reader.token()
        return bool(self.pipeline.query(query, after=token, wait_ms=wait_ms))


@pytest.fixture
def world(tmp_path: Path, spark: SparkSession) -> Iterator[World]:
    made = World(tmp_path, spark)
    yield made
    made.pipeline.close()


def test_a_writer_finds_its_write(world: World) -> None:
    world.write("slow", -1)
    world.pipeline.run()
    token = world.pipeline.reader.token()
    with pytest.raises(CheckpointUnavailableError, match="isn't running") as late:
        world.pipeline.query("SELECT 1 FROM together", after=token, wait_ms=300)
    assert (late.value.error_class, late.value.retryable) == ("READ_NOT_YET", True)

    # Behind a backlog, too: it takes one file at a time.
    for number in range(100, 104):
        world.write("slow", number)
    missed: list[tuple[str, int]] = []
    found: list[tuple[str, int]] = []

    def writer(place: str) -> None:
        for number in range(1, TRIES + 1):
            world.write(place, number)
            (found if world.found(place, number) else missed).append((place, number))

    with world.pipeline.running():
        writers = [threading.Thread(target=writer, args=(place,)) for place in ("events", "slow", "outside")]
        for thread in writers:
            thread.start()
        for thread in writers:
            thread.join()
    assert not missed
    assert len(found) == 3 * TRIES, "a read failed"
    assert world.pipeline.query("SELECT count(*) FROM together") == [(1 + 4 + 3 * TRIES,)]

    # A run that ended has looked at its sources when it began.
    world.write("events", 1000)
    token = world.pipeline.reader.token()
    world.pipeline.run()
    assert world.pipeline.query("SELECT 1 FROM events WHERE id = 1000", after=token) == [(1,)]

"""A read with a write token shows the write, in a continuous run and after a run that ended."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession
from tests.support.harness import Pipeline

from tautochrone.errors import CheckpointUnavailableError
from tautochrone.runtime.loop.takeover import take_over

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
        spark.table("events").withColumn("source", sf.lit("events"))
        .unionByName(spark.table("slow").withColumn("source", sf.lit("slow")))
        .unionByName(spark.table("outside").withColumn("source", sf.lit("outside")))
    )
"""
TRIES, WAIT_MS = 1, 120_000


class World:
    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.input = folder / "input"
        self.pipeline = Pipeline(folder, spark, may_fall_back=True)
        self.pipeline.write("definitions/all.py", DEFINITIONS.format(input=self.input))
        for source in ("events", "slow"):
            (self.input / source).mkdir(parents=True)
        storage = Path(self.pipeline.settings.storage.removeprefix("file:"))
        catalog = SqlCatalog("lake", uri=f"sqlite:///{storage}/catalog.db", warehouse=f"{storage}/warehouse")
        self.outside = catalog.create_table("default.outside", pa.schema([("id", pa.int64())]))

    def write(self, source: str, number: int) -> None:
        if source == "outside":
            self.outside.append(pa.table({"id": [number]}))
            return
        scratch = self.input / f"{source}-{number}"
        scratch.write_text(f'{{"id": {number}}}\n')
        scratch.rename(self.input / source / f"{number}.json")

    def shows(self, source: str, number: int, wait_ms: int = WAIT_MS) -> bool:
        query = f"SELECT 1 FROM together WHERE source = '{source}' AND id = {number}"
        token = self.pipeline.reader.write_token()
        return bool(self.pipeline.query(query, after=token, wait_ms=wait_ms))


@pytest.fixture
def world(tmp_path: Path, spark: SparkSession) -> Iterator[World]:
    world = World(tmp_path, spark)
    yield world
    world.pipeline.close()


def test_read_with_a_token_shows_the_write(world: World) -> None:
    world.write("slow", -1)
    world.pipeline.run()
    token = world.pipeline.reader.write_token()
    with pytest.raises(CheckpointUnavailableError, match="isn't running") as caught:
        world.pipeline.query("SELECT 1 FROM together", after=token, wait_ms=300)
    assert (caught.value.error_class, caught.value.retryable) == ("READ_NOT_YET", True)

    # Also behind a backlog, which is read one file at a time.
    for number in range(100, 104):
        world.write("slow", number)
    missed: list[tuple[str, int]] = []
    visible: list[tuple[str, int]] = []

    def writer(source: str) -> None:
        for number in range(1, TRIES + 1):
            world.write(source, number)
            (visible if world.shows(source, number) else missed).append((source, number))

    with world.pipeline.running():
        writers = [
            threading.Thread(target=writer, args=(source,)) for source in ("events", "slow", "outside")
        ]
        for thread in writers:
            thread.start()
        for thread in writers:
            thread.join()
    assert not missed
    assert len(visible) == 3 * TRIES, "a read failed"
    assert world.pipeline.query("SELECT count(*) FROM together") == [(1 + 4 + 3 * TRIES,)]

    # A run that ended has read its sources when it started.
    world.write("events", 1000)
    token = world.pipeline.reader.write_token()
    world.pipeline.run()
    assert world.pipeline.query("SELECT 1 FROM events WHERE id = 1000", after=token) == [(1,)]


def test_table_created_while_a_query_is_planned(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first run creates the tables between the look into the store and the planning of the query."""
    reader = world.pipeline.reader
    session_at = reader._session
    with world.pipeline.opened() as (job, _):

        def session_after_takeover(read_point: str, pin: str | None, **options: bool) -> SparkSession:
            take_over(job)
            return session_at(read_point, pin, **options)

        monkeypatch.setattr(reader, "_session", session_after_takeover)
        with pytest.raises(CheckpointUnavailableError) as caught:
            reader.sql("SELECT count(*) FROM events")
    assert caught.value.error_class == "CHECKPOINT_NOT_FOUND"

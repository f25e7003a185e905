"""Readers at full speed while a continuous run ingests; in the long form it is a process that is killed and
comes back.

The invariant: in every strong read `totals` is the aggregate of `events`.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.compute as pc
import pytest
from pyiceberg.catalog import load_catalog
from tests.support.harness import Pipeline
from tests.support.process import TautProcess

pytestmark = [pytest.mark.spark, pytest.mark.crash]

DEFINITIONS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession, functions as sf

spark = SparkSession.active()

@dp.table
def events():
    return spark.readStream.schema("id BIGINT, kind STRING, amount BIGINT").json("{input}")

@dp.materialized_view
def totals():
    return spark.table("events").groupBy("kind").agg(
        sf.count("*").alias("n"), sf.sum("amount").alias("amount")
    )

@dp.materialized_view
def big():
    return spark.table("events").where("amount >= 50").select("id")
"""

QUERY = """
SELECT (SELECT count(*) FROM events), (SELECT sum(n) FROM totals),
       (SELECT sum(amount) FROM events), (SELECT sum(amount) FROM totals),
       (SELECT count(*) FROM events WHERE amount >= 50), (SELECT count(*) FROM big)
"""


@pytest.fixture
def pipeline(pipeline: Pipeline, tmp_path: Path) -> Pipeline:
    (tmp_path / "input").mkdir()
    pipeline.write("definitions/events.py", DEFINITIONS.format(input=tmp_path / "input"))
    return pipeline


@contextmanager
def working(*jobs: Callable[[], None], pause_s: float = 0.0) -> Iterator[list[BaseException]]:
    """Repeat each job in a thread of its own until the block ends or the job fails."""
    ended = threading.Event()
    failures: list[BaseException] = []

    def loop(job: Callable[[], None]) -> None:
        try:
            while not ended.wait(pause_s):
                job()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=loop, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    try:
        yield failures
    finally:
        ended.set()
        for thread in threads:
            thread.join()


class FileWriter:
    """Writes files of ten rows. A file appears complete, by a rename."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count()
        self.rows = 0

    def __call__(self) -> None:
        number = next(self._numbers)
        rows = [
            {"id": self.rows + index, "kind": f"k{index % 3}", "amount": (number + index * 13) % 100}
            for index in range(10)
        ]
        scratch = self._folder.parent / f"{number}.new"
        scratch.write_text("".join(json.dumps(row) + "\n" for row in rows))
        scratch.rename(self._folder / f"{number:06d}.json")
        self.rows += 10


class SparkReads:
    """`Reader.sql` over three tables in one query."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self.counts: list[int] = []

    def __call__(self) -> None:
        ((events, in_totals, amount, amount_in_totals, big, in_big),) = self._pipeline.query(QUERY)
        assert (events, amount, big) == (in_totals, amount_in_totals, in_big)
        assert events >= (self.counts or [0])[-1], "went backwards"
        self.counts.append(events)


class PyIcebergReads:
    """A new PyIceberg catalog at `strong` each time, and each table read on its own."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._uri = pipeline.reader.uri
        self.counts: list[int] = []

    def __call__(self) -> None:
        catalog = load_catalog("at", type="rest", uri=self._uri, warehouse="strong")
        totals = catalog.load_table("default.totals").scan().to_arrow()
        big = catalog.load_table("default.big").scan().to_arrow()
        events = catalog.load_table("default.events").scan().to_arrow()
        assert pc.sum(totals["n"]).as_py() == events.num_rows
        assert pc.sum(totals["amount"]).as_py() == pc.sum(events["amount"]).as_py()
        assert big.num_rows == sum(amount >= 50 for amount in events["amount"].to_pylist())
        assert len(set(events["id"].to_pylist())) == events.num_rows
        assert events.num_rows >= (self.counts or [0])[-1], "went backwards"
        self.counts.append(events.num_rows)


class Reads:
    """Both kinds of readers, and what they have seen."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._kinds = (SparkReads(pipeline), PyIcebergReads(pipeline))

    @contextmanager
    def beside(self, writer: FileWriter) -> Iterator[list[BaseException]]:
        """They and the writer work until the block ends."""
        # The pauses leave processor time for the run.
        with working(*self._kinds, pause_s=0.3) as failures, working(writer, pause_s=0.3):
            yield failures
        assert not failures, failures

    @property
    def states(self) -> int:
        """How many states of the tables each kind has seen at least."""
        return min(len(set(reads.counts)) for reads in self._kinds)


def check(pipeline: Pipeline, writer: FileWriter) -> None:
    outcome = pipeline.run()
    assert outcome.state == "COMPLETED"
    assert pipeline.query("SELECT count(*), count(DISTINCT id) FROM events") == [(writer.rows, writer.rows)]
    pipeline.verify()


def test_no_read_mixes_checkpoints(pipeline: Pipeline) -> None:
    writer = FileWriter(pipeline.folder / "input")
    writer()
    pipeline.run()
    reads = Reads(pipeline)
    with reads.beside(writer) as failures, pipeline.running(interval_ms=500) as happened:
        deadline = time.monotonic() + 240
        while not failures and (len(happened.checkpoints) < 3 or reads.states < 3):
            assert time.monotonic() < deadline, (happened.checkpoints, reads.states)
            time.sleep(0.05)
    check(pipeline, writer)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_no_read_mixes_checkpoints_of_a_process_that_is_killed(pipeline: Pipeline) -> None:
    kills, seconds = 8, 240
    spec = pipeline.folder / "spark-pipeline.yml"
    arguments = ("--continuous", "--interval", "1s", "--master", "local[2]")
    writer = FileWriter(pipeline.folder / "input")
    writer()
    pipeline.run()
    reads = Reads(pipeline)
    with reads.beside(writer) as failures:
        for kill in range(kills):
            with TautProcess(spec, *arguments) as taut:
                taut.wait_for(
                    lambda _events, taut=taut, kill=kill: (
                        failures or (taut.count("checkpoint") >= 2 and reads.states >= kill + 2)
                    )
                )
                time.sleep(seconds / kills)
                taut.kill()
    assert reads.states > kills
    check(pipeline, writer)

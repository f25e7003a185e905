"""Sinks of `create_sink` that Spark writes: end to end, with files and a Python data source."""

from __future__ import annotations

import contextlib
import json
import os
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.crash.faults import Crash, Strike, StrikingEffects
from tests.support.harness import Pipeline

from tautochrone.model.effects import Step
from tautochrone.runtime.job.topology import select
from tautochrone.runtime.loop.run import Run

DEFINITIONS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql.functions import col

spark = SparkSession.active()

@dp.table
def orders():
    return spark.readStream.schema("id INT, amount INT").json("@IN@/orders")

dp.create_sink("big", "json", {"path": "@OUT@/big"})

@dp.append_flow(target="big")
def big_orders():
    return spark.readStream.table("orders").where("amount > 10").select((col("id") * 10).alias("ten"))

dp.create_sink("copy", "parquet", {"path": "@OUT@/copy"})

@dp.append_flow(target="copy")
def raw_orders():
    return spark.readStream.schema("id INT, amount INT").json("@IN@/orders")
"""


class Project:
    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.spark = spark
        self.folder = folder
        self.pipeline = Pipeline(folder / "project", spark)
        (folder / "in/orders").mkdir(parents=True)

    def define(self, text: str, file: str = "pipeline.py") -> None:
        text = text.replace("@IN@", f"{self.folder}/in").replace("@OUT@", f"{self.folder}/out")
        self.pipeline.write(f"definitions/{file}", textwrap.dedent(text))

    def orders(self, file: str, *rows: tuple[int, int]) -> None:
        lines = [json.dumps({"id": number, "amount": amount}) for number, amount in rows]
        (self.folder / f"in/orders/{file}.json").write_text("\n".join(lines))

    def written(self, format_name: str, path: str) -> list[tuple[Any, ...]]:
        rows = self.spark.read.format(format_name).load(f"{self.folder}/out/{path}")
        return sorted(tuple(row) for row in rows.collect())

    def sink(self, name: str) -> Any:
        sinks = {sink.name: sink for sink in self.pipeline.job.store.deliveries.sinks()}
        return sinks[name]


@pytest.fixture
def project(tmp_path: Path, spark: SparkSession) -> Iterator[Project]:
    sinks_project = Project(tmp_path, spark)
    yield sinks_project
    sinks_project.pipeline.close()


def test_flows_into_file_sinks_go_on_where_they_were(project: Project) -> None:
    project.define(DEFINITIONS)
    project.orders("1", (1, 5), (2, 20))
    first = project.pipeline.run()
    assert first.state == "COMPLETED", first.of("sink_failed")
    assert project.written("json", "big") == [(20,)]
    assert project.written("parquet", "copy") == [(1, 5), (2, 20)]
    project.orders("2", (3, 30))
    # Spark alone leaves out files that are older than others by a week.
    os.utime(project.folder / "in/orders/2.json", (0, time.time() - 30 * 86_400))
    second = project.pipeline.run()
    assert second.state == "COMPLETED", second.of("sink_failed")
    assert project.written("json", "big") == [(20,), (30,)]
    assert project.written("parquet", "copy") == [(1, 5), (2, 20), (3, 30)]
    batches = {(b["sink"], b["batch"], b["rows"]) for b in second.of("sink_batch")}
    assert batches == {("big", 1, 1), ("copy", 1, 1)}
    big = project.sink("big")
    assert (big.flows["big_orders"].batch, big.flows["big_orders"].rows) == (1, 2)
    assert big.delivered.checkpoint == second.checkpoints[-1]
    assert project.sink("copy").tables == ()
    # Nothing new: nothing is sent.
    third = project.pipeline.run()
    assert (third.state, third.of("sink_batch")) == ("COMPLETED", [])


SINKS_ALONE = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter

spark = SparkSession.active()

class Lines(DataSource):
    @classmethod
    def name(cls):
        return "line_files"

    def streamWriter(self, schema, overwrite):
        return Writer(self.options["folder"])

class Writer(DataSourceStreamWriter):
    def __init__(self, folder):
        self.folder = folder

    def write(self, iterator):
        import os, uuid
        from pyspark.sql.datasource import WriterCommitMessage
        os.makedirs(self.folder, exist_ok=True)
        with open(f"{self.folder}/{uuid.uuid4()}", "w") as file:
            file.writelines(f"{row.id}\\n" for row in iterator)
        return WriterCommitMessage()

    def commit(self, messages, batchId):
        pass

    def abort(self, messages, batchId):
        pass

spark.dataSource.register(Lines)
dp.create_sink("lines", "line_files", {"folder": "@OUT@/lines"})
dp.create_sink("screen", "console")
dp.create_sink("unused", "console")

@dp.temporary_view
def incoming():
    return spark.readStream.schema("id INT, amount INT").json("@IN@/orders")

@dp.append_flow(target="lines")
def all_lines():
    return spark.readStream.table("incoming")
"""

SCREEN_SQL = """
CREATE FLOW shown AS INSERT INTO screen BY NAME
SELECT id FROM STREAM(incoming);
"""


def test_a_pipeline_of_sinks_alone_runs(project: Project) -> None:
    project.define(SINKS_ALONE)
    project.define(SCREEN_SQL, "screen.sql")
    project.orders("1", (1, 5), (2, 20))
    happened = project.pipeline.run()
    assert happened.state == "COMPLETED", happened.of("sink_failed")
    lines = sorted("".join(f.read_text() for f in (project.folder / "out/lines").iterdir()).split())
    assert lines == ["1", "2"]
    assert [event["sink"] for event in happened.of("sink_not_served")] == ["unused"]
    rows = {event["sink"]: event["rows"] for event in happened.of("sink_batch")}
    assert rows == {"lines": 2, "screen": 2}


def test_a_failing_sink_fails_the_run_until_it_is_sent_again(project: Project) -> None:
    project.define(DEFINITIONS)
    project.orders("1", (1, 50))
    out = project.folder / "out"
    out.mkdir()
    (out / "big").write_text("a file where the folder should be")
    happened = project.pipeline.run()
    assert happened.state == "FAILED"
    assert [event["sink"] for event in happened.of("sink_failed")] == ["big"] * len(
        happened.of("sink_failed")
    )
    assert project.written("parquet", "copy") == [(1, 50)]
    assert project.sink("big").state == "failing"
    (out / "big").unlink()
    assert project.pipeline.run().state == "COMPLETED"
    assert project.written("json", "big") == [(10,)]
    # A rebuilt input is refused until all rows are sent again, to a folder without older batches.
    rebuilt = project.pipeline.run(full=["orders"])
    assert rebuilt.state == "FAILED"
    assert "STREAM_INPUT_CHANGED" in rebuilt.of("sink_failed")[0]["error"]
    # The next process, whose first checkpoint is the rebuilt one, refuses it too.
    refused = project.pipeline.run()
    assert refused.state == "FAILED"
    assert "STREAM_INPUT_CHANGED" in refused.of("sink_failed")[0]["error"]
    again = project.pipeline.run(full=["big"])
    assert again.state == "FAILED"
    assert "SINK_FOLDER_HAS_BATCHES" in again.of("sink_failed")[0]["error"]
    (out / "big").rename(out / "older")
    with project.pipeline.opened() as (job, sent_again):
        run = Run(job, select(job.topology, (), ["orders", "big"], everything=False))
        assert {name.table for name in run.full_refreshes_left} == {"orders", "big"}
        run.once()
        assert run.full_refreshes_left == frozenset()
    assert sent_again.state == "COMPLETED", sent_again.of("sink_failed")
    assert project.written("json", "big") == [(10,)]


def test_an_unknown_format_is_refused_with_its_class(project: Project) -> None:
    project.define(SINKS_ALONE.replace('"lines", "line_files"', '"lines", "no_such_format"'))
    project.orders("1", (1, 5))
    happened = project.pipeline.run()
    assert happened.state == "FAILED"
    errors = {event["error"] for event in happened.of("sink_failed")}
    assert [error.split("]")[0] for error in errors] == ["[DATA_SOURCE_NOT_FOUND"], errors
    assert "no_such_format" in errors.pop()
    assert "spark.jars.packages" in happened.of("sink_failed")[0]["hint"]


def test_a_continuous_run_sends_each_checkpoint(project: Project) -> None:
    project.define(DEFINITIONS)
    project.orders("1", (1, 50))
    with project.pipeline.running() as happened:
        wait_until(lambda: {event["sink"] for event in happened.of("sink_batch")} == {"big", "copy"})
        project.orders("2", (2, 60))
        wait_until(lambda: sum(event["rows"] for event in happened.of("sink_batch")) == 4)
    assert project.written("json", "big") == [(10,), (20,)]
    assert project.written("parquet", "copy") == [(1, 50), (2, 60)]


class SinkStrikes(StrikingEffects):
    """A strike at a sink, whose name has no database before it."""

    def perform(self, step: Step, subject: str, action: Callable[[], Any]) -> Any:
        return super().perform(step, f".{subject}", action)


def test_file_sinks_show_each_row_once_after_crashes(project: Project) -> None:
    project.define(DEFINITIONS)
    # The first report of a sink comes before there is a checkpoint.
    strikes = [
        (Step.META_DELIVERY_CLAIM, "after", 1),
        (Step.META_DELIVERY_DONE, "before", 2),
        (Step.INGEST_FOLDER, "after", 1),
        (Step.INGEST_FOLDER, "before", 1),
    ]
    for number, (step, when, nth) in enumerate(strikes, 1):
        project.orders(str(number), (number, 50))
        effects = SinkStrikes(Strike(step, when, "crash", nth, on="big"))
        with project.pipeline.opened(effects) as (job, _), contextlib.suppress(Crash):
            project.pipeline.execute(job)
        assert effects.struck, step
    assert project.pipeline.run().state == "COMPLETED"
    assert project.written("json", "big") == [(10 * number,) for number in range(1, 5)]
    assert project.written("parquet", "copy") == [(number, 50) for number in range(1, 5)]


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)

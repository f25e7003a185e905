"""What a run leaves in memory: nothing, however many runs a process makes."""

from __future__ import annotations

import gc
import json

import pytest
from tests.support.harness import Pipeline

from tautochrone.runtime.job.job import Job

DEFINITIONS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()

@dp.table
def orders():
    return spark.readStream.schema("id BIGINT").json({folder!r})

@dp.materialized_view
def total():
    return spark.sql("SELECT count(*) AS n FROM orders")
"""


@pytest.mark.spark
def test_an_ended_run_is_freed(pipeline: Pipeline) -> None:
    """Java and Python keep each other's objects, and no garbage collector sees a circle through both."""
    folder = pipeline.folder / "in"
    folder.mkdir()
    pipeline.write("definitions/p.py", DEFINITIONS.format(folder=str(folder)))
    for number in range(2):
        (folder / f"{number}.json").write_text(json.dumps({"id": number}))
        pipeline.run()
    gc.collect()
    alive = [thing for thing in gc.get_objects() if isinstance(thing, Job)]
    jobs = [job for job in alive if job.spec.root == pipeline.folder]
    assert len(jobs) == 1

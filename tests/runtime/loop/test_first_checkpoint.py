"""The first checkpoint of a continuous run: it waits for rows, but not for a flow that fails."""

from __future__ import annotations

import time

import pytest
from tests.support.harness import Happened, Pipeline

from tautochrone.model.reason import ReasonCode

DEFINITIONS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import LongType

spark = SparkSession.active()
slow = sf.udf(lambda number: (__import__("time").sleep(2), number)[1], LongType())

@dp.table
def orders():
    return spark.readStream.schema("id BIGINT").json({folder!r}).select(slow("id").alias("id"))

@dp.table
def broken():
    return spark.readStream.schema("id BIGINT").json({folder!r}).selectExpr("raise_error('broken') AS id")

@dp.materialized_view
def total():
    return spark.sql("SELECT count(*) AS n FROM orders")
"""


def first_checkpoint(happened: Happened) -> None:
    deadline = time.monotonic() + 60
    while not happened.of("checkpoint"):
        assert time.monotonic() < deadline, happened.events
        time.sleep(0.05)


@pytest.mark.spark
def test_it_has_the_first_rows(pipeline: Pipeline) -> None:
    folder = pipeline.folder / "in"
    folder.mkdir()
    (folder / "1.json").write_text('{"id": 1}\n')
    pipeline.write("definitions/p.py", DEFINITIONS.format(folder=str(folder)))
    with pytest.raises(AssertionError, match="broken"), pipeline.running() as happened:
        first_checkpoint(happened)
    (held_back,) = happened.of("held_back")
    assert held_back["reason_code"] == ReasonCode.FIRST_BATCHES
    (built,) = [event for event in happened.of("refresh") if event["checkpoint"] == 1]
    assert (built["mode"], built["rows_inserted"]) == ("full", 1)
    assert happened.of("batch")[0]["rows"] == 1
    assert pipeline.reader.sql("SELECT n FROM total", checkpoint=1).collect()[0].n == 1

"""A temporary view shows the same rows to every dataset that reads it at a checkpoint."""

from __future__ import annotations

import pytest
from tests.support.harness import Pipeline

pytestmark = pytest.mark.spark

DEFINITIONS = """
    import datetime
    from pathlib import Path
    from pyspark import pipelines as dp
    from pyspark.sql import SparkSession, functions as F

    spark = SparkSession.active()

    @dp.table
    def numbers():
        lines = spark.readStream.schema("value STRING").text("FOLDER/in")
        return lines.selectExpr("CAST(value AS BIGINT) id")

    # Defined before the view that it reads.
    @dp.temporary_view
    def doubled():
        return spark.table("stamped").withColumn("twice", F.col("id") * 2)

    @dp.temporary_view
    def stamped():
        with Path("calls").open("a") as calls:
            calls.write("x")
        return (
            spark.table("numbers")
            .withColumn("python_time", F.lit(str(datetime.datetime.now())))
            .withColumn("name", F.expr("uuid()"))
            .withColumn("chance", F.rand())
            .withColumn("time", F.current_timestamp())
        )

    @dp.temporary_view
    def timed():
        return spark.table("numbers").withColumn("python_time", F.lit(str(datetime.datetime.now())))

    @dp.temporary_view
    def some():
        return spark.table("numbers").repartition(7).limit(2)

    for number in range(3):
        @dp.materialized_view(name=f"reader_{number}")
        def reader():
            return spark.table("doubled" if number == 2 else "stamped").drop("twice")

    for number in range(2):
        @dp.materialized_view(name=f"timed_{number}")
        def timed_reader():
            return spark.table("timed")

        @dp.materialized_view(name=f"some_{number}")
        def some_reader():
            return spark.table("some")
"""


@pytest.fixture
def pipeline(pipeline: Pipeline) -> Pipeline:
    pipeline.write("definitions/views.py", DEFINITIONS.replace("FOLDER", str(pipeline.folder)))
    return pipeline


def _contents(pipeline: Pipeline, prefix: str, readers: int) -> list[list[object]]:
    return [sorted(map(tuple, pipeline.query(f"SELECT * FROM {prefix}_{n}"))) for n in range(readers)]


def test_readers_of_a_temporary_view_see_the_same_rows(pipeline: Pipeline) -> None:
    calls = pipeline.folder / "calls"
    times = set()
    for number in range(2):
        pipeline.write(f"in/{number}.txt", "1\n2\n3\n")
        happened = pipeline.run()
        assert happened.state == "COMPLETED", happened
        first, second, third = _contents(pipeline, "reader", 3)
        assert first == second == third
        assert len(first) == 3 * (number + 1)
        times |= {row[1] for row in first}  # type: ignore[index]
        first, second = _contents(pipeline, "some", 2)
        assert first == second
        assert len(first) == 2
        first, second = _contents(pipeline, "timed", 2)
        assert first == second
        # A row that was there before has the time of this run too.
        assert len({time for _, time in first}) == 1
    assert all(verdict.equal is None for verdict in pipeline.verify() if "timed" in verdict.dataset.table)
    # In each run twice for the analysis, once for the checkpoint, and before each of its three readers is
    # refreshed, to see whether it is still the same query.
    assert calls.read_text() == 2 * 6 * "x"
    assert len(times) == 2

"""`--full-refresh`: rebuilt from the source, readers see old rows until the new ones are published."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.harness import Pipeline

pytestmark = pytest.mark.spark

PROJECT = """
    import os
    from pyspark import pipelines as dp

    @dp.table
    def events():
        return spark.readStream.schema("id long").json({folder!r})

    @dp.table
    def clean():
        return spark.readStream.table("events").where("id % 2 = 0")

    @dp.materialized_view
    def total():
        return spark.sql("SELECT count(*) AS n FROM clean")
"""


@pytest.fixture
def pipeline(pipeline: Pipeline, tmp_path: Path) -> Pipeline:
    (tmp_path / "in").mkdir()
    pipeline.write("definitions/p.py", PROJECT.format(folder=str(tmp_path / "in")))
    return pipeline


def put(pipeline: Pipeline, name: str, *ids: int) -> None:
    pipeline.write(f"in/{name}.json", "\n".join(json.dumps({"id": number}) for number in ids))


def test_a_stream_and_the_stream_that_reads_it_and_a_view(pipeline: Pipeline) -> None:
    put(pipeline, "a", 1, 2, 3, 4)
    assert pipeline.run().state == "COMPLETED"
    put(pipeline, "b", 6)
    (pipeline.folder / "in/a.json").unlink()
    happened = pipeline.run(full=["events", "clean"])
    assert happened.state == "COMPLETED", list(happened)
    assert happened.of("full_refresh")[0]["invalidates"] == ["lake.default.clean", "lake.default.total"]
    assert happened.mode("clean") == ("full", "a full refresh was asked for")
    assert pipeline.query("SELECT id FROM events") == [(6,)]
    assert pipeline.query("SELECT id, n FROM clean, total") == [(6, 1)]
    assert pipeline.query("SELECT count(*) FROM clean, events", checkpoint=1) == [(8,)]
    pipeline.verify()
    put(pipeline, "c", 8, 9)
    assert pipeline.run().mode("clean")[0] == "append"
    assert pipeline.query("SELECT id FROM clean") == [(6,), (8,)]

    # A view is replaced.
    happened = pipeline.run(full=["total"])
    assert happened.mode("total") == ("full", "a full refresh was asked for")
    assert (happened.refresh("total")["rows_inserted"], happened.refresh("total")["rows_deleted"]) == (1, 1)
    pipeline.verify()


def test_a_stream_whose_input_was_rebuilt_stops_with_a_class(pipeline: Pipeline) -> None:
    cleanest = "CREATE STREAMING TABLE cleanest AS SELECT id FROM STREAM(clean) WHERE id < 9"
    pipeline.write("definitions/cleanest.sql", cleanest)
    put(pipeline, "a", 1, 2)
    pipeline.run()
    happened = pipeline.run(full=["events"])
    assert happened.state == "FAILED"
    assert happened.failure("clean").startswith("[STREAM_INPUT_CHANGED]")
    assert "waits for lake.default.clean" in happened.failure("total")
    (hint,) = [event["hint"] for event in happened.of("refresh_failed") if event["hint"]]
    assert hint.endswith("taut run --full-refresh default.clean,default.cleanest")
    assert pipeline.query("SELECT id FROM clean") == [(2,)]
    assert pipeline.run(full=["default.clean", "default.cleanest"]).state == "COMPLETED"
    assert pipeline.query("SELECT c.id FROM clean c JOIN cleanest USING (id)") == [(2,)]

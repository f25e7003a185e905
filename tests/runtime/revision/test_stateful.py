"""A flow that keeps state goes back with it: what it was told wrongly, it has never heard."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.harness import Pipeline

from tautochrone.runtime.revision.revise import revise, survey

from .world import SETTINGS, request

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

_PROJECT = """
    from pyspark import pipelines as dp

    @dp.table
    def once():
        rows = spark.readStream.schema("id long, at timestamp").json({folder!r})
        return rows.withWatermark("at", "1 day").dropDuplicates(["id"])
"""


@pytest.fixture
def pipeline(pipeline: Pipeline, tmp_path: Path) -> Pipeline:
    pipeline.write("tautochrone.toml", SETTINGS)
    pipeline.reload()
    (tmp_path / "in").mkdir()
    pipeline.write("definitions/p.py", _PROJECT.format(folder=str(tmp_path / "in")))
    return pipeline


def put(pipeline: Pipeline, file: str, *ids: int) -> None:
    lines = [json.dumps({"id": number, "at": "2026-01-01T00:00:00Z"}) for number in ids]
    pipeline.write(f"in/{file}.json", "\n".join(lines))


def ids(pipeline: Pipeline) -> list[int]:
    return [int(row[0]) for row in pipeline.query("SELECT id FROM once")]


def test_state_goes_back_with_the_table(pipeline: Pipeline) -> None:
    put(pipeline, "a", 1, 2)
    pipeline.run()
    put(pipeline, "b", 1, 3)
    pipeline.run()
    put(pipeline, "c", 3, 4)
    pipeline.run()
    assert ids(pipeline) == [1, 2, 3, 4]
    put(pipeline, "b", 1, 5)
    put(pipeline, "c", 5, 4)
    with pipeline.opened() as (job, _):
        revision = request("once", to=1, again=True)
        revise(job, revision, survey(job, revision))
    pipeline.run()
    assert ids(pipeline) == [1, 2, 4, 5]
    put(pipeline, "d", 1, 3, 5)
    assert pipeline.run().state == "COMPLETED"
    assert ids(pipeline) == [1, 2, 3, 4, 5]

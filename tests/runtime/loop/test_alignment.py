"""`run.align`: of two sources that are apart a checkpoint shows no more of the faster one than is allowed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.support.harness import Pipeline

from tautochrone.errors import DefinitionError

pytestmark = pytest.mark.spark

PROJECT = """
    from pyspark import pipelines as dp

    def source(name):
        @dp.table(name=name, table_properties={{"tautochrone.event-time": "at"}})
        def read():
            frame = spark.readStream.schema("id long, at timestamp")
            return frame.option("maxFilesPerTrigger", 1).json({folder!r} + "/" + name)

    source("fast")
    source("slow")

    @dp.table
    def copies():
        return spark.readStream.table("fast")

    @dp.materialized_view
    def joined():
        return spark.sql("SELECT f.id, f.at, s.at AS other FROM fast f LEFT JOIN slow s USING (id)")
"""


@pytest.fixture
def pipeline(pipeline: Pipeline, tmp_path: Path) -> Pipeline:
    pipeline.write("tautochrone.toml", "[run]\nalign = '1h'\n")
    pipeline.reload()
    pipeline.write("definitions/p.py", PROJECT.format(folder=str(tmp_path / "in")))
    return pipeline


def put(pipeline: Pipeline, source: str, *hours: int) -> None:
    for hour in hours:
        row = {"id": hour, "at": f"2026-01-01T{hour:02}:00:00Z"}
        file = pipeline.write(f"in/{source}/{hour:02}.json", json.dumps(row))
        # Spark takes the older file first.
        os.utime(file, (1_700_000_000 + hour, 1_700_000_000 + hour))


def shown(pipeline: Pipeline) -> list[tuple[list[int], int, int]]:
    """The hours that the join shows, how many of them have found their partner, and how many copies are."""
    ids = [row[0] for row in pipeline.query("SELECT id FROM joined")]
    (matched,) = pipeline.query("SELECT count(other) FROM joined")
    (copies,) = pipeline.query("SELECT count(*) FROM copies")
    return [(ids, matched[0], copies[0])]


def test_a_late_source_holds_the_other_one_back(pipeline: Pipeline) -> None:
    put(pipeline, "fast", 1, 2, 3, 4, 5)
    put(pipeline, "slow", 1)
    happened = pipeline.run()
    assert happened.state == "COMPLETED", list(happened)
    (alignment,) = happened.of("alignment")
    assert alignment["roots"] == ["lake.default.fast", "lake.default.slow"]
    (aligned,) = happened.of("cut_aligned")
    assert (aligned["root"], aligned["behind"]) == ("lake.default.fast", "lake.default.slow")
    assert aligned["ahead_ms"] == 4 * 3_600_000
    assert shown(pipeline) == [([1, 2], 1, 2)]
    assert pipeline.query("SELECT count(*) FROM fast") == [(2,)]
    assert pipeline.query("SELECT count(*) FROM fast", consistency="weak") == [(5,)]
    pipeline.verify()

    # The fast one goes on: there is no news that may be shown. A new process knows what was held back.
    put(pipeline, "fast", 6)
    happened = pipeline.run()
    assert happened.of("no_news")
    assert not happened.of("checkpoint")

    put(pipeline, "slow", 2, 3)
    assert pipeline.run().state == "COMPLETED"
    assert shown(pipeline) == [([1, 2, 3, 4], 3, 4)]
    pipeline.verify()

    put(pipeline, "slow", 4, 5, 6)
    happened = pipeline.run()
    assert not happened.of("cut_aligned")
    assert shown(pipeline) == [([1, 2, 3, 4, 5, 6], 6, 6)]
    pipeline.verify()


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ('{{"tautochrone.event-time": "id"}}', "that column is bigint"),
        pytest.param(
            '{{"tautochrone.event-time": "when"}}', "that column is not there", marks=pytest.mark.slow
        ),
        ('{{"tautochrone.event_time": "at"}}', "has a property 'tautochrone.event_time'"),
    ],
)
def test_unusable_event_time_is_refused(pipeline: Pipeline, wrong: str, expected: str) -> None:
    text = PROJECT.replace('{{"tautochrone.event-time": "at"}}', wrong)
    pipeline.write("definitions/p.py", text.format(folder=str(pipeline.folder / "in")))
    put(pipeline, "fast", 1)
    put(pipeline, "slow", 1)
    with pytest.raises(DefinitionError) as refused:
        pipeline.run()
    assert refused.value.error_class == "INVALID_EVENT_TIME"
    assert expected in refused.value.message
    assert refused.value.location

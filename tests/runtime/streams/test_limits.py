"""Rate limits of flows: set outside the definitions, held in every batch, refused where they cannot hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.harness import Pipeline

from tautochrone.errors import SettingsError
from tautochrone.spark.sources.registry import limited

pytestmark = pytest.mark.spark

PROJECT = """
    from pyspark import pipelines as dp

    @dp.temporary_view
    def raw():
        source = spark.readStream.schema("id long, at timestamp").option("maxFilesPerTrigger", 100)
        return source.json({folder!r})

    @dp.table
    def events():
        rows = spark.readStream.table("raw")
        return rows.withWatermark("at", "1 hour").dropDuplicatesWithinWatermark(["id"]).select("id")

    @dp.table
    def ticks():
        return spark.readStream.format("rate").load()

    @dp.table
    def copied():
        return spark.readStream.table("events")
"""


@pytest.fixture
def pipeline(pipeline: Pipeline, tmp_path: Path) -> Pipeline:
    (tmp_path / "in").mkdir()
    pipeline.write("definitions/p.py", PROJECT.format(folder=str(tmp_path / "in")))
    return pipeline


def files(pipeline: Pipeline, *numbers: int) -> None:
    for number in numbers:
        row = {"id": number, "at": f"2026-01-01T00:00:{number:02}"}
        (pipeline.folder / "in" / f"{number}.json").write_text(json.dumps(row) + "\n")


def batches(pipeline: Pipeline) -> list[int]:
    happened = pipeline.run()
    assert happened.state == "COMPLETED", [event.get("error") for event in happened]
    # The last batches of a stream with a watermark only move it on.
    return [event["rows"] for event in happened.of("batch") if event["flow"] == "events" and event["rows"]]


def test_batches_of_files(pipeline: Pipeline) -> None:
    """The limits change between runs: nothing is lost or read twice, and nothing is built anew."""
    files(pipeline, *range(5))
    pipeline.write("tautochrone.toml", "[flows.events]\nmax_files_per_trigger = 2\n")
    assert batches(pipeline) == [2, 2, 1]
    files(pipeline, 5, 6, 7)
    pipeline.write("tautochrone.toml", "[flows.events]\nmax_bytes_per_trigger = 1\n")
    assert batches(pipeline) == [1, 1, 1]
    files(pipeline, 8, 9, 3)
    pipeline.write("tautochrone.toml", "[run]\nparallelism = 2\n")
    assert batches(pipeline) == [2]
    assert pipeline.query("SELECT id FROM events") == [(number,) for number in range(10)]
    assert pipeline.query("SELECT id FROM copied") == [(number,) for number in range(10)]


@pytest.mark.parametrize(
    ("flow", "limit", "error_class", "words", "hint"),
    [
        ("event", "max_files_per_trigger", "UNKNOWN_FLOW", "No flow is called event", "did you mean events?"),
        ("copied", "max_files_per_trigger", "RATE_LIMIT_WITHOUT_SOURCE", "Flow copied", "as a whole"),
        ("ticks", "max_files_per_trigger", "RATE_LIMIT_NOT_SUPPORTED", "reads rate", "files take max_files"),
        ("events", "max_offsets_per_trigger", "RATE_LIMIT_NOT_SUPPORTED", "FileSource", "Kafka topics take"),
    ],
)
def test_limits_that_cannot_hold(
    pipeline: Pipeline, flow: str, limit: str, error_class: str, words: str, hint: str
) -> None:
    pipeline.write("tautochrone.toml", f"[flows.{flow}]\n{limit} = 1\n")
    with pytest.raises(SettingsError) as caught, pipeline.opened():
        pass
    error = caught.value
    assert (error.error_class, error.location) == (error_class, "tautochrone.toml:2")
    assert words in error.message
    assert hint in str(error.hint)
    assert not (pipeline.folder / "storage/meta.db").exists()


def test_a_topic_takes_it_as_its_option(spark: SparkSession) -> None:
    """Without a broker: what stands in the plan is what Spark starts. `tests/kafka` has the batches."""
    options = {"kafka.bootstrap.servers": "nowhere:1", "subscribe": "t", "maxoffsetspertrigger": "9"}
    frame = spark.readStream.format("kafka").options(**options).load().select("value").where("value <> ''")
    stream = limited(spark, frame, {"maxOffsetsPerTrigger": 7, "maxFilesPerTrigger": 1})
    bounded = stream.rows
    assert stream.sources == ("kafka",)
    assert stream.applied == {"maxOffsetsPerTrigger"}
    relation = bounded._jdf.queryExecution().analyzed().collectLeaves().apply(0)
    source_options = {
        str(key): str(value) for key, value in relation.extraOptions().asCaseSensitiveMap().items()
    }
    assert source_options == {
        "kafka.bootstrap.servers": "nowhere:1", "subscribe": "t", "maxOffsetsPerTrigger": "7",
    }  # fmt: skip
    assert bounded.columns == ["value"]

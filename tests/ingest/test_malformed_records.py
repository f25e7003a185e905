"""Records of files that do not parse: counted where Spark alone says nothing, or set aside in a quarantine."""

from __future__ import annotations

import pytest
from tests.support.harness import Happened, Pipeline

pytestmark = pytest.mark.spark

DEFINITIONS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()

@dp.table
def events():
    reader = spark.readStream.schema("id BIGINT, amount INT")
    return reader.json("{input}").where("id > 0")
"""
QUARANTINE = '[flows.events]\nbad_records = "quarantine"\n'


@pytest.fixture
def pipeline(pipeline: Pipeline) -> Pipeline:
    pipeline.write("definitions/events.py", DEFINITIONS.format(input=pipeline.folder / "input"))
    return pipeline


def good(happened: Happened) -> Happened:
    assert happened.state == "COMPLETED", [event.get("error") for event in happened]
    return happened


def test_counted(pipeline: Pipeline) -> None:
    pipeline.write("input/a.json", '{"id":1,"amount":10}\n{"id":2,"amount":"x"}\n{broken\n')
    pipeline.write("input/b.json", '{"id":3,"amount":10}\n{broken\n')
    happened = good(pipeline.run())
    (event,) = happened.of("malformed_records")
    print(event)
    assert event["records"] == event["written"] == 3
    assert pipeline.query("SELECT * FROM events") == [(1, 10), (2, None), (3, 10)]


def test_set_aside(pipeline: Pipeline) -> None:
    pipeline.write("tautochrone.toml", QUARANTINE)
    pipeline.reload()
    pipeline.write("input/a.json", '{"id":1,"amount":10}\n{"id":2,"amount":"x"}\n{broken\n')
    pipeline.write("input/b.json", '{"id":3,"amount":10}\n{broken\n')
    happened = good(pipeline.run())
    (event,) = happened.of("malformed_records")
    print(event, happened.of("quarantined"))
    assert event["records"] == event["quarantined"] == 3
    assert pipeline.query("SELECT * FROM events") == [(1, 10), (3, 10)]
    print(pipeline.query("SELECT * FROM events__quarantine"))
    good(pipeline.run())
    assert len(pipeline.query("SELECT * FROM events__quarantine")) == 3

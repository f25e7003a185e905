"""Input that cannot be read: a clear error class, no lost row, and a flow that goes on after a repair."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.support.harness import Pipeline

from tautochrone.errors import DefinitionError

pytestmark = pytest.mark.spark

DEFINITIONS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()

@dp.table(schema="{schema}")
def events():
    reader = spark.readStream.schema("id BIGINT, amount INT").option("mode", "FAILFAST")
    return reader.json("{input}")

@dp.materialized_view
def total():
    return spark.sql("SELECT count(*) AS n, sum(amount) AS amount FROM events")
"""
OTHERS = """

@dp.table
def others():
    return spark.readStream.schema("id BIGINT").json("{input}-others")

@dp.materialized_view
def other_total():
    return spark.sql("SELECT count(*) AS n FROM others")
"""


@pytest.fixture
def pipeline(pipeline: Pipeline) -> Pipeline:
    define(pipeline)
    drop(pipeline, "a", '{"id":1,"amount":10}')
    return pipeline


def define(pipeline: Pipeline, schema: str = "id BIGINT, amount INT", *, others: bool = False) -> None:
    text = DEFINITIONS + OTHERS if others else DEFINITIONS
    pipeline.write("definitions/events.py", text.format(input=pipeline.folder / "input", schema=schema))


def drop(pipeline: Pipeline, name: str, *lines: str) -> Path:
    return pipeline.write(f"input/{name}.json", "\n".join(lines))


def drop_other(pipeline: Pipeline, name: str, number: int) -> None:
    pipeline.write(f"input-others/{name}.json", f'{{"id":{number}}}')


def require_plain(error: str) -> None:
    """One line without a stack trace or a Java class."""
    assert "\n" not in error
    assert "\tat " not in error
    assert "org.apache" not in error


def test_unreadable_rows_fail_the_flow_and_are_read_again(pipeline: Pipeline) -> None:
    define(pipeline, others=True)
    drop_other(pipeline, "a", 1)
    assert pipeline.run().state == "COMPLETED"
    bad = drop(pipeline, "b", '{"id":3,"amount":30}', '{"id":2,"amount":')
    drop_other(pipeline, "b", 2)
    require_failure(pipeline, "[MALFORMED_RECORD_IN_PARSING", bad)
    # The other flow and its view are at the new checkpoint; no row of the bad file is shown.
    assert pipeline.query("SELECT n FROM other_total") == [(2,)]
    assert pipeline.query("SELECT id FROM events") == [(1,)]

    # After half a repair the next run fails too, and nothing is skipped.
    bad.write_text('{"id":3,"amount":30}\n{"id":2,"amount":"many"}')
    require_failure(pipeline, "[CANNOT_PARSE_JSON_FIELD]", bad)
    bad.write_text('{"id":3,"amount":30}\n{"id":2,"amount":20}')
    happened = pipeline.run()
    assert happened.state == "COMPLETED", [event.get("error") for event in happened]
    assert pipeline.query("SELECT id FROM events") == [(1,), (2,), (3,)]
    pipeline.verify()


def require_failure(pipeline: Pipeline, error_class: str, file: Path) -> None:
    """The next run fails by this file."""
    happened = pipeline.run()
    assert happened.state == "FAILED"
    error = happened.failure("events")
    require_plain(error)
    assert error.startswith(error_class), error
    assert "Flow events" in error
    assert str(file) in error


def test_null_in_a_not_null_column_fails_the_flow(pipeline: Pipeline) -> None:
    define(pipeline, schema="id BIGINT NOT NULL, amount INT")
    bad = drop(pipeline, "b", '{"amount":20}', '{"id":3,"amount":30}')
    happened = pipeline.run()
    assert happened.state == "FAILED"
    error = happened.failure("events")
    require_plain(error)
    assert "NULL" in error.upper()
    assert error.startswith("[NOT_NULL_ASSERT_VIOLATION]"), error
    bad.write_text('{"id":2,"amount":20}')
    happened = pipeline.run()
    assert happened.state == "COMPLETED", [event.get("error") for event in happened]
    assert pipeline.query("SELECT id FROM events") == [(1,), (2,)]


def test_missing_source_folder_fails_the_flow(pipeline: Pipeline) -> None:
    """Spark cannot even resolve the flow, so the run is refused before anything is written."""
    assert pipeline.run().state == "COMPLETED"
    folder = pipeline.folder / "input"
    shutil.move(folder, pipeline.folder / "away")
    pointers = pipeline.pointers()
    with pytest.raises(DefinitionError) as caught:
        pipeline.run()
    assert caught.value.error_class == "PATH_NOT_FOUND"
    assert str(folder) in caught.value.message
    assert caught.value.location == "definitions/events.py:10"
    assert pipeline.pointers() == pointers
    assert pipeline.query("SELECT id FROM events") == [(1,)]

    shutil.move(pipeline.folder / "away", folder)
    drop(pipeline, "b", '{"id":2,"amount":20}')
    happened = pipeline.run()
    assert happened.state == "COMPLETED", [event.get("error") for event in happened]
    assert pipeline.query("SELECT id FROM events") == [(1,), (2,)]

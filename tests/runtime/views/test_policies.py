"""Refresh policies in whole runs: what they allow, what they refuse, what history keeps of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.harness import Pipeline

from tautochrone.model.checkpoint import RefreshMode
from tautochrone.model.names import TableName

pytestmark = pytest.mark.spark

PROJECT = """
    from pyspark import pipelines as dp

    def policy(name):
        return {{"tautochrone.refresh-policy": name}}

    @dp.table
    def events():
        return spark.readStream.schema("id long").json({folder!r})

    @dp.materialized_view(table_properties=policy("full"))
    def whole():
        return spark.sql("SELECT id FROM events")

    @dp.materialized_view(table_properties=policy("incremental_strict"))
    def strict():
        return spark.sql("SELECT id + 1 AS next FROM events")

    @dp.materialized_view(table_properties=policy("incremental_strict"))
    def dice():
        return spark.sql("SELECT id, rand() AS r FROM events")

    @dp.materialized_view
    def above():
        return spark.sql("SELECT count(*) AS n FROM dice")
"""


@pytest.fixture
def pipeline(pipeline: Pipeline, tmp_path: Path) -> Pipeline:
    pipeline.write("definitions/p.py", PROJECT.format(folder=str(tmp_path / "in")))
    put(pipeline, "a", 1, 2)
    return pipeline


def put(pipeline: Pipeline, name: str, *ids: int) -> None:
    pipeline.write(f"in/{name}.json", "\n".join(json.dumps({"id": number}) for number in ids))


def test_policies(pipeline: Pipeline) -> None:
    first = pipeline.run()
    assert {event["reason"] for event in first.of("refresh")} == {"first build"}
    put(pipeline, "b", 3)
    second = pipeline.run()
    assert second.state == "FAILED"
    assert second.mode("whole") == ("full", "its refresh policy is full")
    assert second.mode("strict")[0] == "append"
    failure = second.failure("dice")
    assert failure.startswith("[REFRESH_NOT_INCREMENTAL] lake.default.dice has the refresh policy")
    assert "rand()" in failure
    assert "definitions/p.py:" in failure
    assert second.failure("above").startswith("waits for lake.default.dice")
    # The old version stays, the others go on.
    assert pipeline.query("SELECT n FROM above") == [(2,)]
    assert pipeline.query("SELECT id FROM whole") == [(1,), (2,)]
    assert pipeline.query("SELECT id FROM whole", only_named=True) == [(1,), (2,), (3,)]
    history = pipeline.job.store.history.refreshes(TableName("lake", ("default",), "whole"))
    assert [record.refresh and record.refresh.mode for record in history] == [RefreshMode.FULL] * 2

    # A full refresh is allowed where following is refused.
    happened = pipeline.run(full=["dice"])
    assert happened.state == "COMPLETED", list(happened)
    assert happened.mode("dice") == ("full", "a full refresh was asked for")
    assert pipeline.query("SELECT n FROM above") == [(3,)]

    # Another policy is no reason to rebuild.
    changed = PROJECT.replace('policy("full")', 'policy("auto")')
    pipeline.write("definitions/p.py", changed.format(folder=str(pipeline.folder / "in")))
    assert pipeline.run().of("refresh") == []

"""The states behind a view: folded now and then, and never read by a release that would misread them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.harness import Happened, Pipeline

from tautochrone.model import limits
from tautochrone.model.names import TableName
from tautochrone.runtime.refresh.states import STATE_NAMESPACE
from tautochrone.runtime.views import plans

pytestmark = pytest.mark.spark

STATE = TableName("lake", STATE_NAMESPACE, "default__totals__1")

PROJECT = """
    from pyspark import pipelines as dp

    FOLLOWS = {{"tautochrone.refresh-policy": "incremental_strict"}}

    @dp.table
    def events():
        return spark.readStream.schema("id long, word string").json({folder!r})

    @dp.materialized_view(table_properties=FOLLOWS)
    def kept():
        return spark.sql("SELECT word, max(id) AS last FROM events GROUP BY word")

    @dp.materialized_view(table_properties=FOLLOWS)
    def totals():
        return spark.sql("SELECT last % 3 AS third, count(*) AS n, sum(last) AS s FROM kept GROUP BY 1")
"""


@pytest.fixture
def pipeline(pipeline: Pipeline, tmp_path: Path) -> Pipeline:
    pipeline.write("definitions/p.py", PROJECT.format(folder=str(tmp_path / "in")))
    return pipeline


def put(pipeline: Pipeline, number: int) -> None:
    """Two words move: groups of `totals` come, shrink, vanish and come back."""
    rows = [{"id": 3 * number + i, "word": f"w{(number + i) % 4}"} for i in range(2)]
    pipeline.write(f"in/{number}.json", "\n".join(map(json.dumps, rows)))


def runs(pipeline: Pipeline) -> int:
    commit_metadata = pipeline.job.lake.load(STATE).fork().commit_metadata
    assert commit_metadata is not None
    return commit_metadata.runs or 0


def test_runs_are_folded(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_STATE_RUNS", 1)
    run_counts = []
    for number in range(4):
        put(pipeline, number)
        happened = pipeline.run()
        assert happened.state == "COMPLETED", [event for event in happened if "error" in event]
        assert happened.refresh("totals")["mode"] == ("incremental" if number else "full")
        run_counts.append(runs(pipeline))
    pipeline.verify()
    assert run_counts == [0, 1, 0, 1]

    # A state of another release is built anew.
    monkeypatch.setattr(plans, "_FORMAT", plans._FORMAT + 1)
    for number, mode in ((4, "full"), (5, "incremental")):
        put(pipeline, number)
        refresh = pipeline.run().refresh("totals")
        assert refresh["mode"] == mode, refresh
        assert mode == "incremental" or "another release" in refresh["reason"]
    pipeline.verify()


def test_a_refresh_says_why_it_needed_jobs(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    put(pipeline, 0)
    pipeline.run()
    put(pipeline, 1)
    assert jobs_of(pipeline.run(), "kept") == []
    monkeypatch.setattr(limits, "MAX_SINGLE_TASK_ROWS", 1)
    put(pipeline, 2)
    assert ("READ_MANY_ROWS", "lake.default.kept") in jobs_of(pipeline.run(), "kept")
    assert pipeline.verify()


def jobs_of(happened: Happened, view: str) -> list[tuple[str, str | None]]:
    """Code and table of each reason."""
    nodes = happened.refresh(view)["nodes"]
    return [
        (node["reason_code"], node["reason_params"].get("table"))
        for node in nodes
        if node["node"] == "Spark job"
    ]

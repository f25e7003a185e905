"""What the store says of a job is what its runs did: flows that fail, runs that an error ends, lags."""

from __future__ import annotations

import time

import pytest
from tests.support.harness import Pipeline

from tautochrone.meta import DatasetState, DatasetStatus
from tautochrone.model.jobs import JobStatus, Liveness
from tautochrone.runtime.maintenance.maintain import Maintenance

pytestmark = pytest.mark.spark

DEFINITIONS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()

@dp.table
def orders():
    return spark.readStream.schema("id STRING").json({folder!r}).selectExpr("CAST(id AS INT) AS id")

@dp.materialized_view
def total():
    return spark.sql("SELECT count(*) AS n FROM orders")
"""


def statuses(pipeline: Pipeline) -> dict[str, DatasetStatus]:
    return {status.dataset.table: status for status in pipeline.job.store.datasets.statuses()}


def job(pipeline: Pipeline) -> JobStatus:
    (status,) = pipeline.job.store.jobs.states()
    return status


def alarms(pipeline: Pipeline) -> list[tuple[str, str]]:
    return [(alarm.rule, alarm.subject) for alarm in pipeline.job.store.alarms.evaluate()]


def test_a_flow_that_fails_is_failing_until_a_run_mends_it(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = pipeline.folder / "in"
    folder.mkdir()
    (folder / "1.json").write_text('{"id": 1}\n')
    pipeline.write("definitions/p.py", DEFINITIONS.format(folder=str(folder)))
    pipeline.run()
    assert {status.state for status in statuses(pipeline).values()} == {DatasetState.FRESH}
    assert alarms(pipeline) == []
    # A row on which the query fails.
    (folder / "2.json").write_text('{"id": "x"}\n')
    pipeline.run()
    orders = statuses(pipeline)["orders"]
    assert orders.state is DatasetState.FAILING
    assert "[CAST_INVALID_INPUT]" in str(orders.error)
    assert orders.failing_since_ms is not None
    assert alarms(pipeline) == [("dataset_failing", "lake.default.orders")]
    status = job(pipeline)
    assert status.liveness is Liveness.ENDED
    assert status.report is not None
    assert any("flow orders FAILED" in line for line in status.report.lines)
    # The next run fails in the same way: it is the same alarm, and failed since then.
    pipeline.run()
    assert statuses(pipeline)["orders"].failing_since_ms == orders.failing_since_ms
    assert len(alarms(pipeline)) == 1
    assert pipeline.job.store.alarms.resolved() == ()
    # An error that is none of a dataset ends the next one.
    (folder / "2.json").write_text('{"id": 2}\n')

    def fail(_self: Maintenance) -> None:
        raise RuntimeError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(Maintenance, "between_checkpoints", fail)
        with pytest.raises(RuntimeError, match="no space left"):
            pipeline.run()
    status = job(pipeline)
    assert status.liveness is Liveness.FAILED
    assert status.end is not None
    assert status.end.error == "RuntimeError: no space left"
    assert alarms(pipeline) == [("job_not_running", status.name)]
    assert statuses(pipeline)["orders"].state is DatasetState.NOT_RUNNING
    pipeline.run()
    assert {status.state for status in statuses(pipeline).values()} == {DatasetState.FRESH}
    assert alarms(pipeline) == []
    assert len(pipeline.job.store.alarms.resolved()) == 2
    assert pipeline.reader.sql("SELECT n FROM total").collect()[0].n == 2


def test_the_lag_of_a_continuous_run_is_from_its_last_look_at_the_source(pipeline: Pipeline) -> None:
    folder = pipeline.folder / "in"
    folder.mkdir()
    (folder / "1.json").write_text('{"id": 1}\n')
    pipeline.write("definitions/p.py", DEFINITIONS.format(folder=str(folder)))
    with pipeline.running() as happened:
        deadline = time.monotonic() + 60
        while not happened.of("checkpoint") or len(happened.of("no_news")) < 5:
            assert time.monotonic() < deadline, happened.events
            time.sleep(0.05)
        states = statuses(pipeline)
        assert {(status.state, status.lag_ms) for status in states.values()} == {(DatasetState.FRESH, 0)}
        report = job(pipeline).report
        assert report is not None
        assert report.interval_ms == 300
        assert any("checkpoint 1 published" in line for line in report.lines)
        assert report.disk is not None
    status = job(pipeline)
    assert status.liveness is Liveness.ENDED
    assert status.command == "taut run --continuous"
    lags = [status.lag_ms or 0 for status in statuses(pipeline).values()]
    assert all(0 < lag_ms < 60_000 for lag_ms in lags)

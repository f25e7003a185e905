"""What an earlier run, a lost store or a dropped table left in the lake does not keep a run from its work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.crash.faults import Crash, Strike, StrikingEffects
from tests.support.harness import Pipeline

from tautochrone.model.effects import Step
from tautochrone.model.names import TableName
from tautochrone.runtime.loop.run import Run
from tautochrone.runtime.loop.takeover import clear_table, take_over

pytestmark = pytest.mark.spark

SETTINGS = """
[refresh]
policy = "incremental"
[flows.events]
bad_records = "quarantine"
[spark.conf]
"spark.sql.shuffle.partitions" = "1"
"""
PROJECT = """
    from pyspark import pipelines as dp

    @dp.table
    def events():
        return spark.readStream.schema("id long, kind int").json({folder!r})

    @dp.table
    def clean():
        return spark.readStream.table("events").where("id < 100")

    @dp.table(table_properties={{"tautochrone.apply.keys": "id", "tautochrone.apply.sequence": "kind"}})
    def latest():
        return spark.readStream.table("events").where("id < 100")

    @dp.materialized_view
    def totals():
        return spark.sql("SELECT kind, count(*) AS n FROM events GROUP BY kind")
"""


def project(folder: Path, spark: SparkSession) -> Pipeline:
    pipeline = Pipeline(folder, spark, settings=SETTINGS, may_fall_back=True)
    (folder / "in").mkdir(exist_ok=True)
    pipeline.write("definitions/p.py", PROJECT.format(folder=str(folder / "in")))
    return pipeline


def put(pipeline: Pipeline, file: str, *rows: tuple[int, int], bad: str = "") -> None:
    lines = [json.dumps({"id": number, "kind": kind}) for number, kind in rows]
    pipeline.write(f"in/{file}.json", "\n".join([*lines, *filter(None, [bad])]))


def test_a_full_refresh_after_killed_runs(tmp_path: Path, spark: SparkSession) -> None:
    pipeline = project(tmp_path, spark)
    put(pipeline, "a", (1, 0), (2, 0), bad="{broken")
    assert pipeline.run().state == "COMPLETED"

    # Killed before a checkpoint is published: it is over rows that the full refresh drops.
    put(pipeline, "b", (3, 0))
    effects = StrikingEffects(Strike(Step.META_PUBLISH, "before", "crash"))
    with pipeline.opened(effects) as (job, _):
        run = Run(job)
        with pytest.raises(Crash):
            run.once()
        for query in run._streams._queries.values():
            query.stop()
    happened = pipeline.run(full=["events", "clean", "latest"])
    assert happened.state == "COMPLETED", list(happened)
    assert happened.of("checkpoint_aborted")[0]["reason_code"] == "ROOT_REPLACED"
    put(pipeline, "c", (4, 0))
    assert pipeline.run().state == "COMPLETED"
    for table in ("events", "clean", "latest"):
        assert [row[0] for row in pipeline.query(f"SELECT id FROM {table}")] == [1, 2, 3, 4]

    # Killed between a table and that of its bad records.
    events = TableName("lake", ("default",), "events")
    with pipeline.opened(full=["events"]) as (job, _):
        take_over(job, frozenset({events, TableName("lake", ("default",), "events__quarantine")}))
        clear_table(job, events)
    pipeline.run()
    assert len(pipeline.query("SELECT * FROM events")) == 4
    assert len(pipeline.query("SELECT * FROM events__quarantine")) == 1
    pipeline.close()


def test_states_of_dropped_tables_do_not_fence_a_new_store(tmp_path: Path, spark: SparkSession) -> None:
    pipeline = project(tmp_path, spark)
    for number in range(3):
        put(pipeline, f"a{number}", (number, 0))
        assert pipeline.run().state == "COMPLETED"
    tables = pipeline.job.graph.order
    pipeline.close()
    for table in tables:
        pipeline.session.sql(f"DROP TABLE {table}")
    for name in ("meta.db", "_checkpoints", "_positions"):
        path = tmp_path / "storage" / name
        path.rename(path.with_name(f"lost{name}")) if path.exists() else None
    pipeline = project(tmp_path, spark)
    assert pipeline.run().state == "COMPLETED"
    assert pipeline.query("SELECT kind, n FROM totals") == [(0, 3)]
    pipeline.close()

"""Taking many tables back to a checkpoint: from the list to the last commit."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from tests.support.harness import Pipeline

from tautochrone.model.names import CheckpointNumber, TableName
from tautochrone.runtime.revision.plan import RevisionRequest
from tautochrone.runtime.revision.revise import revise, survey

__all__ = ["measure"]

_ROOT = """
from pathlib import Path
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

INPUT = Path(__file__).resolve().parents[1] / "input"


@dp.table
def events():
    return SparkSession.active().readStream.schema("id BIGINT, amount BIGINT").json(str(INPUT))
"""
_SETTINGS = '[spark.conf]\n"spark.sql.shuffle.partitions" = "1"\n'


def measure(spark: SparkSession, folder: Path, tables: int = 100) -> dict[str, Any]:
    """Times in ms to list and to take back a root and the views over it, `tables` together; not in it: the
    start of Spark, and the replay, which is a run like any other."""
    project_folder = folder / "revise"
    shutil.rmtree(project_folder, ignore_errors=True)
    project_folder.mkdir(parents=True)
    pipeline = Pipeline(project_folder, spark, settings=_SETTINGS)
    try:
        pipeline.write("definitions/events.py", _ROOT)
        views = (
            f"CREATE MATERIALIZED VIEW view_{n} AS SELECT id, amount + {n} AS more FROM events;"
            for n in range(tables - 1)
        )
        pipeline.write("definitions/views.sql", "\n".join(views))
        for number in (1, 2):
            pipeline.write(f"input/{number}.json", json.dumps({"id": number, "amount": 1}))
            if pipeline.run().checkpoints != [number]:
                raise RuntimeError("a checkpoint that is needed was not published")
        root = TableName(pipeline.settings.catalog.name, ("default",), "events")
        request = RevisionRequest(named=(root,), to=CheckpointNumber(1), read_again=True)
        with pipeline.opened() as (job, _):
            started = time.perf_counter()
            plan = survey(job, request)
            listed = time.perf_counter()
            revise(job, request, plan)
            done = time.perf_counter()
        pipeline.run()
        last = pipeline.query(f"SELECT id, more FROM view_{tables - 2}")
        if last != [(1, tables - 1), (2, tables - 1)]:
            raise RuntimeError(f"after the replay the last view holds {last}")
    finally:
        pipeline.close()
    return {
        "tables": len(plan.changed),
        "list_ms": (listed - started) * 1000,
        "take_back_ms": (done - listed) * 1000,
    }

"""What `run --continuous` costs while nothing happens."""

from __future__ import annotations

import shutil
import statistics
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from tests.support.harness import Happened, Pipeline

from bench.running import continuous, cpu_s, cpu_since, root, wait_until

__all__ = ["measure"]

_VIEWS = """
CREATE MATERIALIZED VIEW odd AS SELECT id FROM events WHERE id % 2 = 1;
CREATE MATERIALIZED VIEW totals AS SELECT kind, count(*) AS n FROM events GROUP BY kind;
"""


def _polls_since_checkpoint(happened: Happened) -> int:
    """Polls without news since the last batch or checkpoint."""
    names = [entry["event"] for entry in happened]
    last = max(index for index, name in enumerate(names) if name in ("batch", "checkpoint"))
    return names[last:].count("no_news")


def measure(spark: SparkSession, folder: Path, interval_ms: int = 5000, polls: int = 12) -> dict[str, Any]:
    """Spark jobs, wall time of a poll in ms, and CPU of this process and its JVM as part of one CPU.

    One streaming flow and two views; nothing arrives.

    Args:
        spark: a warm session.
        folder: of the pipeline.
        interval_ms: between two polls; the flow polls its source as often.
        polls: that are measured, after a few that are not.
    """
    project_folder = folder / "idle"
    shutil.rmtree(project_folder, ignore_errors=True)
    project_folder.mkdir(parents=True)
    pipeline = Pipeline(project_folder, spark)
    try:
        pipeline.write("definitions/events.py", root("id BIGINT, kind INT"))
        pipeline.write("definitions/views.sql", _VIEWS)
        pipeline.write("input/1.json", "".join(f'{{"id": {n}, "kind": {n % 3}}}\n' for n in range(1000)))
        with continuous(pipeline, interval_ms) as happened:
            wait_until(lambda: bool(happened.of("batch")), "the rows")
            wait_until(lambda: _polls_since_checkpoint(happened) >= 3, "the first polls without news")
            jobs, before, started = pipeline.spark_jobs(), len(happened), time.monotonic()
            cpu = cpu_s(spark)
            while len(happened) - before < polls:
                # Seldom, because polling costs CPU time too.
                time.sleep(0.1)
            spent, elapsed_s = cpu_since(spark, cpu), time.monotonic() - started
            new, jobs = Happened(happened[before:]), pipeline.spark_jobs() - jobs
    finally:
        pipeline.close()
    times = [event["duration_ms"] for event in new.of("no_news")]
    share = {side: seconds / elapsed_s for side, seconds in spent.items()}
    return {
        "interval_ms": interval_ms,
        "polls": len(times),
        "spark_jobs": jobs,
        "median_ms": statistics.median(times),
        "longest_ms": max(times),
        "cpu_share": share,
        "cpu_share_in_all": sum(share.values()),
    }

"""Deliveries to ClickHouse by Spark: inserts of its tasks over HTTP, and a pipeline with the embedded engine.

What a transaction costs without Spark: see `sink_costs`.
"""

from __future__ import annotations

import json
import shutil
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from tests.support.harness import Pipeline

from bench.running import continuous, root, wait_until
from bench.sink_tasks import by_tasks

__all__ = ["measure"]

_WARM = 3
_FLOW = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

dp.create_sink("mirror", "clickhouse", {{"url": "clickhouse://embedded/{folder}", "database": "flow"}})


@dp.append_flow(target="mirror")
def events_to_mirror():
    return SparkSession.active().readStream.table("events")
"""


def measure(
    spark: SparkSession,
    folder: Path,
    files: int = 30,
    file_rows: int = 10_000,
    task_rows: int = 100_000,
    task_counts: Sequence[int] = (0, 1, 2),
    chunk_sizes: Sequence[int] = (1_000, 10_000, 100_000),
) -> dict[str, Any]:
    """Inserts by Spark's tasks, and the time from a checkpoint to the sink's pointer.

    Args:
        spark: a warm session.
        folder: of the engine and the pipeline.
        files: each of `file_rows` rows, that are delivered by a pipeline.
        task_rows: that are inserted over HTTP by Spark tasks.
        task_counts: how many; 0: the driver does.
        chunk_sizes: rows of one of their inserts.
    """
    bench_folder = folder / "sinks"
    shutil.rmtree(bench_folder, ignore_errors=True)
    bench_folder.mkdir(parents=True)
    tasks = by_tasks(spark, bench_folder, task_rows, task_counts, chunk_sizes)
    pointer = _pointer(spark, bench_folder, files, file_rows)
    return {
        "task_rows": task_rows,
        "tasks": tasks,
        "file_rows": file_rows,
        **pointer,
    }


def _pointer(spark: SparkSession, folder: Path, files: int, file_rows: int) -> dict[str, Any]:
    """Milliseconds from a published checkpoint to the event that says that the sink has it."""
    project_folder = folder / "project"
    pipeline = Pipeline(project_folder, spark)
    try:
        pipeline.write("definitions/events.py", root("id BIGINT, kind STRING, amount BIGINT"))
        pipeline.write("definitions/mirror.py", _FLOW.format(folder=folder / "clickhouse"))
        (project_folder / "input").mkdir()
        times_ms = []
        with continuous(pipeline, 100) as happened:
            wait_until(lambda: bool(happened.of("sink_delivered")), "the first delivery")
            for number in range(files + _WARM):
                checkpoints = len(happened.checkpoints)
                _put(pipeline, number, file_rows)
                wait_until(lambda past=checkpoints: len(happened.checkpoints) > past, "a checkpoint")
                published = time.perf_counter()
                newest = happened.checkpoints[-1]
                wait_until(
                    lambda newest=newest: happened.of("sink_delivered")[-1]["checkpoint"] >= newest,
                    "a delivery",
                )
                if number >= _WARM:
                    times_ms.append((time.perf_counter() - published) * 1000)
            deliveries = happened.of("sink_delivered")
            delivered_rows = sum(event["rows"] for event in deliveries)
    finally:
        pipeline.close()
    if delivered_rows != (files + _WARM) * file_rows:
        raise RuntimeError(f"{delivered_rows} rows were delivered")
    times_ms.sort()
    return {
        "pointer_ms": times_ms,
        "pointer_p50_ms": statistics.median(times_ms),
        "pointer_p95_ms": times_ms[int(len(times_ms) * 0.95)],
        "delivery_p50_ms": statistics.median(event["duration_ms"] for event in deliveries[_WARM:]),
    }


def _put(pipeline: Pipeline, number: int, rows: int) -> None:
    """A file that appears all at once."""
    first = number * rows
    lines = [
        json.dumps({"id": n, "kind": f"kind {n % 20}", "amount": n % 100}) for n in range(first, first + rows)
    ]
    hidden = pipeline.write(f"input/.{number:06d}", "\n".join(lines) + "\n")
    hidden.rename(hidden.with_name(f"{number:06d}.json"))

"""A small checkpoint: the time from new rows in the source to readable rows, and its commits."""

from __future__ import annotations

import json
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from tests.support.harness import Happened, Pipeline

from bench.running import catalog_commits, continuous, root, wait_until

__all__ = ["measure"]

_INTERVAL_MS = 100
# OFFSET has no rule: its view is refreshed by `diff`.
_VIEWS = """
CREATE MATERIALIZED VIEW large AS SELECT id, amount * 2 AS twice FROM events WHERE amount >= 50;
CREATE MATERIALIZED VIEW totals AS
SELECT kind, count(*) AS n FROM events GROUP BY kind ORDER BY kind OFFSET 1;
"""


def measure(spark: SparkSession, folder: Path, rows: int = 1000, rounds: int = 7) -> dict[str, Any]:
    """Times in ms of `run --continuous` from the moment a file of `rows` rows exists to the checkpoint
    that shows them, after warm-up, and the catalog's commits of each.

    One root, one view that is appended to, one that is compared (`diff`). The run polls every
    0.1 s, and that wait is in the times.
    """
    project_folder = folder / "checkpoint"
    shutil.rmtree(project_folder, ignore_errors=True)
    project_folder.mkdir(parents=True)
    pipeline = Pipeline(project_folder, spark)
    try:
        pipeline.write("definitions/events.py", root("id BIGINT, kind INT, amount BIGINT"))
        pipeline.write("definitions/views.sql", _VIEWS)
        _put(pipeline, 0, rows)
        measurements: list[dict[str, Any]] = []
        with continuous(pipeline, _INTERVAL_MS) as happened:
            wait_until(lambda: bool(happened.checkpoints), "the first build")
            # On a slow machine the first checkpoint may come before the first file is read.
            wait_until(lambda: _count(pipeline) == rows, "the rows of the first file")
            for number in range(1, rounds + 4):
                measurement = _once(pipeline, happened, number, rows)
                if number > 3:
                    measurements.append(measurement)
        row_count = _count(pipeline)
        if row_count != rows * (rounds + 4):
            raise RuntimeError(f"the table holds {row_count} rows")
        pipeline.verify()
    finally:
        pipeline.close()
    return {
        "rows": rows,
        "rounds": measurements,
        "median_ms": statistics.median(measurement["readable_ms"] for measurement in measurements),
        "median_until_cut_ms": statistics.median(
            measurement["readable_ms"] - measurement["checkpoint_ms"] for measurement in measurements
        ),
        "commits_of_a_checkpoint": max(sum(measurement["commits"].values()) for measurement in measurements),
        "commits_of_a_table": max(max(measurement["commits"].values()) for measurement in measurements),
    }


def _count(pipeline: Pipeline) -> int:
    return int(pipeline.query("SELECT count(*) FROM events")[0][0])


def _put(pipeline: Pipeline, number: int, rows: int) -> None:
    """A file that appears all at once."""
    first = number * rows
    lines = [json.dumps({"id": n, "kind": n % 20, "amount": n % 100}) for n in range(first, first + rows)]
    hidden = pipeline.write(f"input/.{number:06d}", "\n".join(lines) + "\n")
    hidden.rename(hidden.with_name(f"{number:06d}.json"))


def _once(pipeline: Pipeline, happened: Happened, number: int, rows: int) -> dict[str, Any]:
    # The pipeline must be idle, so that the next checkpoint has the rows.
    wait_until(lambda: happened[-1]["event"] == "no_news", "an idle pipeline")
    before, seen, checkpoints = pipeline.pointers(), len(happened), len(happened.checkpoints)
    started = time.perf_counter()
    _put(pipeline, number, rows)
    wait_until(lambda: len(happened.checkpoints) > checkpoints, "a checkpoint")
    elapsed_ms = (time.perf_counter() - started) * 1000
    new = Happened(happened[seen:])
    return {
        "readable_ms": elapsed_ms,
        "checkpoint_ms": new.of("checkpoint")[-1]["duration_ms"],
        "refresh_ms": {name: new.refresh(name)["duration_ms"] for name in ("large", "totals")},
        "mode": {name: new.refresh(name)["mode"] for name in ("large", "totals")},
        "commits": catalog_commits(before, pipeline.pointers()),
    }

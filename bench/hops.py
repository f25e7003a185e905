"""Freshness of a pipeline three views deep while rows keep coming: from the moment they exist to the
checkpoint that shows them in all tables."""

from __future__ import annotations

import json
import shutil
import time
from bisect import bisect_left
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from tests.support.harness import Happened, Pipeline

from bench.running import continuous, record_checkpoints, root, wait_until

__all__ = ["measure"]

_INTERVAL_MS = 200
_SCHEMA = "id BIGINT, kind INT, amount BIGINT"
_VIEWS = """
CREATE MATERIALIZED VIEW sales AS
SELECT id, kind, id DIV 100000 AS span, amount * 2 AS price FROM events WHERE amount < 90;
CREATE MATERIALIZED VIEW spans AS
SELECT span, kind, count(*) AS n, sum(price) AS price FROM sales GROUP BY span, kind;
CREATE MATERIALIZED VIEW kinds AS SELECT kind, max(price) AS best, sum(n) AS n FROM spans GROUP BY kind;
"""
_KINDS = 100


def measure(
    spark: SparkSession, folder: Path, rate: int = 10_000, seconds: int = 120, warm_up: int = 60
) -> dict[str, Any]:
    """Seconds by percentile from a file's appearance to the checkpoint that has its rows in all tables.

    Every second a file of `rate` rows appears, whatever the pipeline does. What a row waits in its producer
    for the others of its file is not counted, nor are files of the first `warm_up` seconds.
    """
    project_folder = folder / "hops"
    shutil.rmtree(project_folder, ignore_errors=True)
    project_folder.mkdir(parents=True)
    pipeline = Pipeline(project_folder, spark)
    try:
        pipeline.write("definitions/events.py", root(_SCHEMA))
        pipeline.write("definitions/views.sql", _VIEWS)
        _put(pipeline, 0, rate)
        with continuous(pipeline, _INTERVAL_MS) as happened:
            wait_until(lambda: bool(happened.checkpoints), "the first build")
            shown: dict[int, tuple[int, float]] = {}
            appeared_at: list[float] = []
            started = time.monotonic()
            for number in range(1, warm_up + seconds + 1):
                appeared_at.append(_put(pipeline, number, rate))
                record_checkpoints(pipeline, "events", happened.checkpoints, shown)
                time.sleep(max(0.0, started + number - time.monotonic()))
            _wait_for(rate * (len(appeared_at) + 1), pipeline, happened, shown)
        refreshes = [event["mode"] for event in happened.of("refresh") if event["mode"] != "no_data"]
        pipeline.verify()
    finally:
        pipeline.close()
    freshness_s = sorted(_freshness(appeared_at, [shown[number] for number in sorted(shown)], rate)[warm_up:])
    return {
        "rows_per_s": rate,
        "files": len(freshness_s),
        "checkpoints": len(shown),
        "modes": {mode: refreshes.count(mode) for mode in sorted(set(refreshes))},
        "median_s": freshness_s[len(freshness_s) // 2],
        "p95_s": freshness_s[int(len(freshness_s) * 0.95)],
        "slowest_s": freshness_s[-1],
    }


def _put(pipeline: Pipeline, number: int, rows: int) -> float:
    """Let a file appear all at once; returns when, in seconds of the epoch."""
    first = number * rows
    lines = [json.dumps({"id": n, "kind": n % _KINDS, "amount": n % 100}) for n in range(first, first + rows)]
    hidden = pipeline.write(f"input/.{number:06d}", "\n".join(lines) + "\n")
    hidden.rename(hidden.with_name(f"{number:06d}.json"))
    return time.time()


def _wait_for(rows: int, pipeline: Pipeline, happened: Happened, shown: dict[int, tuple[int, float]]) -> None:
    def all_rows_shown() -> bool:
        time.sleep(0.1)
        record_checkpoints(pipeline, "events", happened.checkpoints, shown)
        return bool(max(count for count, _ in shown.values()) == rows)

    wait_until(all_rows_shown, "the last rows")


def _freshness(appeared_at: list[float], shown: list[tuple[int, float]], rate: int) -> list[float]:
    """Seconds for each file of `rate` rows; the one that was there before the first of them has as many."""
    rows = [rows for rows, _ in shown]
    return [
        shown[bisect_left(rows, rate * (index + 2))][1] - appeared
        for index, appeared in enumerate(appeared_at)
    ]

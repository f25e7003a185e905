"""What a checkpoint costs that is published in other formats, too."""

from __future__ import annotations

import shutil
import statistics
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from tests.support.harness import Pipeline

from bench.running import cpu_s, cpu_since
from tautochrone.model.sink import PUBLICATIONS

__all__ = ["measure"]

_VIEWS = """
CREATE MATERIALIZED VIEW large AS SELECT id, amount * 2 AS twice FROM raw.events WHERE amount >= 10;
CREATE MATERIALIZED VIEW totals AS SELECT kind, count(*) AS n FROM raw.events GROUP BY kind;
"""
_FORMATS: tuple[tuple[str, ...], ...] = ((), *((name,) for name in PUBLICATIONS), tuple(PUBLICATIONS))


def measure(
    spark: SparkSession, folder: Path, sizes: tuple[int, ...] = (1_000, 200_000), rounds: int = 5
) -> dict[str, Any]:
    """One-shot runs over new rows, whose two views are published in no format, in one, and in all.

    Args:
        spark: a warm session.
        folder: of the pipelines.
        sizes: new rows of a run.
        rounds: runs that are measured, after two others.
    """
    results = [
        _of_formats(spark, folder / "-".join(("publish", str(rows), *formats)), rows, formats, rounds)
        for rows in sizes
        for formats in _FORMATS
    ]
    return {"rounds": rounds, "results": results}


def _of_formats(
    spark: SparkSession, folder: Path, rows: int, formats: tuple[str, ...], rounds: int
) -> dict[str, Any]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    names = ", ".join(f'"{name}"' for name in formats)
    pipeline = Pipeline(folder, spark, settings=f"[lake]\npublish = [{names}]\n" if formats else "")
    runs, deliveries = [], []
    try:
        sql = pipeline.session.sql
        sql("CREATE NAMESPACE lake.raw")
        sql("CREATE TABLE lake.raw.events (id BIGINT, kind INT, amount BIGINT) USING iceberg")
        pipeline.write("definitions/views.sql", _VIEWS)
        for number in range(rounds + 2):
            first = number * rows
            sql(
                "INSERT INTO lake.raw.events SELECT id, CAST(id % 20 AS INT), id % 100 "
                f"FROM range({first}, {first + rows})"
            )
            started, cpu = time.perf_counter(), cpu_s(spark)
            happened = pipeline.run()
            elapsed_ms = (time.perf_counter() - started) * 1000
            delivered = happened.of("sink_delivered")
            if len(delivered) != len(formats):
                raise RuntimeError(f"{len(delivered)} of {len(formats)} publications took the checkpoint")
            if number >= 2:
                runs.append((elapsed_ms, sum(cpu_since(spark, cpu).values())))
                deliveries += [event["duration_ms"] for event in delivered]
        pipeline.verify()
    finally:
        pipeline.close()
    return {
        "rows": rows,
        "formats": list(formats),
        "run_ms": statistics.median(elapsed_ms for elapsed_ms, _ in runs),
        "cpu_s": statistics.median(cpu for _, cpu in runs),
        "delivery_ms": statistics.median(deliveries) if deliveries else None,
    }

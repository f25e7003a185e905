"""What a checkpoint costs that is published in other formats, too, and what is read after many small ones."""

from __future__ import annotations

import json
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from tests.sinks.publications.toy_lake import READERS
from tests.support.harness import Happened, Pipeline

from bench.running import continuous, cpu_s, cpu_since, root, wait_until
from tautochrone.model.sink import PUBLICATIONS

__all__ = ["measure", "measure_small"]

_VIEWS = """
CREATE MATERIALIZED VIEW large AS SELECT id, amount * 2 AS twice FROM raw.events WHERE amount >= 10;
CREATE MATERIALIZED VIEW totals AS SELECT kind, count(*) AS n FROM raw.events GROUP BY kind;
"""
_SMALL_VIEW = "CREATE MATERIALIZED VIEW totals AS SELECT kind, count(*) AS n FROM events GROUP BY kind"
_KINDS = 20
_READS = 3
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


def measure_small(
    spark: SparkSession, folder: Path, checkpoints: int = 500, rows: int = 100
) -> dict[str, Any]:
    """Files and times of readers after many small checkpoints that are published in all formats, with and
    without maintenance.

    Each checkpoint adds rows to a streaming table and changes all rows of a view over it.

    Args:
        spark: a warm session.
        folder: of the pipelines.
        checkpoints: of each of the two pipelines.
        rows: that a checkpoint adds, a multiple of the view's 20 rows.
    """
    results = [
        _after_small(spark, folder / f"publish-small-{maintained}", checkpoints, rows, maintained=maintained)
        for maintained in (True, False)
    ]
    return {"checkpoints": checkpoints, "rows": rows, "results": results}


def _after_small(
    spark: SparkSession, folder: Path, checkpoints: int, rows: int, *, maintained: bool
) -> dict[str, Any]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    formats = json.dumps([*PUBLICATIONS])
    settings = f"[lake]\npublish = {formats}\n[maintenance]\nenabled = {json.dumps(maintained)}\n"
    pipeline = Pipeline(folder, spark, settings=settings)
    try:
        pipeline.write("definitions/events.py", root("id BIGINT, kind INT"))
        pipeline.write("definitions/totals.sql", _SMALL_VIEW)
        _put(pipeline, 0, rows)
        with continuous(pipeline, interval_ms=50) as happened:
            for number in range(1, checkpoints + 1):
                _wait_for(happened, "checkpoint", number)
                if number < checkpoints:
                    _put(pipeline, number, rows)
            _wait_for(happened, "sink_delivered", checkpoints * len(PUBLICATIONS))
        return {"maintained": maintained, "tables": _read(pipeline, checkpoints * rows)}
    finally:
        pipeline.close()


def _put(pipeline: Pipeline, number: int, rows: int) -> None:
    ids = range(number * rows, (number + 1) * rows)
    lines = "".join(json.dumps({"id": n, "kind": n % _KINDS}) + "\n" for n in ids)
    hidden = pipeline.write(f"input/.{number:06d}", lines)
    hidden.rename(hidden.with_name(f"{number:06d}.json"))


def _wait_for(happened: Happened, event: str, number: int) -> None:
    def has_happened() -> bool:
        time.sleep(0.02)
        return len(happened.of(event)) >= number

    wait_until(has_happened, f"{event} number {number}")


def _read(pipeline: Pipeline, rows: int) -> list[dict[str, Any]]:
    """What each table has, and how long its readers take for all rows.

    Raises:
        RuntimeError: a reader reads other rows.
    """
    tables: list[dict[str, Any]] = []
    for table, count in {"events": rows, "totals": _KINDS}.items():
        lake = [tuple(row) for row in pipeline.session.table(f"lake.default.{table}").collect()]
        files = pipeline.session.table(f"lake.default.{table}.files").count()
        formats = {}
        for name in PUBLICATIONS:
            database = "default.db" if name == "paimon" else "default"
            published = pipeline.folder / "storage/publications" / name / database / table
            times = []
            for _ in range(_READS):
                started = time.perf_counter()
                shown = READERS[name](published, None)
                times.append((time.perf_counter() - started) * 1000)
            own = shown.select([column for column in shown.column_names if not column.startswith("_hoodie_")])
            if sorted(map(tuple, (row.values() for row in own.to_pylist()))) != sorted(lake):
                raise RuntimeError(f"{name} shows other rows of {table}")
            formats[name] = {
                "read_ms": statistics.median(times),
                "stored_files": sum(path.is_file() for path in published.rglob("*")),
            }
        if len(lake) != count:
            raise RuntimeError(f"{table} has {len(lake)} rows")
        tables.append({"table": table, "files": files, "formats": formats})
    return tables

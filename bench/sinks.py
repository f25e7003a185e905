"""Deliveries to ClickHouse's embedded engine, against plain inserts of the same encoded rows.

Rows come as Arrow tables, as Spark gives them. A plain insert encodes and sends them. CPU time is that of
Python, the engine in its process, and the JVM together. See `sink_mirror` for what is measured how.
"""

from __future__ import annotations

import json
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from bench.running import continuous, root, wait_until
from bench.sink_mirror import ArrowRows, Cost, Mirror, generated, medians, ratios
from bench.sink_tasks import by_tasks
from tautochrone.sinks.clickhouse.rows import Batch
from tautochrone.testing.harness import Pipeline

__all__ = ["measure"]

_MINUTE_S = 60
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
    sizes: Sequence[int] = (1_000, 10_000, 100_000, 1_000_000, 10_000_000),
    rounds: int = 5,
    rates: Sequence[int] = (1_000, 10_000),
    intervals_s: Sequence[int] = (1, 5, 15, 60),
    files: int = 30,
    file_rows: int = 10_000,
    task_rows: int = 100_000,
    task_counts: Sequence[int] = (0, 1, 2),
    chunk_sizes: Sequence[int] = (1_000, 10_000, 100_000),
) -> dict[str, Any]:
    """Ratios of CPU and wall time, costs by interval, and the time from a checkpoint to the sink's pointer.

    Args:
        spark: a warm session.
        folder: of the engine and the pipeline.
        sizes: rows of one insert or transaction.
        rounds: that are measured, fewer of many rows; their medians count.
        rates: rows a second of the streams that are delivered at intervals.
        intervals_s: between two deliveries of them; each divides a minute.
        files: each of `file_rows` rows, that are delivered by a pipeline.
        task_rows: that are inserted over HTTP by Spark tasks.
        task_counts: how many; 0: the driver does.
        chunk_sizes: rows of one of their inserts.
    """
    bench_folder = folder / "sinks"
    shutil.rmtree(bench_folder, ignore_errors=True)
    bench_folder.mkdir(parents=True)
    # The engine stays open as long as one of its sinks is.
    mirror = Mirror.open(spark, bench_folder / "clickhouse", "bench")
    try:
        by_size = [_by_size(mirror, rows, max(1, min(rounds, 2_000_000 // rows))) for rows in sizes]
        intervals = [each for rate in rates for each in _intervals(mirror, rate, intervals_s)]
        tasks = by_tasks(spark, bench_folder, task_rows, task_counts, chunk_sizes)
        pointer = _pointer(spark, bench_folder, files, file_rows)
    finally:
        mirror.sink.close()
    return {
        "sizes": by_size,
        "intervals": intervals,
        "task_rows": task_rows,
        "tasks": tasks,
        "file_rows": file_rows,
        **pointer,
    }


_WAYS = ("encode", "hash", "plain", "append", "hashed", "keyed")
_HASHED_ROWS = 1_000_000
"""Of more rows only the plain insert and the transaction are compared."""


def _by_size(keeper: Mirror, rows: int, rounds: int) -> dict[str, Any]:
    """A round appends new rows in each way, and changes as many rows of the mirror.

    `hashed` is the transaction with the option compare = hash, in a database of its own.
    """
    mirror = keeper.beside(f"bench_{rows}")
    hashed = keeper.beside(f"bench_{rows}_hashed", compare="hash")
    mirror.engine.run("SYSTEM STOP MERGES")
    costs: dict[str, list[Cost]] = {way: [] for way in _WAYS}
    delivered = 0
    previous = generated(0, min(rows, _HASHED_ROWS))
    # The first transaction of a run hashes rows, and the first round warms up.
    mirror.deliver(previous)
    warm_up = 1 if rows <= _HASHED_ROWS else 0
    for round_ in range(1, rounds + 1 + warm_up):
        added = generated(round_ * rows, rows)
        encoded: list[Batch] = []
        ways: dict[str, Callable[[], object]] = {
            "encode": lambda added=added, encoded=encoded: encoded.extend(mirror.encoded(added)),
            "plain": lambda encoded=encoded: mirror.insert(encoded),
            "append": lambda added=added: mirror.deliver(added),
        }
        if rows <= _HASHED_ROWS:
            changed = generated((round_ - 1) * rows, rows, note="changed")
            ways["hash"] = lambda encoded=encoded: [batch.hashes for batch in encoded]
            ways["hashed"] = lambda added=added: hashed.deliver(added)
            ways["keyed"] = lambda new=changed, old=previous: mirror.deliver(new, old)
        others = [name for name in ways if name != "encode"]
        for name in ["encode", *(others if round_ % 2 else reversed(others))]:
            cost = mirror.cost(ways[name])
            if round_ > warm_up:
                costs[name].append(cost)
        previous = added
        delivered += rows
    counts = mirror.rows("plain"), mirror.rows("events")
    if counts != (delivered, delivered + min(rows, _HASHED_ROWS)):
        raise RuntimeError(f"rows of the plain and the mirrored table: {counts}")
    for each in (mirror, hashed):
        each.drop()
    plain = list(map(Cost.__add__, costs["encode"], costs["plain"]))
    measured = {name: medians(values) for name, values in costs.items() if values}
    result = {
        "rows": rows,
        "costs": measured,
        "append_to_plain": ratios(costs["append"], plain),
        "inserted_to_plain": ratios(
            list(map(Cost.__sub__, costs["append"], costs["encode"])), costs["plain"]
        ),
    }
    if rows <= _HASHED_ROWS:
        result["keyed_to_append"] = ratios(costs["keyed"], costs["append"])
    return result


def _intervals(mirror: Mirror, rate: int, intervals_s: Sequence[int]) -> list[dict[str, Any]]:
    """What a minute of a stream costs, delivered at intervals; nothing waits for its time to come."""
    measured = []
    first = 1_000_000_000
    for interval_s in intervals_s:
        count = rate * interval_s
        changes = [generated(first + index * count, count) for index in range(_MINUTE_S // interval_s)]
        first += rate * _MINUTE_S

        def plain(changes: list[ArrowRows] = changes) -> None:
            for change in changes:
                mirror.insert(mirror.encoded(change))

        def transactions(changes: list[ArrowRows] = changes) -> None:
            for change in changes:
                mirror.deliver(change)

        plain_cost, cost = mirror.cost(plain), mirror.cost(transactions)
        measured.append(
            {
                "rate": rate,
                "interval_s": interval_s,
                "transactions": len(changes),
                "plain_cpu_s": plain_cost.cpu_s,
                "plain_wall_s": plain_cost.wall_s,
                "cpu_s": cost.cpu_s,
                "wall_s": cost.wall_s,
            }
        )
    return measured


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

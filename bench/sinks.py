"""Deliveries to ClickHouse's embedded engine, against plain inserts of the same encoded rows.

Rows come as Arrow tables, as Spark gives them. A plain insert encodes and sends them; a transaction also
hashes each row, which costs more than its insert, so that is measured by itself too. CPU time is that of
Python, the engine in its process, and the JVM together.

Merges are stopped while ways are compared: both leave as many parts and rows to merge, but the longer one
would get most of the CPU time of the merges that run in the background.
"""

from __future__ import annotations

import json
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import types as spark_types

from bench.running import continuous, cpu_s, cpu_since, root, wait_until
from bench.sink_tasks import by_tasks
from tautochrone.model.lake import RowChange
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.sink import Intent, TransactionId
from tautochrone.sinks.clickhouse.engines import Engine, open_engine
from tautochrone.sinks.clickhouse.options import clickhouse_options
from tautochrone.sinks.clickhouse.rows import Batch, batches
from tautochrone.sinks.clickhouse.sink import ClickHouseSink
from tautochrone.sinks.clickhouse.tables import Tables
from tautochrone.testing.harness import Pipeline

__all__ = ["measure"]

_SCHEMA = spark_types.StructType(
    [
        spark_types.StructField("id", spark_types.LongType()),
        spark_types.StructField("kind", spark_types.StringType()),
        spark_types.StructField("amount", spark_types.DecimalType(12, 2)),
        spark_types.StructField("changed_at", spark_types.TimestampType()),
        spark_types.StructField("note", spark_types.StringType()),
    ]
)
_FENCE = Fence(1)
_CHANGED_AT = datetime(2026, 1, 1, tzinfo=UTC)
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


@dataclass(frozen=True, slots=True)
class _ArrowRows:
    """Rows as Spark gives them to the driver."""

    table: pa.Table

    @property
    def columns(self) -> list[str]:
        return list(self.table.column_names)

    def toArrow(self) -> pa.Table:  # noqa: N802
        return self.table

    def toLocalIterator(self) -> Iterator[Any]:  # noqa: N802
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class _Cost:
    """Wall and CPU time in seconds."""

    wall_s: float
    cpu_s: float

    def __add__(self, other: _Cost) -> _Cost:
        return _Cost(self.wall_s + other.wall_s, self.cpu_s + other.cpu_s)


@dataclass(slots=True)
class _Mirror:
    """A sink of the embedded engine, and a plain table of the same structure."""

    spark: SparkSession
    engine: Engine
    sink: ClickHouseSink
    tables: Tables
    mirrored: TableName
    checkpoint: int = field(default=0)

    @classmethod
    def open(cls, spark: SparkSession, folder: Path, database: str) -> _Mirror:
        options = clickhouse_options(
            "bench", {"url": f"clickhouse://embedded/{folder}", "database": database, "order_by.events": "id"}
        )
        engine = open_engine("bench", options)
        sink = ClickHouseSink("bench", engine, options)
        sink.fence(_FENCE)
        mirrored = TableName("lake", ("default",), "events")
        sink.ensure(mirrored, _SCHEMA, (), _FENCE)
        tables = Tables("bench", engine, options)
        engine.run(f"CREATE TABLE {database}.plain AS {tables.rows(mirrored)}")
        return cls(spark, engine, sink, tables, mirrored)

    def encoded(self, rows: _ArrowRows) -> list[Batch]:
        """The rows as they are sent, in one batch."""
        count = rows.table.num_rows
        return list(batches(rows, self.tables.columns(self.mirrored), count, count))

    def insert(self, encoded: list[Batch]) -> None:
        """The plain insert."""
        columns = self.tables.columns(self.mirrored)
        for number, batch in enumerate(encoded):
            self.tables.insert("plain", batch.table(columns, 1, 1, number), columns)

    def deliver(self, added: _ArrowRows, removed: _ArrowRows | None = None) -> None:
        """One transaction, as a delivery does it."""
        self.checkpoint += 1
        transaction = TransactionId(
            incarnation="bench", sink="bench", checkpoint=CheckpointNumber(self.checkpoint), fence=_FENCE
        )
        intent = Intent(transaction=transaction, versions={self.mirrored: Version(str(self.checkpoint))})
        self.sink.begin(intent)
        change = RowChange(added=added, removed=removed, rows=added.table.num_rows)
        self.sink.prepare(transaction, self.sink.write(transaction, self.mirrored, change))
        self.sink.commit(transaction, _FENCE)

    def cost(self, work: Callable[[], object]) -> _Cost:
        before, started = cpu_s(self.spark), time.perf_counter()
        work()
        wall_s = time.perf_counter() - started
        return _Cost(wall_s, sum(cpu_since(self.spark, before).values()))

    def rows(self, table: str) -> int:
        ((count,),) = self.engine.rows(f"SELECT toString(count()) FROM {table}")
        return int(count)


def measure(
    spark: SparkSession,
    folder: Path,
    rows: int = 100_000,
    rounds: int = 5,
    rate: int = 1000,
    intervals_s: Sequence[int] = (1, 5, 15, 60),
    files: int = 30,
    file_rows: int = 10_000,
    task_counts: Sequence[int] = (0, 1, 2),
    chunk_sizes: Sequence[int] = (1_000, 10_000, 100_000),
) -> dict[str, Any]:
    """Ratios of CPU and wall time, costs by interval, and the time from a checkpoint to the sink's pointer.

    Args:
        spark: a warm session.
        folder: of the engine and the pipeline.
        rows: of one insert or transaction.
        rounds: that are measured; their medians count.
        rate: rows a second of the stream that is delivered at intervals.
        intervals_s: between two deliveries of it; each divides a minute.
        files: each of `file_rows` rows, that are delivered by a pipeline.
        task_counts: Spark tasks that insert `rows` rows over HTTP; 0: the driver does.
        chunk_sizes: rows of one of their inserts.
    """
    bench_folder = folder / "sinks"
    shutil.rmtree(bench_folder, ignore_errors=True)
    bench_folder.mkdir(parents=True)
    mirror = _Mirror.open(spark, bench_folder / "clickhouse", "bench")
    try:
        mirror.engine.run("SYSTEM STOP MERGES")
        appended = _append(mirror, rows, rounds)
        mirror.engine.run("SYSTEM START MERGES")
        intervals = _intervals(mirror, rate, intervals_s)
        tasks = by_tasks(spark, bench_folder, rows, task_counts, chunk_sizes)
        pointer = _pointer(spark, bench_folder, files, file_rows)
    finally:
        mirror.sink.close()
    return {
        "rows": rows,
        **appended,
        "rate": rate,
        "intervals": intervals,
        "tasks": tasks,
        "file_rows": file_rows,
        **pointer,
    }


def _append(mirror: _Mirror, rows: int, rounds: int) -> dict[str, Any]:
    """A round appends new rows in each way, and changes as many rows of the mirror."""
    costs: dict[str, list[_Cost]] = {way: [] for way in ("encode", "hash", "plain", "append", "keyed")}
    # The first round warms up, and the rows that the next one changes come before each.
    previous = _generated(0, rows)
    mirror.deliver(previous)
    for round_ in range(1, rounds + 2):
        added, changed = (
            _generated(round_ * rows, rows),
            _generated((round_ - 1) * rows, rows, note="changed"),
        )
        encoded: list[Batch] = []
        ways: dict[str, Callable[[], object]] = {
            "encode": lambda added=added, encoded=encoded: encoded.extend(mirror.encoded(added)),
            "hash": lambda encoded=encoded: [batch.hashes for batch in encoded],
            "plain": lambda encoded=encoded: mirror.insert(encoded),
            "append": lambda added=added: mirror.deliver(added),
            "keyed": lambda new=changed, old=previous: mirror.deliver(new, old),
        }
        names = list(ways) if round_ % 2 else ["encode", "append", "hash", "plain", "keyed"]
        for name in names:
            cost = mirror.cost(ways[name])
            if round_ > 1:
                costs[name].append(cost)
        previous = added
    _require(mirror, rows * (rounds + 1), rows * (rounds + 2))
    plain = list(map(_Cost.__add__, costs["encode"], costs["plain"]))
    return {
        "costs": {name: _medians(measured) for name, measured in costs.items()},
        "append_to_plain": _ratios(costs["append"], plain),
        "append_to_hashed": _ratios(costs["append"], list(map(_Cost.__add__, plain, costs["hash"]))),
        "keyed_to_append": _ratios(costs["keyed"], costs["append"]),
    }


def _intervals(mirror: _Mirror, rate: int, intervals_s: Sequence[int]) -> list[dict[str, Any]]:
    """What a minute of a stream costs, delivered at intervals; nothing waits for its time to come."""
    measured = []
    first = 1_000_000_000
    for interval_s in intervals_s:
        count = rate * interval_s
        changes = [_generated(first + index * count, count) for index in range(_MINUTE_S // interval_s)]
        first += rate * _MINUTE_S

        def plain(changes: list[_ArrowRows] = changes) -> None:
            for change in changes:
                mirror.insert(mirror.encoded(change))

        def transactions(changes: list[_ArrowRows] = changes) -> None:
            for change in changes:
                mirror.deliver(change)

        plain_cost, cost = mirror.cost(plain), mirror.cost(transactions)
        measured.append(
            {
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


def _generated(first: int, count: int, note: str = "new") -> _ArrowRows:
    numbers = range(first, first + count)
    columns = [
        pa.array(numbers, pa.int64()),
        pa.array([f"kind {number % 20}" for number in numbers], pa.string()),
        pa.array([Decimal(number % 10_000) / 100 for number in numbers], pa.decimal128(12, 2)),
        pa.repeat(pa.scalar(_CHANGED_AT, pa.timestamp("us", tz="UTC")), count),
        pa.array([f"{note} {number}" for number in numbers], pa.string()),
    ]
    return _ArrowRows(pa.table(columns, names=_SCHEMA.names))


def _require(mirror: _Mirror, plain: int, mirrored: int) -> None:
    """Both sides hold what was sent."""
    counts = mirror.rows("bench.plain"), mirror.rows("bench.events")
    if counts != (plain, mirrored):
        raise RuntimeError(f"rows of the plain and the mirrored table: {counts}, not {(plain, mirrored)}")


def _medians(costs: list[_Cost]) -> dict[str, float]:
    return {
        "wall_s": statistics.median(cost.wall_s for cost in costs),
        "cpu_s": statistics.median(cost.cpu_s for cost in costs),
    }


def _ratios(costs: list[_Cost], others: list[_Cost]) -> dict[str, float]:
    """Medians of the ratios within one round."""
    pairs = list(zip(costs, others, strict=True))
    return {
        "wall_s": statistics.median(cost.wall_s / other.wall_s for cost, other in pairs),
        "cpu_s": statistics.median(cost.cpu_s / other.cpu_s for cost, other in pairs),
    }

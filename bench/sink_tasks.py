"""Rows that Spark's tasks insert into a ClickHouse server, by the number of tasks and the size of a chunk.

The server is that of the tests: ClickHouse's engine behind an HTTP interface that does one statement after
the other. So what more tasks gain is their encoding; a server that inserts in parallel gains more.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.sink import Intent, TransactionId
from tautochrone.sinks import open_sink

__all__ = ["by_tasks"]

_FRONT = Path(__file__).parents[1] / "tests/sinks/clickhouse/front.py"
_TABLE = TableName("lake", ("default",), "events")
_FENCE = Fence(1)
_COLUMNS = (
    "id",
    "concat('kind ', id % 20) AS kind",
    "CAST(id % 10000 AS DECIMAL(12, 2)) AS amount",
    "timestamp_seconds(1767225600 + id) AS changed_at",
    "concat('new ', id) AS note",
)


@dataclass(slots=True)
class _Server:
    port: int
    spark: SparkSession
    checkpoint: int = 0

    def deliver(self, rows: int, tasks: int, chunk_rows: int) -> dict[str, Any]:
        """One transaction that replaces all rows of a table, sent by so many tasks or by the driver (0)."""
        options = {
            "url": f"clickhouse://127.0.0.1:{self.port}/bench",
            "task_rows": "1" if tasks else "0",
            "chunk_rows": str(chunk_rows),
        }
        sink = open_sink("bench", "clickhouse", options)
        frame = self.spark.range(0, rows, 1, tasks or 1).selectExpr(*_COLUMNS)
        self.checkpoint += 1
        transaction = TransactionId(
            incarnation="bench", sink="bench", checkpoint=CheckpointNumber(self.checkpoint), fence=_FENCE
        )
        version = Version(str(self.checkpoint))
        try:
            sink.fence(_FENCE)
            sink.ensure(_TABLE, frame.schema, (), _FENCE)
            started = time.perf_counter()
            shown = sink.published()
            sink.begin(
                Intent(
                    transaction=transaction,
                    versions={_TABLE: version},
                    base=None if shown is None else shown.transaction,
                    replaced=(_TABLE,),
                )
            )
            chunks = sink.replace(transaction, _TABLE, frame)
            sink.prepare(transaction, chunks)
            sink.commit(transaction, _FENCE)
            wall_s = time.perf_counter() - started
            shown = sum(digest.rows for digest in sink.audit(_TABLE, transaction.checkpoint).values())
        finally:
            sink.close()
        if shown != rows:
            raise RuntimeError(f"the server shows {shown} rows of {rows}")
        return {
            "tasks": tasks,
            "chunk_rows": chunk_rows,
            "chunks": len(chunks),
            "wall_s": wall_s,
            "rows_per_s": rows / wall_s,
        }


def by_tasks(
    spark: SparkSession,
    folder: Path,
    rows: int,
    task_counts: Sequence[int] = (0, 1, 2),
    chunk_sizes: Sequence[int] = (1_000, 10_000, 100_000),
) -> list[dict[str, Any]]:
    """One transaction of so many rows for each number of tasks and size of a chunk; 0 tasks: the driver."""
    arguments = [sys.executable, str(_FRONT), str(folder / "server"), "0"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            server = _Server(int(process.stdout.readline()), spark)
            server.deliver(min(rows, 1000), 2, 1000)
            return [
                server.deliver(rows, tasks, chunk_rows) for tasks in task_counts for chunk_rows in chunk_sizes
            ]
        finally:
            process.kill()

"""A sink of the embedded engine, a plain table of the same structure, rows for both, and what each costs.

Merges are stopped while ways are compared: both leave as many parts and rows to merge, but the longer one
would get most of the CPU time of the merges that run in the background.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as compute
from pyspark.sql import types as spark_types

from tautochrone.model.lake import RowChange
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.sink import Intent, TransactionId
from tautochrone.sinks.clickhouse.engines import Engine, open_engine
from tautochrone.sinks.clickhouse.options import ClickHouseOptions, clickhouse_options
from tautochrone.sinks.clickhouse.rows import Batch, batches
from tautochrone.sinks.clickhouse.server import Server
from tautochrone.sinks.clickhouse.sink import ClickHouseSink
from tautochrone.sinks.clickhouse.tables import ClickHouseTables

__all__ = ["ArrowRows", "Cost", "Mirror", "generated", "medians", "ratios"]

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
_COLLECTED_ROWS = 100_000
"""Of more rows a sink would ask Spark for one partition after the other; here all come as one table."""


@dataclass(frozen=True, slots=True)
class ArrowRows:
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
class Cost:
    """Wall and CPU time in seconds."""

    wall_s: float
    cpu_s: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.wall_s + other.wall_s, self.cpu_s + other.cpu_s)

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.wall_s - other.wall_s, self.cpu_s - other.cpu_s)


@dataclass(slots=True)
class Mirror:
    """A sink of the embedded engine, and a plain table of the same structure."""

    folder: Path
    database: str
    options: ClickHouseOptions
    engine: Engine
    sink: ClickHouseSink
    tables: ClickHouseTables
    mirrored: TableName
    checkpoint: int = field(default=0)

    @classmethod
    def open(cls, folder: Path, database: str, compare: str = "auto") -> Mirror:
        options = clickhouse_options(
            "bench",
            {
                "url": f"clickhouse://embedded/{folder}",
                "database": database,
                "order_by.events": "id",
                "compare": compare,
                # While merges are stopped.
                "max_parts": "10000",
            },
        )
        engine = open_engine("bench", options)
        sink = ClickHouseSink("bench", [Server("bench", engine, options)])
        sink.fence(_FENCE)
        mirrored = TableName("lake", ("default",), "events")
        sink.ensure(mirrored, _SCHEMA, (), _FENCE)
        tables = ClickHouseTables("bench", engine, options)
        engine.run(f"CREATE TABLE {database}.plain AS {tables.rows(mirrored)}")
        return cls(folder, database, options, engine, sink, tables, mirrored)

    def beside(self, database: str, compare: str = "auto") -> Mirror:
        """Another sink in the same engine."""
        return Mirror.open(self.folder, database, compare)

    def drop(self) -> None:
        """Close the sink and forget its rows."""
        self.engine.run(f"DROP DATABASE {self.database} SYNC")
        self.sink.close()

    def encoded(self, rows: ArrowRows) -> list[Batch]:
        """The rows as they are sent."""
        columns = self.tables.columns(self.mirrored)
        return list(batches(rows, columns, self.options.chunk_rows, _COLLECTED_ROWS))

    def insert(self, encoded: list[Batch]) -> None:
        """The plain insert."""
        columns = self.tables.columns(self.mirrored)
        for number, batch in enumerate(encoded):
            self.tables.insert("plain", batch.table(columns, 1, 1, number), columns)

    def deliver(self, added: ArrowRows, removed: ArrowRows | None = None) -> None:
        """One transaction, as a delivery does it."""
        self.checkpoint += 1
        transaction = TransactionId(
            incarnation="bench", sink="bench", checkpoint=CheckpointNumber(self.checkpoint), fence=_FENCE
        )
        shown = self.sink.published()
        base = None if shown is None else shown.transaction
        versions = {self.mirrored: Version(str(self.checkpoint))}
        self.sink.begin(Intent(transaction=transaction, versions=versions, base=base))
        change = RowChange(added=added, removed=removed, rows=min(added.table.num_rows, _COLLECTED_ROWS))
        self.sink.prepare(transaction, self.sink.write(transaction, self.mirrored, change))
        self.sink.commit(transaction, _FENCE)

    def cost(self, work: Callable[[], object]) -> Cost:
        before, started = time.process_time(), time.perf_counter()
        work()
        wall_s = time.perf_counter() - started
        return Cost(wall_s, time.process_time() - before)

    def rows(self, table: str) -> int:
        ((count,),) = self.engine.rows(f"SELECT toString(count()) FROM {self.database}.{table}")
        return int(count)


def generated(first: int, count: int, note: str = "new") -> ArrowRows:
    numbers = pa.array(np.arange(first, first + count, dtype=np.int64))
    kinds = pa.array(np.arange(first, first + count, dtype=np.int64) % 20)
    cents = pa.array(np.arange(first, first + count, dtype=np.int64) % 10_000).cast(pa.decimal128(19, 0))
    columns = [
        numbers,
        compute.binary_join_element_wise("kind", kinds.cast(pa.string()), " "),
        cents.cast(pa.decimal128(21, 2)).cast(pa.decimal128(12, 2)),
        pa.repeat(pa.scalar(_CHANGED_AT, pa.timestamp("us", tz="UTC")), count),
        compute.binary_join_element_wise(note, numbers.cast(pa.string()), " "),
    ]
    return ArrowRows(pa.table(columns, names=_SCHEMA.names))


def medians(costs: list[Cost]) -> dict[str, float]:
    return {
        "wall_s": statistics.median(cost.wall_s for cost in costs),
        "cpu_s": statistics.median(cost.cpu_s for cost in costs),
    }


def ratios(costs: list[Cost], others: list[Cost]) -> dict[str, float]:
    """Medians of the ratios within one round."""
    pairs = list(zip(costs, others, strict=True))
    return {
        "wall_s": statistics.median(cost.wall_s / other.wall_s for cost, other in pairs),
        "cpu_s": statistics.median(cost.cpu_s / other.cpu_s for cost, other in pairs),
    }

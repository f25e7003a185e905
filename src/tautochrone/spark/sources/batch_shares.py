"""A batch from Kafka is shared evenly among tasks, whatever the partitions of its topics hold.

    hot partition 0           ████████████████████████████████   cold ones 1 … 7   █ █ █ █ █ █ █
    4 tasks                   ├────────┼────────┼────────┼────────────────────────────────────┤

The rule needs no memory: it looks at the offsets of the batch alone. So added partitions, another number of
cores and a batch that is planned again change nothing but who reads which offsets. See `BatchShares.java`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame

from tautochrone.model import limits
from tautochrone.spark.jvm.driver_calls import singleton

__all__ = ["batch_shares", "cutting_table", "grouped_rows"]


def cutting_table(table: JavaObject) -> JavaObject:
    """A table of Spark's Kafka source whose streams cut the long ranges of a batch."""
    cutting: JavaObject = batch_shares().cutting(table, limits.MIN_TASK_RECORDS, limits.MAX_TASK_RECORDS)
    return cutting


def grouped_rows(rows: DataFrame) -> DataFrame:
    """The rows of a batch from a `cutting_table` with one task for each share. They are the rows as they are
    where a shuffle or another source is between."""
    grouped = batch_shares().grouped(
        rows._jdf,  # noqa: SLF001
        limits.MIN_TASK_RECORDS,
        limits.MAX_TASK_RECORDS,
        limits.MAX_TASK_RANGES,
    )
    return DataFrame(grouped, rows.sparkSession)


def batch_shares() -> Any:
    """The object `BatchShares` of Spark's JVM."""
    return singleton(Path(__file__).with_name("BatchShares.java"))

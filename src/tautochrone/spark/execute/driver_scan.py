"""Reading few rows of a table in the driver: a read by a plan and a job takes three times as long.

`DriverScan.java` reads them by the readers that Spark's own tasks use, so values, deleted rows, defaults and
partition columns are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame

from tautochrone.model import limits
from tautochrone.spark.jvm.driver_calls import singleton, split

__all__ = ["read_in_driver", "stored_positions"]

_SOURCE = Path(__file__).with_name("DriverScan.java")


def read_in_driver(frame: DataFrame) -> JavaObject | None:
    """The rows of a DataFrame, as a Java array of `InternalRow`.

    None: it does more than to filter one table's rows and to pick columns, or reads more than
    `MAX_SINGLE_TASK_ROWS`; then Spark reads it.
    """
    java_session, plan = _java_session(frame), frame._jdf.queryExecution().analyzed()  # noqa: SLF001
    return _driver_scan().rows(java_session, plan, limits.MAX_SINGLE_TASK_ROWS)


def stored_positions(rows: DataFrame, stored: DataFrame) -> Mapping[str, Sequence[int]] | None:
    """By file the positions of one stored copy of each of some rows.

    None: a row is not stored with the same bytes, or `stored` is not read here (see `read_in_driver`).

    Args:
        rows: few rows that the driver holds.
        stored: the same columns, then the file's name and the position in it.
    """
    wanted = rows._jdf.queryExecution().executedPlan().executeCollect()  # noqa: SLF001
    plan = stored._jdf.queryExecution().analyzed()  # noqa: SLF001
    answer = _driver_scan().positions(
        _java_session(stored), wanted, rows._jdf.schema(), plan, limits.MAX_SINGLE_TASK_ROWS  # noqa: SLF001
    )
    if answer is None:
        return None
    texts = split(str(answer))
    return {
        file: [int(position) for position in positions.split(",")]
        for file, positions in zip(texts[::2], texts[1::2], strict=True)
    }


def _driver_scan() -> Any:
    return singleton(_SOURCE)


def _java_session(frame: DataFrame) -> JavaObject:
    return frame.sparkSession._jsparkSession  # noqa: SLF001

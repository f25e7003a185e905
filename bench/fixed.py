"""The minimum cost of a refresh: a tiny delta, and the same on a base ten times as large."""

from __future__ import annotations

import shutil
import statistics
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from bench.messages import cost_ms, messages_of
from bench.project import Measured

__all__ = ["measure"]

_FIRST = 5
"""Refreshes before Java has compiled much."""

_VIEW = """
CREATE MATERIALIZED VIEW totals TBLPROPERTIES ('tautochrone.refresh-policy' = 'incremental') AS
SELECT c.city, count(*) AS n, sum(o.amount) AS amount
FROM raw.orders o JOIN raw.customers c ON o.customer = c.id GROUP BY c.city;
"""


def measure(
    spark: SparkSession, folder: Path, rows: int, delta: int = 100, rounds: int = 15, warm: int = 40
) -> dict[str, Any]:
    """Refresh times in ms of a join below an aggregate, after warm-up, for `rows` and `10 * rows`; and the
    Spark jobs, and messages between Python and the JVM, that one more such checkpoint takes.

    A run goes on for days, and Java compiles what it does often: the first refreshes take longer.

    Args:
        spark: a warm session.
        folder: of the pipelines.
        rows: of the smaller base.
        delta: rows that each change inserts.
        rounds: changes that are measured.
        warm: changes before those.
    """
    first, small, message_counts = _times(spark, folder / "fixed-1", rows, delta, (warm, rounds))
    _, large, _ = _times(spark, folder / "fixed-10", rows * 10, delta, (warm, rounds))
    return {
        "rows": rows,
        "delta": delta,
        "warm": warm,
        "first_ms": first,
        "refresh_ms": small,
        "refresh_ms_on_ten_times": large,
        "median_ms": statistics.median(small),
        "median_ms_on_ten_times": statistics.median(large),
        "grows_by": statistics.median(large) / max(1, statistics.median(small)),
        **message_counts,
        "message_ms": cost_ms(spark),
    }


def _times(
    spark: SparkSession, folder: Path, rows: int, delta: int, rounds: tuple[int, int]
) -> tuple[list[int], list[int], dict[str, int]]:
    """Refresh times in ms of the first and of the later refreshes, and what one more takes."""
    warm, measured_rounds = rounds
    shutil.rmtree(folder, ignore_errors=True)
    measured = Measured(folder, spark)
    try:
        run = measured.outside.sql
        run("CREATE NAMESPACE lake.raw")
        run(
            "CREATE TABLE lake.raw.customers USING iceberg TBLPROPERTIES ('format-version' = '3') AS "
            f"SELECT id, concat('city ', id % 50) AS city FROM range({max(100, rows // 10)}) ORDER BY id"
        )
        run(
            "CREATE TABLE lake.raw.orders USING iceberg TBLPROPERTIES ('format-version' = '3') AS "
            f"SELECT id, id % {max(100, rows // 10)} AS customer, id % 100 AS amount FROM range({rows})"
        )
        measured.pipeline.write("definitions/view.sql", _VIEW)
        times = []
        with measured.opened() as refresh:
            refresh()
            for round_ in range(warm + measured_rounds + 1):
                first = rows + round_ * delta
                run(
                    f"INSERT INTO lake.raw.orders SELECT id, id % 97 AS customer, 7L AS amount "
                    f"FROM range({first}, {first + delta})"
                )
                if round_ == warm + measured_rounds:
                    # Counting costs time, so this round is not measured.
                    jobs = measured.pipeline.spark_jobs()
                    messages = messages_of(spark, refresh)
                    message_counts = {"messages": messages, "jobs": measured.pipeline.spark_jobs() - jobs}
                    break
                times.append(refresh().refresh("totals")["duration_ms"])
        measured.right()
        return times[:_FIRST], times[warm:], message_counts
    finally:
        measured.close()

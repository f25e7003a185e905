"""Deliveries of few changed rows of many tables, to several sinks at once."""

from __future__ import annotations

import shutil
import statistics
import time
from pathlib import Path
from typing import Any

import psycopg
from pyspark.sql import SparkSession
from tests.support.harness import Happened, Pipeline
from tests.support.postgresql import fresh_database

from bench.cdc_continuous import captured
from bench.running import continuous, cpu_s, cpu_since, wait_until

__all__ = ["measure_sink_tables"]

_SINKS = """
from pyspark import pipelines as dp

dp.create_sink("mirror", "clickhouse", {{"url": "clickhouse://embedded/{folder}", "database": "lake"}})
dp.create_sink("archive", "postgresql", {{"url": "{url}"}})
"""
_NAMES = ("mirror", "archive")


def measure_sink_tables(
    spark: SparkSession, folder: Path, tables: int = 30, rows: int = 10, rounds: int = 5
) -> dict[str, Any]:
    """Seconds from a published checkpoint until ClickHouse and PostgreSQL have it, in which a few rows of
    many captured tables were updated.

    Args:
        spark: a warm session.
        folder: of the pipeline and the embedded engine.
        tables: that are captured and mirrored.
        rows: of each that are updated.
        rounds: checkpoints that are measured, after two others.
    """
    measurements = []
    properties = {"tautochrone.sinks": ", ".join(_NAMES)}
    engine = folder / "sink_tables_clickhouse"
    shutil.rmtree(engine, ignore_errors=True)
    archive = fresh_database()
    with captured(spark, folder / "sink_tables", tables, properties=properties) as (pipeline, connection):
        pipeline.write("definitions/sinks.py", _SINKS.format(folder=engine, url=archive))
        with continuous(pipeline, 500) as happened:
            wait_until(lambda: _delivered(happened), "the first deliveries")
            for number in range(rounds + 2):
                wait_until(lambda: happened[-1]["event"] == "no_news", "an idle pipeline")
                seen, checkpoints = len(happened), len(happened.checkpoints)
                with connection.transaction():
                    for table in range(tables):
                        connection.execute(f"UPDATE t{table} SET n = n + 1 WHERE id <= {rows}")
                wait_until(lambda: len(happened.checkpoints) > checkpoints, "a checkpoint")  # noqa: B023
                jobs, cpu, published = pipeline.spark_jobs(), cpu_s(spark), time.monotonic()
                wait_until(lambda: _delivered(happened), "the deliveries")
                elapsed_s = time.monotonic() - published
                deliveries = Happened(happened[seen:]).of("sink_delivered")
                if number >= 2:
                    measurements.append(
                        {
                            "delivered_s": elapsed_s,
                            "jobs": pipeline.spark_jobs() - jobs,
                            "cpu_s": sum(cpu_since(spark, cpu).values()),
                            **{f"{each['sink']}_ms": each["duration_ms"] for each in deliveries},
                        }
                    )
                    _require(deliveries, tables * rows * 2)
        _require_equal(pipeline, archive, tables)
    return {
        "tables": tables,
        "rows": tables * rows,
        "rounds": measurements,
        **{
            f"median_{name}": statistics.median(entry[name] for entry in measurements)
            for name in measurements[0]
        },
    }


def _delivered(happened: Happened) -> bool:
    """Whether both sinks have the newest checkpoint."""
    if not happened.checkpoints:
        return False
    newest = {event["sink"]: event["checkpoint"] for event in happened.of("sink_delivered")}
    return all(newest.get(name, 0) >= happened.checkpoints[-1] for name in _NAMES)


def _require(deliveries: list[dict[str, Any]], rows: int) -> None:
    counts = {event["sink"]: event["rows"] for event in deliveries}
    if counts != dict.fromkeys(_NAMES, rows):
        raise RuntimeError(f"{counts} rows were delivered, not {rows} to each sink")


def _require_equal(pipeline: Pipeline, archive: str, tables: int) -> None:
    with psycopg.connect(archive) as connection:
        for table in range(tables):
            stored = connection.execute(f"SELECT count(*), sum(n) FROM lake.shop_t{table}").fetchone()
            expected = pipeline.query(f"SELECT count(*), sum(n) FROM shop_t{table}")
            if [stored] != expected:
                raise RuntimeError(f"the sink holds {stored} of table {table}, the lake {expected}")

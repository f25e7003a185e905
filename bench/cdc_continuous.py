"""A captured PostgreSQL database in `run --continuous`: many tables that change at once, few changes, and
many changes all the time."""

from __future__ import annotations

import os
import shutil
import statistics
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psycopg
from pyspark.sql import SparkSession
from tests.support.harness import Happened, Pipeline
from tests.support.postgresql import fresh_database

from bench.running import continuous, cpu_s, cpu_since, record_checkpoints, wait_until

__all__ = ["captured", "measure_idle", "measure_lag", "measure_tables"]

_CAPTURE = """
from tautochrone.sources import postgresql

postgresql.capture("shop", url="{url}", tables="public.*", mode="{mode}",
                   table_properties={properties})
"""
_ROWS = 100
_LAG_ROWS = 10_000
_TRANSACTIONS_PER_S = 10
_LAG_LIMIT_S = 120.0
_STATEMENTS_PER_S = 5
_WRITER = """
CREATE SCHEMA writer;
CREATE TABLE writer.commits (number int PRIMARY KEY, at timestamptz NOT NULL);
CREATE PROCEDURE writer.write(transactions int, step int, size int) LANGUAGE plpgsql AS $$
DECLARE started timestamptz := clock_timestamp(); base int;
BEGIN
  FOR number IN 1 .. transactions LOOP
    PERFORM pg_sleep(extract(epoch FROM started - clock_timestamp()) + number::float8 / {per_s});
    base := number * step % size;
    {updates}
    INSERT INTO writer.commits VALUES (number, clock_timestamp());
    COMMIT;
  END LOOP;
END $$
"""


def measure_tables(
    spark: SparkSession, folder: Path, tables: int = 100, rounds: int = 5, mode: str = "full"
) -> dict[str, Any]:
    """Times in ms of checkpoints in each of which half of many captured tables change in one transaction, 20
    rows of each.

    Args:
        spark: a warm session.
        folder: of the pipeline.
        tables: that are captured.
        rounds: checkpoints that are measured, after two others.
        mode: of the capture.
    """
    measurements, changed = [], tables // 2
    with captured(spark, folder / "cdc_tables", tables, mode=mode) as (pipeline, connection):
        started = time.monotonic()
        with continuous(pipeline, 500) as happened:
            wait_until(lambda: bool(happened.checkpoints) and not _waiting(happened), "the first copy")
            first_s = time.monotonic() - started
            for number in range(rounds + 2):
                wait_until(lambda: happened[-1]["event"] == "no_news", "an idle pipeline")
                seen, checkpoints = len(happened), len(happened.checkpoints)
                jobs, cpu, began = pipeline.spark_jobs(), cpu_s(spark), time.monotonic()
                with connection.transaction():
                    for table in range(changed):
                        connection.execute(f"UPDATE t{table} SET n = n + 1 WHERE id <= 20")
                wait_until(lambda: len(happened.checkpoints) > checkpoints, "a checkpoint")  # noqa: B023
                elapsed_s = time.monotonic() - began
                new = Happened(happened[seen:])
                if number >= 2:
                    measurements.append(
                        {
                            "readable_ms": elapsed_s * 1000,
                            "checkpoint_ms": new.of("checkpoint")[-1]["duration_ms"],
                            "jobs": pipeline.spark_jobs() - jobs,
                            "cpu_s": sum(cpu_since(spark, cpu).values()),
                        }
                    )
        totals = connection.execute("SELECT sum(n) FROM t0").fetchone()
        stored = pipeline.query("SELECT sum(n) FROM shop_t0")
        if stored != [totals]:
            raise RuntimeError(f"the table holds {stored}, the database {totals}")
    return {
        "tables": tables,
        "changed": changed,
        "first_s": first_s,
        "rounds": measurements,
        **{
            f"median_{name}": statistics.median(entry[name] for entry in measurements)
            for name in measurements[0]
        },
    }


def measure_idle(
    spark: SparkSession,
    folder: Path,
    rates: Sequence[int] = (5, 300),
    interval_ms: int = 10_000,
    seconds: float = 60,
    mode: str = "full",
) -> dict[str, Any]:
    """CPU of this process, its JVM and their workers as part of one CPU, while three captured tables get few
    changes.

    Args:
        spark: a warm session.
        folder: of the pipeline.
        rates: changes a second, of all tables together; five statements a second make them.
        interval_ms: between checkpoints.
        seconds: that are measured for each rate.
        mode: of the capture.
    """
    parts = []
    with captured(spark, folder / "cdc_idle", 3, mode=mode) as (pipeline, connection):
        ended, changed = threading.Event(), rates[0]

        def write() -> None:
            number = 0
            while not ended.wait(1 / _STATEMENTS_PER_S):
                number += 1
                connection.execute(
                    f"UPDATE t{number % 3} SET n = n + 1 WHERE id <= %s", (changed // _STATEMENTS_PER_S,)
                )

        writer = threading.Thread(target=write)
        with continuous(pipeline, interval_ms) as happened:
            wait_until(lambda: bool(happened.checkpoints) and not _waiting(happened), "the first copy")
            writer.start()
            for changed in rates:
                seen = len(happened.checkpoints)
                wait_until(lambda: len(happened.checkpoints) >= seen + 3, "the first checkpoints")  # noqa: B023
                before, jobs, started = len(happened.checkpoints), pipeline.spark_jobs(), time.monotonic()
                cpu = cpu_s(spark)
                time.sleep(seconds)
                spent, elapsed_s = cpu_since(spark, cpu), time.monotonic() - started
                checkpoints, jobs = len(happened.checkpoints) - before, pipeline.spark_jobs() - jobs
                share = {side: seconds / elapsed_s for side, seconds in spent.items()}
                parts.append(
                    {
                        "rate": changed,
                        "checkpoints": checkpoints,
                        "jobs_of_a_checkpoint": jobs / max(1, checkpoints),
                        "cpu_share": share,
                        "cpu_share_in_all": sum(share.values()),
                    }
                )
            ended.set()
            writer.join()
    return {"interval_ms": interval_ms, "rates": parts}


def measure_lag(
    spark: SparkSession,
    folder: Path,
    rate: int = 5_000,
    tables: int = 10,
    seconds: int = 120,
    warm_up: int = 60,
    interval_ms: int = 1_000,
    mode: str = "full",
) -> dict[str, Any]:
    """Seconds by percentile from a transaction's commit to the checkpoint that shows it in all tables.

    Ten times a second a transaction of the database updates rows of all tables, whatever the pipeline does.
    A process of the database writes it and says when.

    Args:
        spark: a warm session.
        folder: of the pipeline.
        rate: changes a second, of all tables together.
        tables: that are captured, of 10,000 rows each.
        seconds: that are measured, after `warm_up` others.
        interval_ms: between checkpoints.
        mode: of the capture.
    """
    changed = rate // _TRANSACTIONS_PER_S // tables
    transactions = (warm_up + seconds) * _TRANSACTIONS_PER_S
    shown: dict[int, tuple[int, float]] = {}
    with captured(spark, folder / "cdc_lag", tables, _LAG_ROWS, mode=mode) as (pipeline, connection):
        updates = "\n    ".join(
            f"UPDATE t{table} SET n = n + 1 WHERE id > base AND id <= base + step;" for table in range(tables)
        )
        connection.execute(_WRITER.format(per_s=_TRANSACTIONS_PER_S, updates=updates))
        problems: list[Exception] = []

        def write() -> None:
            try:
                connection.execute(f"CALL writer.write({transactions}, {changed}, {_LAG_ROWS})")
            except psycopg.Error as problem:
                problems.append(problem)

        writer = threading.Thread(target=write)
        with continuous(pipeline, interval_ms) as happened:
            wait_until(lambda: bool(happened.checkpoints) and not _waiting(happened), "the first copy")
            record_checkpoints(pipeline, "shop_log", happened.checkpoints, shown)
            copied = max(rows for rows, _ in shown.values())
            expected = copied + transactions * changed * tables
            before, started, load = cpu_s(spark), time.monotonic(), []
            writer.start()
            deadline = started + warm_up + seconds + _LAG_LIMIT_S
            while max(rows for rows, _ in shown.values()) < expected:
                if problems or time.monotonic() > deadline:
                    raise RuntimeError(f"{expected} rows of the log are not shown: {problems}")
                time.sleep(0.2)
                if len(happened.checkpoints) > len(shown):
                    record_checkpoints(pipeline, "shop_log", happened.checkpoints, shown)
                load.append(os.getloadavg()[0])
            spent, elapsed_s = cpu_since(spark, before), time.monotonic() - started
            writer.join()
        committed = connection.execute(
            "SELECT extract(epoch FROM at)::float8 FROM writer.commits ORDER BY number"
        ).fetchall()
        for table in range(tables):
            sums = connection.execute(f"SELECT count(*), sum(n) FROM t{table}").fetchone()
            stored = pipeline.query(f"SELECT count(*), sum(n) FROM shop_t{table}")
            if stored != [sums]:
                raise RuntimeError(f"table {table} holds {stored}, the database {sums}")
    if max(rows for rows, _ in shown.values()) != expected:
        raise RuntimeError(f"the log has other rows than {expected}")
    newest = sorted(shown.values())
    rows = [rows for rows, _ in newest]
    lags = sorted(
        newest[bisect_left(rows, copied + (number + 1) * changed * tables)][1] - at
        for number, (at,) in enumerate(committed)
        if number >= warm_up * _TRANSACTIONS_PER_S
    )
    late_s = committed[-1][0] - committed[0][0] - (transactions - 1) / _TRANSACTIONS_PER_S
    return {
        "rate": rate,
        "tables": tables,
        "seconds": seconds,
        "transactions": len(lags),
        "checkpoints": len(shown),
        "median_s": lags[len(lags) // 2],
        "p95_s": lags[int(len(lags) * 0.95)],
        "slowest_s": lags[-1],
        # The database may not be able to write as fast as it should.
        "writer_late_s": late_s,
        "cpu_share": {side: seconds / elapsed_s for side, seconds in spent.items()},
        "median_load": statistics.median(load),
    }


def _waiting(happened: Happened) -> bool:
    """Whether the newest checkpoint lacks tables."""
    newest = happened.checkpoints[-1]
    return any(event["checkpoint"] == newest for event in happened.of("refresh_waiting"))


@contextmanager
def captured(
    spark: SparkSession,
    folder: Path,
    tables: int,
    rows: int = _ROWS,
    properties: Mapping[str, str] = MappingProxyType({}),
    mode: str = "full",
) -> Iterator[tuple[Pipeline, psycopg.Connection[Any]]]:
    """A pipeline that captures tables `t0`, `t1` … of a new database, and a connection to it.

    Args:
        properties: of each captured table.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    url = fresh_database()
    pipeline = Pipeline(folder, spark)
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            for table in range(tables):
                connection.execute(
                    f"CREATE TABLE t{table} (id int PRIMARY KEY, name text, n bigint NOT NULL, "
                    "price numeric(10, 2), changed timestamptz DEFAULT now())"
                )
                connection.execute(
                    f"INSERT INTO t{table} (id, name, n, price) "
                    f"SELECT i, 'name ' || i, 0, i FROM generate_series(1, {rows}) i"
                )
            pipeline.write(
                "definitions/shop.py",
                _CAPTURE.format(url=url, mode=mode, properties={"*.*": dict(properties)}),
            )
            yield pipeline, connection
    finally:
        pipeline.close()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
                "WHERE database = current_database()"
            )

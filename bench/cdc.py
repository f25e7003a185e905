"""Capture of a PostgreSQL database: its rows are copied, then its log is followed. Beside it Spark's own JDBC
source appends the same rows to a table."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import psycopg
from pyspark.sql import SparkSession

from bench.running import cpu_s, cpu_since
from tautochrone.spark.session.jars import Artifact
from tautochrone.testing.harness import Happened, Pipeline
from tautochrone.testing.postgresql import fresh_database, restart_server

__all__ = ["JDBC_DRIVER", "measure"]

JDBC_DRIVER = Artifact("org.postgresql", "postgresql", "42.7.4")

_TABLE = """
CREATE TABLE accounts (id bigint PRIMARY KEY, owner text NOT NULL, balance numeric(12, 2) NOT NULL,
                       changed timestamptz NOT NULL DEFAULT now())
"""
_CHANGES = """
CREATE PROCEDURE change(first bigint, events bigint) LANGUAGE plpgsql AS $$
BEGIN
  FOR transaction IN 0 .. (events / 100 - 1) LOOP
    UPDATE accounts SET balance = balance + 1, changed = now()
    WHERE id BETWEEN first + transaction * 100 AND first + transaction * 100 + 99;
    COMMIT;
  END LOOP;
END $$
"""
_CAPTURE = """
from tautochrone.sources import postgresql

postgresql.capture("bank", url="{url}", tables="public.*")
"""


def measure(
    spark: SparkSession, folder: Path, events: int = 500_000, *, with_jdbc: bool = True
) -> dict[str, Any]:
    """Rows and events a second, and CPU seconds of Python and the JVM for a million of them.

    The server runs on the same machine; its CPU time is not counted.

    Args:
        spark: a warm session.
        folder: of the pipeline.
        events: rows that are copied first; then all of them are updated, a hundred in each transaction.
        with_jdbc: Spark's JDBC source appends the same rows; needs its driver (`JDBC_DRIVER`), and the port
            5432 for the server.
    """
    project_folder = folder / "cdc"
    shutil.rmtree(project_folder, ignore_errors=True)
    project_folder.mkdir(parents=True)
    url = fresh_database()
    pipeline = Pipeline(project_folder, spark)
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(_TABLE)
            connection.execute(_CHANGES)
            connection.execute(
                "INSERT INTO accounts "
                "SELECT i, 'owner ' || i %% 1000, 100 FROM generate_series(0, %s::bigint - 1) i",
                (events,),
            )
            database = connection.info.dbname
        appended = _jdbc_append(spark, database, folder, events) if with_jdbc else None
        with psycopg.connect(url, autocommit=True) as connection:
            pipeline.write("definitions/bank.py", _CAPTURE.format(url=url))
            copied = _run(pipeline)
            # The first change of a process is slower: Java has not compiled yet what it does.
            connection.execute("CALL change(0, %s)", (min(events, 10_000),))
            _run(pipeline)
            without_news = _run(pipeline)
            connection.execute("CALL change(0, %s)", (events,))
            followed = _run(pipeline)
            expected = connection.execute("SELECT count(*), sum(balance) FROM accounts").fetchone()
        stored = pipeline.query("SELECT count(*), sum(balance) FROM bank_accounts")
        if stored != [expected]:
            raise RuntimeError(f"the table holds {stored}, the database {expected}")
    finally:
        pipeline.close()
        _drop_slots(url)
    results = {
        "events": events,
        "copied_per_s": events / copied["wall_s"],
        # A run loads the definitions and opens the lake, whatever there is to do.
        "run_without_news_s": without_news["wall_s"],
        "run_without_news_cpu_s": without_news["cpu_s"],
        "bulk_s": copied["wall_s"] - copied["merge_s"] - without_news["wall_s"],
        "copied_cpu_s_per_million": copied["cpu_s"] / events * 1e6,
        "events_per_s": events / followed["wall_s"],
        "events_cpu_s_per_million": followed["cpu_s"] / events * 1e6,
        "merge_s": followed["merge_s"],
        "wall_s": followed["wall_s"],
    }
    if appended is not None:
        results["jdbc_append_s"] = appended["wall_s"]
        results["jdbc_append_cpu_s_per_million"] = appended["cpu_s"] / events * 1e6
    return results


def _jdbc_append(spark: SparkSession, database: str, folder: Path, events: int) -> dict[str, float]:
    """What Spark alone does: ranges of the key by JDBC, into an Iceberg table."""
    # Java has no sockets of files.
    restart_server(tcp=True)
    catalog = f"{folder.name}_append"
    options = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "hadoop",
        ".warehouse": str(folder / "append"),
    }
    for key, value in options.items():
        spark.conf.set(f"spark.sql.catalog.{catalog}{key}", value)
    ranges = spark.read.jdbc(
        f"jdbc:postgresql://127.0.0.1:5432/{database}",
        "accounts",
        column="id",
        lowerBound=0,
        upperBound=events,
        numPartitions=8,
        properties={"user": "postgres", "driver": "org.postgresql.Driver", "fetchsize": "10000"},
    )
    spark.sql(f"DROP TABLE IF EXISTS {catalog}.bank.accounts")
    # Java has not compiled yet what the first write does.
    ranges.where("id < 10000").writeTo(f"{catalog}.bank.accounts").create()
    before, started = cpu_s(spark), time.monotonic()
    ranges.writeTo(f"{catalog}.bank.accounts").append()
    elapsed_s = time.monotonic() - started
    return {"wall_s": elapsed_s, "cpu_s": sum(cpu_since(spark, before).values())}


def _run(pipeline: Pipeline) -> dict[str, float]:
    before, started = cpu_s(pipeline.session), time.monotonic()
    happened = pipeline.run()
    elapsed_s = time.monotonic() - started
    if happened.state != "COMPLETED":
        raise RuntimeError("; ".join(str(event["error"]) for event in happened if "error" in event))
    spent = cpu_since(pipeline.session, before)
    return {
        "wall_s": elapsed_s,
        "cpu_s": sum(spent.values()),
        "merge_s": _merge_ms(happened) / 1000,
    }


def _merge_ms(happened: Happened) -> float:
    """How long the tables took after their log was written."""
    return float(sum(event["duration_ms"] for event in happened.of("refresh")))


def _drop_slots(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
            "WHERE database = current_database()"
        )

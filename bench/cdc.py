"""Capture of a PostgreSQL database: its rows are copied, then its log is followed. Beside it Spark's own JDBC
source appends the same rows to a table, and Debezium with plain `MERGE` follows the same log."""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
from pyspark.sql import SparkSession
from tests.support.harness import Happened, Pipeline
from tests.support.postgresql import fresh_database

from bench.cdc_peer import PlainTable, debezium_jars, listen_on_tcp, run_debezium
from bench.running import cpu_s, cpu_since
from tautochrone.errors import EnvironmentProblemError

__all__ = ["measure"]

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
_WARM_UP_ROWS = 10_000
_CAPTURE = """
from tautochrone.sources import postgresql

postgresql.capture("bank", url="{url}", tables="public.*", mode="{mode}")
"""


def measure(
    spark: SparkSession, folder: Path, events: int = 500_000, *, no_peer: str | None = None
) -> dict[str, Any]:
    """Rows and events a second, and CPU seconds of Python and the JVMs for a million of them.

    The server runs on the same machine; its CPU time is not counted.

    Args:
        spark: a warm session.
        folder: of the pipeline.
        events: rows that are copied first, after a few of another database, as Spark's JDBC source appends
            a few first; then all of them are updated, a hundred in each transaction.
        no_peer: why Spark's JDBC source and Debezium with `MERGE` do not do the same. They need the JDBC
            driver (`bench.cdc_peer.JDBC_DRIVER`), the port 5432 for the server, and Debezium's jars.
    """
    warm_up = _copied(spark, folder / "cdc_warm_up", min(events, _WARM_UP_ROWS), "full")
    _copied(spark, folder / "cdc_warm_up", min(events, _WARM_UP_ROWS), "light")
    url = fresh_database()
    pipeline = _pipeline(spark, folder / "cdc", url, "full")
    light_pipeline = _pipeline(spark, folder / "cdc_light", url, "light")
    light: dict[str, dict[str, float]] = {}
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            _fill(connection, events)
            connection.execute(_CHANGES)
            database = connection.info.dbname
        peer: dict[str, Any] = {} if no_peer is None else {"skipped": no_peer}
        with ExitStack() as opened:
            table = debezium = None
            if no_peer is None:
                table = PlainTable(spark, folder)
                address = listen_on_tcp()
                peer["append"] = table.append(address, database, events)
                try:
                    debezium = opened.enter_context(run_debezium(debezium_jars(), address, database, folder))
                except EnvironmentProblemError as problem:
                    peer["skipped"] = str(problem)
            connection = opened.enter_context(psycopg.connect(url, autocommit=True))
            copied = _run(pipeline)
            light["copied"] = _run(light_pipeline)
            # The first change of a process is slower: Java has not compiled yet what it does.
            few = min(events, 10_000) // 100 * 100
            connection.execute("CALL change(0, %s)", (few,))
            _run(pipeline)
            _run(light_pipeline)
            if debezium is not None and table is not None:
                debezium.take(few)
                table.merge(debezium.changes)
                debezium.pause()
            without_news = _run(pipeline)
            connection.execute("CALL change(0, %s)", (events,))
            if debezium is not None and table is not None:
                peer["log"] = debezium.take(events)
                peer["merge"] = table.merge(debezium.changes)
            followed = _run(pipeline)
            light["followed"] = _run(light_pipeline)
            expected = connection.execute("SELECT count(*), sum(balance) FROM accounts").fetchone()
            if debezium is not None and table is not None:
                table.require_equal(pipeline.reader.sql("SELECT * FROM bank_accounts"))
        for each in (pipeline, light_pipeline):
            _require_rows(each, expected)
    finally:
        pipeline.close()
        light_pipeline.close()
        _drop_slots(url)
    results: dict[str, Any] = {
        "events": events,
        "first_copy_rows": min(events, _WARM_UP_ROWS),
        "first_copy_s": warm_up["wall_s"],
        "copied_per_s": events / copied["wall_s"],
        "copied_s": copied["wall_s"],
        "build_s": copied["merge_s"],
        # A run loads the definitions and opens the lake, whatever there is to do.
        "loaded_s": copied["wall_s"] - copied["executed_s"],
        "run_without_news_s": without_news["wall_s"],
        "run_without_news_cpu_s": without_news["cpu_s"],
        "bulk_s": copied["executed_s"] - copied["merge_s"],
        "copied_cpu_s_per_million": copied["cpu_s"] / events * 1e6,
        "events_per_s": events / followed["wall_s"],
        "events_cpu_s_per_million": followed["cpu_s"] / events * 1e6,
        "merge_s": followed["merge_s"],
        "wall_s": followed["wall_s"],
        "light_copied_s": light["copied"]["executed_s"],
        "light_copied_cpu_s_per_million": light["copied"]["cpu_s"] / events * 1e6,
        "light_build_s": light["copied"]["merge_s"],
        "light_events_per_s": events / light["followed"]["wall_s"],
        "light_events_cpu_s_per_million": light["followed"]["cpu_s"] / events * 1e6,
    }
    if "append" in peer:
        results["jdbc_append_s"] = peer["append"]["wall_s"]
        results["jdbc_append_cpu_s_per_million"] = peer["append"]["cpu_s"] / events * 1e6
    if "merge" in peer:
        results["peer"] = _peer(peer["log"], peer["merge"], events)
    if "skipped" in peer:
        results["peer_skipped"] = peer["skipped"]
    return results


def _require_rows(pipeline: Pipeline, expected: tuple[Any, ...] | None) -> None:
    stored = pipeline.query("SELECT count(*), sum(balance) FROM bank_accounts")
    if stored != [expected]:
        raise RuntimeError(f"the table holds {stored}, the database {expected}")


def _pipeline(spark: SparkSession, folder: Path, url: str, mode: str) -> Pipeline:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    pipeline = Pipeline(folder, spark)
    pipeline.write("definitions/bank.py", _CAPTURE.format(url=url, mode=mode))
    return pipeline


def _copied(spark: SparkSession, folder: Path, rows: int, mode: str) -> dict[str, float]:
    """The first copy of a process: Java has not compiled yet what it does, and no Python worker runs."""
    url = fresh_database()
    pipeline = _pipeline(spark, folder, url, mode)
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            _fill(connection, rows)
        return _run(pipeline)
    finally:
        pipeline.close()
        _drop_slots(url)


def _fill(connection: psycopg.Connection, rows: int) -> None:
    connection.execute(_TABLE)
    connection.execute(
        "INSERT INTO accounts SELECT i, 'owner ' || i %% 1000, 100 FROM generate_series(0, %s::bigint - 1) i",
        (rows,),
    )


def _peer(log: dict[str, float], merge: dict[str, float], events: int) -> dict[str, float]:
    """Debezium and `MERGE`, one after the other."""
    return {
        "events_per_s": events / (log["wall_s"] + merge["wall_s"]),
        "log_s": log["wall_s"],
        "merge_s": merge["wall_s"],
        "log_cpu_s_per_million": log["cpu_s"] / events * 1e6,
        "cpu_s_per_million": (log["cpu_s"] + merge["cpu_s"]) / events * 1e6,
    }


def _run(pipeline: Pipeline) -> dict[str, float]:
    before, started = cpu_s(pipeline.session), time.monotonic()
    with pipeline.opened() as (job, happened):
        opened = time.monotonic()
        pipeline.execute(job)
        executed_s = time.monotonic() - opened
    elapsed_s = time.monotonic() - started
    if happened.state != "COMPLETED":
        raise RuntimeError("; ".join(str(event["error"]) for event in happened if "error" in event))
    spent = cpu_since(pipeline.session, before)
    return {
        "wall_s": elapsed_s,
        "executed_s": executed_s,
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

"""What a captured database leaves in the lake, in the driver and in its own log, and what merging a few
changes costs in a table of any size."""

from __future__ import annotations

import shutil
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import psycopg
from pyspark.sql import SparkSession
from tests.support.harness import Happened, Pipeline
from tests.support.postgresql import fresh_database

from bench.running import continuous, cpu_s, cpu_since, wait_until

__all__ = ["measure_state"]

_CAPTURE = """
from tautochrone.sources import postgresql

postgresql.capture("bank", url="{url}", tables="public.*", {more})
"""
_MAINTENANCE = "[maintenance]\nkeep_last = 1\nkeep = '0s'\nevery = '0s'\nhistory = '0s'\nmin_versions = 1\n"
_TIMES_AS_LARGE = 10
_SPREADS = {
    # Keys that follow each other, and keys all over the table.
    "in a row": "id >= {first} AND id < {first} + {changes}",
    "all over": "id % ({rows} / {changes}) = {first} % ({rows} / {changes})",
}


def measure_state(
    spark: SparkSession,
    folder: Path,
    rows: int = 1_000_000,
    mode: str = "full",
    changes: int = 1_000,
    rounds: int = 4,
) -> dict[str, Any]:
    """Bytes while two tables are copied and afterwards, and times of checkpoints that change a few of their
    rows.

    Args:
        spark: a warm session.
        folder: of the pipeline.
        rows: of one table; the other has ten times as many.
        mode: of the capture.
        changes: rows that are updated in a checkpoint.
        rounds: checkpoints that are measured of each table and each spread of keys, after another one.
    """
    folder = folder / "cdc_state"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    url = fresh_database()
    pipeline = Pipeline(folder, spark)
    sizes = {"small": rows, "large": rows * _TIMES_AS_LARGE}
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            for table, count in sizes.items():
                connection.execute(
                    f"CREATE TABLE {table} (id bigint PRIMARY KEY, owner text NOT NULL, "
                    "balance numeric(12, 2) NOT NULL, changed timestamptz NOT NULL)"
                )
                connection.execute(
                    f"INSERT INTO {table} "
                    "SELECT i, md5(i::text), (random() * 1e6)::numeric(12, 2), now() - random() * "
                    f"interval '1 year' FROM generate_series(0, {count - 1}) i"
                )
            pipeline.write("definitions/bank.py", _CAPTURE.format(url=url, more=f"mode={mode!r}"))
            with _watched(connection) as most, _timed(spark) as copy:
                _completed(pipeline.run())
            states = {"copied": _stored(pipeline, connection)}
            merges = _merges(pipeline, connection, sizes, changes, rounds)
            states["merged"] = _stored(pipeline, connection)
            connection.execute("DELETE FROM small WHERE id % 10 = 3")
            deleted = rows // 10
            _completed(pipeline.run())
            states["deleted"] = _stored(pipeline, connection)
            if mode == "full":
                pipeline.write("definitions/bank.py", _CAPTURE.format(url=url, more="log_retention='0s'"))
            pipeline.write("tautochrone.toml", _MAINTENANCE)
            pipeline.reload()
            for _ in range(2):
                connection.execute("UPDATE small SET balance = 0 WHERE id = 0")
                _completed(pipeline.run())
            states["shortened"] = _stored(pipeline, connection)
            for table in sizes:
                expected = connection.execute(f"SELECT count(*), sum(balance) FROM {table}").fetchone()
                stored = pipeline.query(f"SELECT count(*), sum(balance) FROM bank_{table}")
                if stored != [expected]:
                    raise RuntimeError(f"{table} holds {stored}, the database {expected}")
    finally:
        pipeline.close()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
                "WHERE database = current_database()"
            )
    return {
        "rows": sizes,
        "mode": mode,
        "changes": changes,
        "deleted": deleted,
        "copy": copy,
        "most": most,
        "states": states,
        "merges": merges,
    }


def _merges(
    pipeline: Pipeline,
    connection: psycopg.Connection[Any],
    sizes: dict[str, int],
    changes: int,
    rounds: int,
) -> dict[str, dict[str, Any]]:
    """Of each spread of keys: medians of each table, and how many times as long the large one takes."""
    measured: dict[tuple[str, str], list[dict[str, float]]] = {
        (spread, table): [] for spread in _SPREADS for table in sizes
    }
    with continuous(pipeline, 500) as happened:
        for number in range(rounds + 1):
            for (spread, table), rounds_of in measured.items():
                wait_until(lambda: happened[-1:] and happened[-1]["event"] == "no_news", "an idle pipeline")
                seen = len(happened)
                where = _SPREADS[spread].format(first=number * changes, changes=changes, rows=sizes[table])
                updated = connection.execute(f"UPDATE {table} SET balance = balance + 1 WHERE {where}")
                if updated.rowcount != changes:
                    raise RuntimeError(f"{updated.rowcount} rows are updated instead of {changes}")
                with _timed(pipeline.session) as spent:
                    wait_until(lambda: Happened(happened[seen:]).checkpoints, "a checkpoint")  # noqa: B023
                merge_ms = Happened(happened[seen:]).refresh(f"bank_{table}")["duration_ms"]
                rounds_of.append({**spent, "merge_s": merge_ms / 1000})
    results = {}
    for spread in _SPREADS:
        medians = {
            table: {
                name: statistics.median(entry[name] for entry in measured[spread, table][1:])
                for name in ("wall_s", "cpu_s", "merge_s")
            }
            for table in sizes
        }
        grows_by = {name: medians["large"][name] / medians["small"][name] for name in medians["small"]}
        results[spread] = {**medians, "grows_by": grows_by}
    return results


@contextmanager
def _timed(spark: SparkSession) -> Iterator[dict[str, float]]:
    """Times of the block, filled at its end."""
    spent: dict[str, float] = {}
    before, started = cpu_s(spark), time.monotonic()
    yield spent
    spent["wall_s"] = time.monotonic() - started
    spent["cpu_s"] = sum(cpu_since(spark, before).values())


@contextmanager
def _watched(connection: psycopg.Connection[Any]) -> Iterator[dict[str, float]]:
    """The most that the block held at a time, filled while it runs."""
    most = {"python_bytes": 0.0, "slot_bytes": 0.0}
    process, ended = psutil.Process(), threading.Event()
    before = process.memory_info().rss

    def watch() -> None:
        while not ended.wait(0.2):
            most["python_bytes"] = max(most["python_bytes"], process.memory_info().rss - before)
            most["slot_bytes"] = max(most["slot_bytes"], _slot_bytes(connection))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield most
    finally:
        ended.set()
        watcher.join()


def _stored(pipeline: Pipeline, connection: psycopg.Connection[Any]) -> dict[str, Any]:
    """Bytes of data files of the newest versions, and what the driver and the database hold."""
    session = pipeline.session
    shown = session.sql("SHOW TABLES IN lake.default").collect()
    if session.sql("SHOW NAMESPACES IN lake LIKE '_tautochrone'").collect():
        shown += session.sql("SHOW TABLES IN lake._tautochrone").collect()
    names = [f"{row['namespace']}.{row['tableName']}" for row in shown]
    tables = {}
    for name in names:
        (row,) = session.sql(
            f"SELECT coalesce(sum(file_size_in_bytes), 0) AS bytes, count(*) AS files, "
            f"coalesce(sum(IF(content = 0, record_count, -record_count)), 0) AS rows FROM lake.{name}.files"
        ).collect()
        tables[name] = row.asDict()
    jvm: Any = session._jvm  # noqa: SLF001
    jvm.System.gc()
    runtime = jvm.java.lang.Runtime.getRuntime()
    return {
        "tables": tables,
        "lake_bytes": sum(file.stat().st_size for file in pipeline.folder.rglob("*") if file.is_file()),
        "jvm_bytes": runtime.totalMemory() - runtime.freeMemory(),
        "slot_bytes": _slot_bytes(connection),
    }


def _slot_bytes(connection: psycopg.Connection[Any]) -> float:
    """How much of the database's log its slots keep."""
    row = connection.execute(
        "SELECT coalesce(max(pg_current_wal_lsn() - restart_lsn), 0)::float8 FROM pg_replication_slots "
        "WHERE database = current_database()"
    ).fetchone()
    assert row is not None
    return float(row[0])


def _completed(happened: Happened) -> None:
    if happened.state != "COMPLETED":
        raise RuntimeError("; ".join(str(event["error"]) for event in happened if "error" in event))

"""Copied ranges merged with events, over random schedules of a real server."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pymysql
import pytest
from pyspark.sql import SparkSession
from tests.sources.postgresql.schedules import FIRST_ROWS, RANGES, Event, Schedule, with_columns_by_name
from tests.sources.postgresql.test_visibility import require_states_of_the_log, run_schedules

from tautochrone.sources.mysql import bulk
from tautochrone.sources.mysql.change_log import Capture, MySQLChangeLog

from .conftest import Schema, on

_DIGITS = " UNION ALL ".join(f"SELECT {digit} AS n" for digit in range(10))
_NUMBERS = f"""
SELECT 1 + a.n + 10 * b.n + 100 * c.n + 1000 * d.n AS seq
FROM ({_DIGITS}) a, ({_DIGITS}) b, ({_DIGITS}) c, (SELECT 0 AS n UNION ALL SELECT 1) d
"""


class _Copy(threading.Thread):
    """Copies one range on a connection of its own."""

    def __init__(self, capture: Capture, low: int | None, high: int | None, delay_s: float) -> None:
        super().__init__()
        bounds = {"from": low, "to": high}
        self.chunk = json.dumps({name: str(key) for name, key in bounds.items() if key is not None})
        self.rows: list[Event] = []
        self.pass_at = 0
        self._capture, self._delay_s = capture, delay_s

    def run(self) -> None:
        time.sleep(self._delay_s)
        log = MySQLChangeLog(self._capture)
        rows, self.pass_at = log.read_chunk(self._capture.tables[0].name, self.chunk)
        self.rows = with_columns_by_name(rows.to_pylist())
        log.close()


@contextmanager
def _writers(schema: Schema, seed: int) -> Iterator[None]:
    ended = threading.Event()

    def write(number: int) -> None:
        pick = random.Random(seed * 10 + number)
        with schema.server.open_connection(database=schema.name) as connection:
            cursor = connection.cursor()
            while not ended.is_set():
                try:
                    cursor.execute("START TRANSACTION")
                    for _ in range(pick.randint(1, 4)):
                        cursor.execute(_change(pick))
                    cursor.execute("ROLLBACK" if pick.random() < 0.1 else "COMMIT")
                except pymysql.err.OperationalError:
                    cursor.execute("ROLLBACK")
                time.sleep(pick.random() * 0.006)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def _change(pick: random.Random) -> str:
    key, number, kind = pick.randint(1, 60), pick.randint(0, 10**9), pick.random()
    if kind < 0.5:
        return f"REPLACE INTO v VALUES ({key}, {number})"
    if kind < 0.7:
        return f"DELETE FROM v WHERE id = {key}"
    if kind < 0.8:
        return f"UPDATE IGNORE v SET id = id + 100 WHERE id = {key}"
    return f"UPDATE v SET n = n + 1 WHERE id BETWEEN {key} AND {key + 5}"


def _run_schedule(schema: Schema, seed: int) -> Schedule:
    pick = random.Random(seed)
    initial = ", ".join(f"({key}, {number})" for key, number in FIRST_ROWS.items())
    schema.run("DELETE FROM v", f"INSERT INTO v VALUES {initial}")
    capture = schema.capture()
    log = MySQLChangeLog(capture)
    position = log.begin("reader")
    with _writers(schema, seed):
        time.sleep(pick.random() * 0.03)
        copies = [_Copy(capture, low, high, pick.random() * 0.06) for low, high in RANGES]
        for copied in pick.sample(copies, len(copies)):
            copied.start()
        for copied in copies:
            copied.join()
        time.sleep(pick.random() * 0.03)
    batch = log.read(position, 1_000_000)
    log.close()
    assert batch.caught_up
    events = with_columns_by_name(batch.rows.to_pylist())
    return Schedule(
        rows=[row for copied in copies for row in copied.rows] + events,
        history=events,
        # A place of the log that was read when the chunk had been read: what came in between is lost.
        watermarks={number: copied.pass_at for number, copied in enumerate(copies)},
        pass_at=max(copied.pass_at for copied in copies),
        truth=dict(schema.rows("SELECT id, n FROM v")),
    )


@pytest.mark.spark
@pytest.mark.parametrize("count", [6, pytest.param(1000, marks=pytest.mark.slow)])
def test_random_schedules(spark: SparkSession, schema: Schema, count: int) -> None:
    """At the end of every transaction at which a table may be published, and at the end."""
    schema.run("CREATE TABLE v (id INT PRIMARY KEY, n BIGINT)")
    require_states_of_the_log(spark, run_schedules(lambda seed: _run_schedule(schema, seed), count))


@on("mysql")
@pytest.mark.parametrize(
    ("data_type", "key"),
    [
        ("INT UNSIGNED", "seq * 7"),
        ("VARCHAR(20) COLLATE utf8mb4_general_ci", "CONCAT(CHAR(96 + seq % 26), '''\\\\%', seq)"),
        pytest.param(
            "VARCHAR(20) CHARACTER SET latin1", "CONCAT('é', seq)", marks=pytest.mark.slow, id="latin1"
        ),
        ("BINARY(4)", "UNHEX(LPAD(HEX(seq * 9999), 8, '0'))"),
        ("DATETIME(3)", "'2026-01-01' + INTERVAL seq * 1001 * 1000 MICROSECOND"),
        ("DECIMAL(9, 2)", "seq / 4 - 100"),
    ],
)
def test_ranges_cover_every_key_once(
    schema: Schema, monkeypatch: pytest.MonkeyPatch, data_type: str, key: str
) -> None:
    schema.run(
        f"CREATE TABLE k (id {data_type}, part INT, a INT, PRIMARY KEY (id, part))",
        "SET SESSION sql_mode = ''",
        f"INSERT INTO k SELECT {key}, seq % 2, seq FROM ({_NUMBERS}) AS numbers",
        "ANALYZE TABLE k",
    )
    monkeypatch.setattr(bulk, "CHUNK_BYTES", 16 * 1024)
    log = schema.change_log()
    (chunks,) = log.begin("reader").bulk.pending.values()
    assert len(chunks) > 3
    numbers = [
        dict(row)["a"]
        for chunk in chunks
        for row in log.read_chunk(f"{schema.name}.k", chunk)[0]["columns"].to_pylist()
    ]
    log.close()
    assert sorted(map(int, numbers)) == list(range(1, 2001))

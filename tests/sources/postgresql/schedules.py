"""Random schedules: concurrent writers, chunks that are copied meanwhile, and the log of all that.

Some commits wait for a standby that never answers, and are released later. Their transactions are in the log,
and readable from it, before any snapshot sees them.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from tautochrone.sources.postgresql.change_log import Capture, PostgreSQLChangeLog
from tautochrone.sources.postgresql.connection import lsn_number
from tautochrone.sources.postgresql.tables import captured_tables, read_tables

__all__ = ["Schedule", "run_schedule"]

RELATION = "public.v"
_RANGES = ((None, 20), (20, 40), (40, 60), (60, None))


@dataclass(frozen=True)
class Schedule:
    """
    Attributes:
        rows: of the log table, copied ones too.
        watermarks: of each range: where the log was before its chunk was read.
        truth: the table at the end.
    """

    rows: list[dict[str, Any]]
    watermarks: dict[int, int]
    truth: dict[int, int]

    def merged_by_watermark(self) -> dict[int, int]:
        """What a merge gives that takes an event for newer than the chunk when its commit is in the log
        behind the watermark."""
        merged = {int(row["columns"]["id"]): row for row in self.rows if row["operation"] == "copy"}
        events = [row for row in self.rows if row["operation"] != "copy"]
        for event in sorted(events, key=lambda row: (row["point"], row["sequence"])):
            key = int(event["columns"]["id"])
            number = next(n for n, (_, end) in enumerate(_RANGES) if end is None or key < end)
            if event["point"] > self.watermarks[number]:
                merged.pop(key, None)
                if event["operation"] != "delete":
                    merged[key] = event
        return {key: int(row["columns"]["n"]) for key, row in merged.items()}


def run_schedule(url: str, seed: int) -> Schedule:
    pick = random.Random(seed)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = local")
        connection.execute("DROP TABLE IF EXISTS v")
        connection.execute("DROP PUBLICATION IF EXISTS schedules")
        connection.execute("CREATE TABLE v (id int PRIMARY KEY, n bigint)")
        connection.execute("INSERT INTO v SELECT i, 0 FROM generate_series(1, 40) i")
        tables = captured_tables(read_tables(connection, "schedules"), [RELATION], (), "schedules")
        capture = Capture("schedules", url, tables, f"s_{connection.info.dbname[-8:]}", "schedules")
        log = PostgreSQLChangeLog(capture)
        with _writers(url, seed):
            position = log.begin("reader")
            with _late_visibility(url):
                chunks = [_Chunk(capture, number, pick.random() * 0.06) for number in range(len(_RANGES))]
                for chunk in pick.sample(chunks, len(chunks)):
                    chunk.start()
                    time.sleep(pick.random() * 0.02)
                for chunk in chunks:
                    chunk.join()
                time.sleep(pick.random() * 0.03)
        query = "SELECT pg_current_wal_flush_lsn() >= %s::pg_lsn"
        (end,) = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone() or (None,)
        connection.execute("SELECT pg_logical_emit_message(true, 'schedules', '')")
        assert connection.execute(query, (end,)).fetchone() == (True,)
        events = log.read(position, 1_000_000)
        assert events.caught_up
        log.close()
        truth = dict(connection.execute("SELECT id, n FROM v").fetchall())
    rows = [row for chunk in chunks for row in chunk.rows] + events.rows.to_pylist()
    for row in rows:
        row["columns"] = dict(row["columns"])
    return Schedule(rows, {chunk.number: chunk.watermark for chunk in chunks}, truth)


class _Chunk(threading.Thread):
    """Copies one range on a connection of its own."""

    def __init__(self, capture: Capture, number: int, delay_s: float) -> None:
        super().__init__()
        self.number = number
        self.rows: list[dict[str, Any]] = []
        self.watermark = 0
        self._capture, self._delay_s = capture, delay_s

    def run(self) -> None:
        time.sleep(self._delay_s)
        with psycopg.connect(self._capture.url, autocommit=True) as connection:
            query = "SELECT pg_current_wal_insert_lsn()::text"
            self.watermark = lsn_number(str((connection.execute(query).fetchone() or ("0/0",))[0]))
        low, high = _RANGES[self.number]
        bounds = {"from": low, "to": high}
        chunk = json.dumps({name: [str(bound)] for name, bound in bounds.items() if bound is not None})
        log = PostgreSQLChangeLog(self._capture)
        self.rows = log.read_chunk(RELATION, chunk)[0].to_pylist()
        log.close()


@contextmanager
def _late_visibility(url: str) -> Iterator[None]:
    """Again and again commits wait for a standby that nobody is."""
    ended = threading.Event()

    def toggle() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("SET synchronous_commit = off")
            for standby, wait_s in (("nobody", 0.05), ("", 0.01)):
                connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{standby}'")
                connection.execute("SELECT pg_reload_conf()")
                time.sleep(wait_s)

    def toggle_until_end() -> None:
        while not ended.is_set():
            toggle()

    thread = threading.Thread(target=toggle_until_end)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def _writers(url: str, seed: int) -> Iterator[None]:
    ended = threading.Event()

    def write(number: int) -> None:
        pick = random.Random(seed * 10 + number)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"SET synchronous_commit = {'on' if number % 2 == 0 else 'off'}")
            while not ended.is_set():
                try:
                    with connection.transaction(force_rollback=pick.random() < 0.1):
                        for _ in range(pick.randint(1, 4)):
                            _change(connection, pick)
                except (psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation):
                    continue

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def _change(connection: psycopg.Connection, pick: random.Random) -> None:
    key, value, kind = pick.randint(1, 60), pick.randint(0, 10**9), pick.random()
    upsert = "INSERT INTO v VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET n = EXCLUDED.n"
    if pick.random() < 0.2:
        with connection.transaction():
            connection.execute(upsert, (key, value))
    elif kind < 0.5:
        connection.execute(upsert, (key, value))
    elif kind < 0.7:
        connection.execute("DELETE FROM v WHERE id = %s", (key,))
    elif kind < 0.8:
        connection.execute("UPDATE v SET id = id + 100 WHERE id = %s", (key,))
    else:
        connection.execute("UPDATE v SET n = n + 1 WHERE id BETWEEN %s AND %s", (key, key + 5))
    if pick.random() < 0.3:
        time.sleep(pick.random() * 0.004)

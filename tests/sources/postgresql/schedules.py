"""Random schedules: concurrent writers, chunks that are copied meanwhile, and the log of all that.

Some commits wait for a standby that never answers, and are released later. Their transactions are in the log,
and readable from it, before any snapshot sees them. One transaction begins before the first chunk is read and
commits at some time while the others are, or behind them.

What a schedule is compared with is the replay of the whole log, from a slot that is as old as the table's
first rows, which are known.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psycopg

from tautochrone.sources.postgresql.change_log import Capture, PostgreSQLChangeLog
from tautochrone.sources.postgresql.connection import lsn_number
from tautochrone.sources.postgresql.messages import decode
from tautochrone.sources.postgresql.server import add_to_publication
from tautochrone.sources.postgresql.tables import captured_tables, read_tables

__all__ = ["FIRST_ROWS", "RANGES", "Event", "Schedule", "run_schedule", "with_columns_by_name"]

RELATION = "public.v"
RANGES = ((None, 20), (20, 40), (40, 60), (60, None))
FIRST_ROWS = dict.fromkeys(range(1, 41), 0)
Event = Mapping[str, Any]


@dataclass(frozen=True)
class Schedule:
    """
    Attributes:
        rows: of the log table, copied ones too.
        history: all events since the table had its first rows, in the order of the log.
        watermarks: of each range: a place of the log near its chunk, by which a wrong merge goes.
        pass_at: the table is published when the log has passed this point.
        truth: the table at the end.
    """

    rows: list[Event]
    history: list[Event]
    watermarks: dict[int, int]
    pass_at: int
    truth: dict[int, int]

    def transaction_ends(self) -> list[int]:
        """Points at which the table may be published: the first possible one and the ends of all later
        transactions."""
        return sorted({self.pass_at} | {e["point"] for e in self.history if e["point"] > self.pass_at})

    def state_at(self, point: int) -> dict[int, int]:
        """The replay of the log up to a point."""
        return _replay(FIRST_ROWS, (event for event in self.history if event["point"] <= point))

    def merged_by_watermark(self) -> dict[int, int]:
        """What a merge gives that takes an event for newer than the chunk when its commit is in the log
        behind the watermark."""
        copied = {_key(row): _value(row) for row in self.rows if row["operation"] == "copy"}
        events = sorted(
            (row for row in self.rows if row["operation"] != "copy"),
            key=lambda row: (row["point"], row["sequence"]),
        )
        return _replay(copied, (event for event in events if event["point"] > self._watermark(_key(event))))

    def _watermark(self, key: int) -> int:
        number = next(number for number, (_, end) in enumerate(RANGES) if end is None or key < end)
        return self.watermarks[number]


def _key(row: Event) -> int:
    return int(row["columns"]["id"])


def _value(row: Event) -> int:
    return int(row["columns"]["n"])


def _replay(rows: Mapping[int, int], events: Iterator[Event]) -> dict[int, int]:
    state = dict(rows)
    for event in events:
        if event["operation"] == "delete":
            state.pop(_key(event), None)
        else:
            state[_key(event)] = _value(event)
    return state


def run_schedule(url: str, seed: int) -> Schedule:
    pick = random.Random(seed)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = local")
        connection.execute("DROP TABLE IF EXISTS v")
        connection.execute("DROP PUBLICATION IF EXISTS schedules")
        connection.execute("CREATE TABLE v (id int PRIMARY KEY, n bigint)")
        with connection.cursor() as cursor:
            cursor.executemany("INSERT INTO v VALUES (%s, %s)", FIRST_ROWS.items())
        tables = captured_tables(read_tables(connection, "schedules"), [RELATION], (), "schedules")
        add_to_publication(connection, "schedules", tables)
        capture = Capture("schedules", url, tables, f"s_{connection.info.dbname[-8:]}", "schedules")
        log = PostgreSQLChangeLog(capture)
        slot = f"{capture.slot}_history"
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
        with _writers(url, seed), _late_visibility(url):
            position = log.begin("reader")
            chunks = [_Chunk(capture, number, pick.random() * 0.06) for number in range(len(RANGES))]
            with _long_transaction(url, pick.random() * 0.06, seed):
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
        history = _history(connection, slot)
        truth: dict[int, int] = dict(connection.execute("SELECT id, n FROM v").fetchall())
    rows = [row for chunk in chunks for row in chunk.rows] + events.rows.to_pylist()
    return Schedule(
        with_columns_by_name(rows),
        with_columns_by_name(history),
        {chunk.number: chunk.watermark for chunk in chunks},
        max(chunk.pass_at for chunk in chunks),
        truth,
    )


def with_columns_by_name(rows: Sequence[Event]) -> list[Event]:
    return [{**row, "columns": dict(row["columns"])} for row in rows]


def _history(connection: psycopg.Connection, slot: str) -> list[Event]:
    """All that was written since the slot was made; the slot is dropped."""
    query = (
        "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, "
        "'proto_version', '1', 'publication_names', 'schedules')"
    )
    with connection.cursor(binary=True) as cursor:
        messages = [data for (data,) in cursor.execute(query, (slot,))]
    connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
    rows: list[Event] = decode(messages, {RELATION: ("id",)}).rows.to_pylist()
    return rows


class _Chunk(threading.Thread):
    """Copies one range on a connection of its own."""

    def __init__(self, capture: Capture, number: int, delay_s: float) -> None:
        super().__init__()
        self.number = number
        self.rows: list[dict[str, Any]] = []
        self.watermark = 0
        self.pass_at = 0
        self._capture, self._delay_s = capture, delay_s

    def run(self) -> None:
        time.sleep(self._delay_s)
        with psycopg.connect(self._capture.url, autocommit=True) as connection:
            query = "SELECT pg_current_wal_insert_lsn()::text"
            self.watermark = lsn_number(str((connection.execute(query).fetchone() or ("0/0",))[0]))
        low, high = RANGES[self.number]
        bounds = {"from": low, "to": high}
        chunk = json.dumps({name: [str(bound)] for name, bound in bounds.items() if bound is not None})
        log = PostgreSQLChangeLog(self._capture)
        rows, self.pass_at = log.read_chunk(RELATION, chunk)
        self.rows = rows.to_pylist()
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
def _long_transaction(url: str, open_s: float, seed: int) -> Iterator[None]:
    """A transaction that writes at its begin and again before it commits."""
    pick = random.Random(seed)
    begun = threading.Event()

    def write() -> None:
        with _writing(url) as connection, connection.transaction():
            connection.execute("INSERT INTO v VALUES (%s, %s)", (200, seed))
            begun.set()
            time.sleep(open_s)
            with suppress(*_CONFLICTS), connection.transaction():
                _change(connection, pick)

    thread = threading.Thread(target=write)
    thread.start()
    begun.wait()
    try:
        yield
    finally:
        thread.join()


_CONFLICTS = (psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation)


@contextmanager
def _writing(url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url, autocommit=True) as connection:
        # A deadlock is looked for after a second otherwise.
        connection.execute("SET deadlock_timeout = '20ms'")
        yield connection


@contextmanager
def _writers(url: str, seed: int) -> Iterator[None]:
    ended = threading.Event()

    def write(number: int) -> None:
        pick = random.Random(seed * 10 + number)
        with _writing(url) as connection:
            connection.execute(f"SET synchronous_commit = {'on' if number % 2 == 0 else 'off'}")
            while not ended.is_set():
                try:
                    with connection.transaction(force_rollback=pick.random() < 0.1):
                        for _ in range(pick.randint(1, 4)):
                            _change(connection, pick)
                except _CONFLICTS:
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
        # A savepoint: a transaction with a number of its own, of which the log shows only the outer one.
        with connection.transaction(force_rollback=pick.random() < 0.3):
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

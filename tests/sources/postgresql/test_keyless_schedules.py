"""A table without a key that is copied while others write: a multiset, over random schedules of a server."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from tautochrone.runtime.merges.weighted_apply import weighted_change
from tautochrone.sources.postgresql.change_log import Capture, PostgreSQLChangeLog
from tautochrone.sources.postgresql.messages import decode
from tautochrone.sources.postgresql.server import add_to_publication
from tautochrone.sources.postgresql.tables import captured_tables, read_tables

from .schedules import _late_visibility
from .test_tables_without_key import APPLY, SCHEMA

RELATION = "public.m"
Event = Mapping[str, Any]
Rows = Counter[tuple[int, str]]
FIRST_ROWS: Rows = Counter({(key, "0"): key for key in range(1, 6)})


@dataclass(frozen=True)
class Schedule:
    """
    Attributes:
        rows: of the log table, copied ones too.
        history: all events since the table had its first rows, in the order of the log.
        pass_at: the table is published when the log has passed this point.
        truth: the table at the end.
    """

    rows: list[Event]
    history: list[Event]
    pass_at: int
    truth: Rows

    def ends(self) -> list[int]:
        return sorted({self.pass_at} | {e["point"] for e in self.history if e["point"] > self.pass_at})

    def state_at(self, end: int) -> Rows:
        return FIRST_ROWS + changes(event for event in self.history if event["point"] <= end)

    def merged_at(self, end: int) -> Rows:
        """By the rule: copied rows, and events whose transactions their snapshot did not see."""
        (snapshot,) = {row["snapshot"] for row in self.rows if row["operation"] == "copied"}
        copied = Counter(row_of(row) for row in self.rows if row["operation"] == "copy")
        logged = (row for row in self.rows if row["snapshot"] is None and row["point"] <= end)
        return plus(copied, changes(row for row in logged if not sees(snapshot, row["transaction"])))

    def wrong_by_position(self) -> bool:
        """Whether a merge is wrong that counts the events behind the position of the copied rows."""
        (point,) = {row["point"] for row in self.rows if row["operation"] == "copied"}
        copied = Counter(row_of(row) for row in self.rows if row["operation"] == "copy")
        later = changes(row for row in self.rows if row["snapshot"] is None and row["point"] > point)
        return plus(copied, later) != self.truth


def row_of(event: Event) -> tuple[int, str]:
    columns = dict(event["columns"])
    return int(columns["a"]), columns["b"]


def changes(events: Iterator[Event]) -> Rows:
    weights: Rows = Counter()
    for event in events:
        weights[row_of(event)] += {"delete": -1, "update": 0}.get(event["operation"], 1)
    return weights


def plus(left: Rows, right: Rows) -> Rows:
    """Keeps what is below zero, which `Counter.__add__` drops."""
    rows = Counter({row: left[row] + right[row] for row in {*left, *right}})
    return Counter({row: count for row, count in rows.items() if count})


def sees(snapshot: str, transaction: int) -> bool:
    lowest, end, running = snapshot.split(":")
    return transaction < int(lowest) or (
        transaction < int(end) and str(transaction) not in running.split(",")
    )


def run_schedule(url: str, seed: int) -> Schedule:
    pick = random.Random(seed)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = local")
        connection.execute("DROP TABLE IF EXISTS m; DROP PUBLICATION IF EXISTS keyless")
        connection.execute("CREATE TABLE m (a int, b text); ALTER TABLE m REPLICA IDENTITY FULL")
        connection.execute("INSERT INTO m SELECT i, '0' FROM generate_series(1, 5) i, generate_series(1, i)")
        tables = captured_tables(read_tables(connection, "keyless"), [RELATION], (), "keyless")
        add_to_publication(connection, "keyless", tables)
        capture = Capture("keyless", url, tables, f"k_{connection.info.dbname[-8:]}", "keyless")
        log = PostgreSQLChangeLog(capture)
        slot = f"{capture.slot}_history"
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
        with _writers(url, seed), _late_visibility(url):
            position = log.begin("reader")
            time.sleep(pick.random() * 0.05)
            copied, pass_at = log.read_chunk(RELATION, "{}")
            time.sleep(pick.random() * 0.05)
        connection.execute("SELECT pg_logical_emit_message(true, 'keyless', '')")
        events = log.read(position, 1_000_000)
        assert events.caught_up
        log.close()
        query = (
            "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, "
            "'proto_version', '1', 'publication_names', 'keyless')"
        )
        with connection.cursor(binary=True) as cursor:
            messages = [data for (data,) in cursor.execute(query, (slot,))]
        connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
        history = decode(messages, {RELATION: ("a", "b")}).rows.to_pylist()
        truth = Counter(connection.execute("SELECT a, b FROM m").fetchall())
    return Schedule([*copied.to_pylist(), *events.rows.to_pylist()], history, pass_at, truth)


@contextmanager
def _writers(url: str, seed: int) -> Iterator[None]:
    ended = threading.Event()

    def write(number: int) -> None:
        pick = random.Random(seed * 10 + number)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("SET deadlock_timeout = '20ms'")
            connection.execute(f"SET synchronous_commit = {'on' if number % 2 == 0 else 'off'}")
            while not ended.is_set():
                try:
                    with connection.transaction(force_rollback=pick.random() < 0.1):
                        for _ in range(pick.randint(1, 4)):
                            _change(connection, pick)
                except psycopg.errors.DeadlockDetected:
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
    key, value, kind = pick.randint(1, 6), str(pick.randint(0, 2)), pick.random()
    if kind < 0.4:
        connection.execute("INSERT INTO m VALUES (%s, %s), (%s, %s)", (key, value, key, value))
    elif kind < 0.7:
        connection.execute("DELETE FROM m WHERE ctid = (SELECT min(ctid) FROM m WHERE a = %s)", (key,))
    elif kind < 0.9:
        # An update to the same value changes nothing.
        connection.execute("UPDATE m SET b = %s WHERE a = %s", (value, key))
    else:
        connection.execute("DELETE FROM m WHERE a = %s", (key,))
    time.sleep(pick.random() * 0.004)


def merged_by_spark(spark: SparkSession, rows: Sequence[Event]) -> Rows:
    names = ("point", "sequence", "operation", "transaction", "snapshot")
    events = [
        (*(row_of(row) if row["columns"] else (None, None)), *(row[name] for name in names)) for row in rows
    ]
    change = weighted_change(spark.createDataFrame(events, SCHEMA), APPLY)
    assert change.replaces_all
    return Counter(map(tuple, change.added().collect()))


@pytest.mark.spark
@pytest.mark.parametrize("count", [5, pytest.param(300, marks=pytest.mark.slow)])
def test_random_schedules(spark: SparkSession, database: psycopg.Connection, count: int) -> None:
    """At the end of every transaction at which the table may be published."""
    info = database.info
    url = f"host={info.host} dbname={info.dbname} user=postgres"
    wrong = 0
    # On a busy machine more than this many, until positions are wrong once.
    for seed in range(10 * count):
        if seed >= count and wrong:
            break
        schedule = run_schedule(url, seed)
        assert schedule.state_at(schedule.history[-1]["point"]) == schedule.truth, seed
        for end in schedule.ends():
            assert schedule.merged_at(end) == +schedule.state_at(end), (seed, end)
        if seed < count // 5:
            assert merged_by_spark(spark, schedule.rows) == schedule.truth, seed
        wrong += schedule.wrong_by_position()
    assert wrong, "the schedules are too tame: positions were right every time"

"""Copied ranges merged with events, over random schedules of a real server."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymysql
import pytest

from tautochrone.sources.mysql import bulk
from tautochrone.sources.mysql.change_log import Capture, MySQLChangeLog

from .conftest import Schema

_RANGES = ((None, 20), (20, 40), (40, 60), (60, None))

_DIGITS = " UNION ALL ".join(f"SELECT {digit} AS n" for digit in range(10))
_NUMBERS = f"""
SELECT 1 + a.n + 10 * b.n + 100 * c.n + 1000 * d.n AS seq
FROM ({_DIGITS}) a, ({_DIGITS}) b, ({_DIGITS}) c, (SELECT 0 AS n UNION ALL SELECT 1) d
"""
Rows = dict[str, str]


class _Copy(threading.Thread):
    """Copies one range on a connection of its own."""

    def __init__(self, capture: Capture, low: int | None, high: int | None, delay_s: float) -> None:
        super().__init__()
        bounds = {"from": low, "to": high}
        self.chunk = json.dumps({name: str(key) for name, key in bounds.items() if key is not None})
        self.rows: list[dict[str, Any]] = []
        self.pass_at = 0
        self._capture, self._delay_s = capture, delay_s

    def run(self) -> None:
        time.sleep(self._delay_s)
        log = MySQLChangeLog(self._capture)
        rows, self.pass_at = log.read_chunk(self._capture.tables[0].name, self.chunk)
        self.rows = [{**row, "columns": dict(row["columns"])} for row in rows.to_pylist()]
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


def _apply(rows: Rows, event: dict[str, Any]) -> None:
    key = event["columns"]["id"]
    if event["operation"] == "delete":
        rows.pop(key, None)
    else:
        rows[key] = event["columns"]["n"]


def _merged(
    copies: list[_Copy], events: list[dict[str, Any]], *, by_watermark: bool
) -> list[tuple[int, Rows]]:
    """The table behind each transaction. Events count for a key from the place that its copied range names,
    or wrongly from where the log was after the copy."""
    rows: Rows = {}
    since: dict[int, int] = {}
    for copied, (low, high) in zip(copies, _RANGES, strict=True):
        for row in copied.rows:
            rows[row["columns"]["id"]] = row["columns"]["n"]
        places = {int(row["snapshot"].split(":")[0]) for row in copied.rows} or {0}
        assert len(places) == 1
        for key in range(low or 0, high or 1000):
            since[key] = copied.pass_at + 1 if by_watermark else places.copy().pop()
    states = []
    for number, event in enumerate(events):
        if event["point"] >= since[int(event["columns"]["id"])]:
            _apply(rows, event)
        if number + 1 == len(events) or events[number + 1]["point"] != event["point"]:
            states.append((event["point"], dict(rows)))
    return states


def _run_schedule(schema: Schema, seed: int) -> bool:
    """Answers whether watermarks were wrong."""
    pick = random.Random(seed)
    initial = {str(key): "0" for key in range(1, 41)}
    schema.run("DELETE FROM v", f"INSERT INTO v VALUES {', '.join(f'({key}, 0)' for key in initial)}")
    capture = schema.capture()
    log = MySQLChangeLog(capture)
    position = log.begin("reader")
    with _writers(schema, seed):
        time.sleep(pick.random() * 0.03)
        copies = [_Copy(capture, low, high, pick.random() * 0.06) for low, high in _RANGES]
        for copied in pick.sample(copies, len(copies)):
            copied.start()
        for copied in copies:
            copied.join()
        time.sleep(pick.random() * 0.03)
    batch = log.read(position, 1_000_000)
    log.close()
    assert batch.caught_up
    events = [{**row, "columns": dict(row["columns"])} for row in batch.rows.to_pylist()]
    truth = {str(key): str(number) for key, number in schema.rows("SELECT id, n FROM v")}
    replayed: Rows = dict(initial)
    replay = {}
    for event in events:
        _apply(replayed, event)
        replay[event["point"]] = dict(replayed)
    assert replayed == truth, seed
    passed = max(copied.pass_at for copied in copies)
    for point, rows in _merged(copies, events, by_watermark=False):
        if point >= passed:
            assert rows == replay[point], (seed, point)
    states = _merged(copies, events, by_watermark=True)
    return bool(states) and states[-1][1] != truth


@pytest.mark.parametrize("count", [6, pytest.param(1000, marks=pytest.mark.slow)])
def test_random_schedules(schema: Schema, count: int) -> None:
    """At every transaction's end behind the copy the table is the replay of the log."""
    schema.run("CREATE TABLE v (id INT PRIMARY KEY, n BIGINT)")
    wrong = [_run_schedule(schema, seed) for seed in range(count)]
    assert any(wrong), "the schedules are too tame: watermarks were right every time"


@pytest.mark.parametrize(
    ("data_type", "key"),
    [
        ("INT UNSIGNED", "seq * 7"),
        ("VARCHAR(20) COLLATE utf8mb4_general_ci", "CONCAT(CHAR(96 + seq % 26), '''\\\\%', seq)"),
        ("VARCHAR(20) CHARACTER SET latin1", "CONCAT('é', seq)"),
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

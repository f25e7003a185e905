"""`taut run` is killed, and the server crashes, while Spark's tasks copy a database that is written to."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession
from tests.support.crash import Ended, Running, Taut, fault
from tests.support.postgresql import restart_server

from tautochrone.meta import MetaStore
from tautochrone.model.checkpoint import CheckpointState
from tautochrone.model.effects import Step

from .captured_bank import CapturedBank

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

# Rows of a pair have the sum 0, and two of them are equal.
_MOVES = """
CREATE TABLE moves (pair int, amount int, note text);
ALTER TABLE moves REPLICA IDENTITY FULL;
INSERT INTO moves SELECT i, a, 'opening' FROM generate_series(1, 200) i, unnest(array[3, 3, -6]) a
"""
_SMALL_CHUNKS = """
from tautochrone.sources.capture import captured_log
from tautochrone.sources.postgresql import bulk

# A job copies as much as each of its tasks reads in one chunk.
bulk.CHUNK_BYTES = captured_log.CHUNK_BYTES = 8_000
"""
_WRITTEN_ANEW = "ALTER TABLE accounts ALTER COLUMN balance TYPE int USING balance + 0"
_EXPECTED_FAILURES = (
    "CAPTURED_TABLE_CHANGED",
    "CAPTURE_COPY_FAILED",
    "CAPTURE_DATABASE_NOT_REACHABLE",
    "CAPTURE_WAITS_FOR_TRANSACTIONS",
)


class KilledCopies:
    """The bank with a table without a key, and runs of `taut` over it."""

    def __init__(self, bank: CapturedBank, logs: Path) -> None:
        self.bank = bank
        self.taut = Taut(bank.folder, logs)

    def connect(self) -> psycopg.Connection:
        return psycopg.connect(self.bank.url, autocommit=True)

    @contextmanager
    def moves(self) -> Iterator[None]:
        """The table without a key is written to all the time, also after a restart of the server."""
        ended = threading.Event()
        failures: list[BaseException] = []

        def write() -> None:
            number = 1_000
            while not ended.is_set():
                try:
                    with self.connect() as connection:
                        while not ended.wait(0.01):
                            number += 1
                            _move(connection, number)
                except psycopg.OperationalError:
                    ended.wait(0.1)
                except BaseException as error:
                    failures.append(error)
                    return

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        assert not failures

    @contextmanager
    def blocked_copy(self, table: str) -> Iterator[tuple[Running, psycopg.Connection]]:
        """A run one of whose tasks waits for a lock, after it took the snapshot by which it will read the
        table; and the connection that has the lock in a transaction."""
        blocker = psycopg.connect(self.bank.url)
        try:
            # To begin, a run waits for transactions: the lock is taken behind that.
            pause = fault(Step.LAKE_STAGE, "before", "pause", on="lake.default.bank_log")
            with self.taut.start(fault=pause) as running:
                running.wait_until_stopped()
                blocker.execute(f"LOCK {table}")
                running.resume()
                with self.connect() as observer:
                    while not _waiting_copies(observer, table):
                        assert running.lives_for(0.05), running.wait().describe()
                yield running, blocker
        finally:
            blocker.close()

    def complete(self) -> None:
        """Run until all is taken; only what the next run mends may fail."""
        deadline = time.monotonic() + 200
        while True:
            ended = self.taut.run()
            if ended.status == 0:
                return
            require_expected(ended)
            assert time.monotonic() < deadline, ended.describe()

    def check(self, columns: str = "pair, amount, note") -> None:
        """The bank's tables at every checkpoint, and that of moves: pairs are whole; in the end the rows."""
        self.bank.check()
        storage = self.bank.folder / "storage"
        with MetaStore.open(f"sqlite:///{storage}/meta.db") as store:
            published = sorted(
                entry.number
                for entry in store.checkpoints.newest()
                if entry.state in (CheckpointState.PUBLISHED, CheckpointState.PARTIAL)
            )
            versions = [
                version
                for number in published
                for name, version in store.checkpoints.versions_at(number).items()
                if name.table == "bank_moves"
            ]
        catalog = SqlCatalog("lake", uri=f"sqlite:///{storage}/catalog.db", warehouse=f"{storage}/warehouse")
        table = catalog.load_table("default.bank_moves")
        assert versions
        rows: list[dict[str, Any]] = []
        for version in dict.fromkeys(versions):
            rows = table.scan(snapshot_id=int(version)).to_arrow().to_pylist()
            sums: Counter[int] = Counter()
            for row in rows:
                sums[row["pair"]] += row["amount"]
            assert not any(sums.values()), version
            assert all(count == 3 for count in Counter(row["pair"] for row in rows).values()), version
        catalog.close()
        with self.connect() as connection:
            expected = Counter(connection.execute(f"SELECT {columns} FROM moves").fetchall())
        assert Counter(tuple(row[name] for name in columns.split(", ")) for row in rows) == expected


def _waiting_copies(connection: psycopg.Connection, table: str) -> bool:
    query = (
        "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' "
        "AND starts_with(query, 'COPY') AND strpos(query, %s) > 0"
    )
    return connection.execute(query, [table]).fetchone() is not None


def _move(connection: psycopg.Connection, number: int) -> None:
    with connection.transaction():
        connection.execute(
            "INSERT INTO moves (pair, amount, note) SELECT %s, a, 'w' FROM unnest(array[1, 1, -2]) a",
            [number],
        )
        connection.execute(
            "UPDATE moves SET note = 'u' WHERE ctid = (SELECT min(ctid) FROM moves WHERE amount > 0)"
        )
        if number % 3:
            connection.execute("DELETE FROM moves WHERE pair = (SELECT min(pair) FROM moves)")


def require_expected(ended: Ended) -> None:
    assert any(name in ended.describe() for name in _EXPECTED_FAILURES), ended.describe()


@pytest.fixture
def copies(spark: SparkSession, tmp_path: Path, database: psycopg.Connection) -> KilledCopies:
    database.execute(_MOVES)
    bank = CapturedBank.of(spark, tmp_path / "bank", database)
    definition = bank.folder / "transformations" / "bank.py"
    definition.write_text(_SMALL_CHUNKS + definition.read_text().replace("tables=", "copy_tasks=2, tables="))
    logs = tmp_path / "logs"
    logs.mkdir()
    return KilledCopies(bank, logs)


def test_killed_around_chunks(copies: KilledCopies) -> None:
    """While tasks write, when their files are not committed, committed and not reported, between two jobs."""
    bank, log = copies.bank, "lake.default.bank_log"
    with copies.moves(), bank.load():
        with copies.blocked_copy("accounts") as (running, _blocker):
            running.kill()
        assert bank.position() is None, "no chunk is committed"
        for strike in (
            fault(Step.LAKE_COMMIT, "before", "kill", on=log),
            fault(Step.LAKE_COMMIT, "after", "kill", on=log),
            fault(Step.LAKE_STAGE, "before", "kill", on=log, nth=2),
            fault(Step.SOURCE_ACKNOWLEDGE, "before", "kill", nth=2),
        ):
            copies.taut.killed(strike)
            bank.require_acknowledged_is_durable()
        copies.complete()
    bank.work()
    copies.complete()
    copies.check()


def test_tables_change_and_the_server_crashes_during_the_copy(copies: KilledCopies) -> None:
    bank = copies.bank
    with copies.moves():
        with copies.blocked_copy("moves") as (running, _blocker):
            restart_server(crash=True)
            ended = running.wait()
            assert ended.status > 0
            require_expected(ended)
        bank.work()
        with copies.blocked_copy("accounts") as (running, blocker):
            # The waiting statement will find no row: its snapshot is older than the files of the table.
            blocker.execute(_WRITTEN_ANEW)
            blocker.commit()
            bank.work()
            ended = running.wait()
            # Nothing in the log says so: the same run copies the table again.
            assert ended.status == 0, ended.describe()
            again = [event["relations"] for event in ended.events if event["event"] == "bulk_again"]
            assert any("public.accounts" in relations for relations in again), ended.describe()
        with copies.connect() as connection:
            connection.execute(_WRITTEN_ANEW)
        with copies.blocked_copy("accounts") as (running, _blocker):
            running.kill()
        with copies.connect() as connection:
            connection.execute("ALTER TABLE moves ADD COLUMN kind int DEFAULT 7")
        copies.complete()
        bank.work()
        restart_server(crash=True)
        copies.complete()
        with copies.connect() as connection:
            connection.execute("ALTER TABLE moves ALTER COLUMN kind TYPE int USING pair")
        copies.complete()
    copies.complete()
    copies.check("pair, amount, note, kind")

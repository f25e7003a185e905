"""The bank in MariaDB or MySQL that a pipeline captures; every checkpoint must be as with PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pymysql
from pyspark.sql import SparkSession
from tests.sources.bank import Bank
from tests.sources.postgresql.captured_bank import CapturedBank, State, texts_of

from tautochrone.model.source_position import LogPosition
from tautochrone.sources.mysql.change_log import Capture, MySQLChangeLog
from tautochrone.sources.mysql.statements import Effect, Statement
from tautochrone.testing.toy_database import ToyDatabase

from .conftest import Schema

__all__ = ["MariaBank"]

_TABLES = ("accounts", "savings")
_PYTHON = """
from pyspark.sql import SparkSession

from tautochrone.sources import mysql

mysql.capture("bank", url=SparkSession.active().conf.get("bank.url"), tables="{schema}.*")
"""


_effects = Statement.effects


def _truncates(*arguments: Any) -> list[Effect]:
    return [effect for effect in _effects(*arguments) if effect.kind == "truncate"]


@dataclass
class MariaBank(CapturedBank):
    """
    Attributes:
        schema: of the database.
        captured: its tables, for a reader of the whole history.
        first: where the history begins.
    """

    schema: Schema | None = None
    captured: Capture | None = None
    first: LogPosition | None = None

    @classmethod
    def create(cls, spark: SparkSession, folder: Path, schema: Schema) -> MariaBank:
        schema.run(
            "CREATE TABLE accounts (id INT PRIMARY KEY, balance INT NOT NULL, note TEXT)",
            "CREATE TABLE savings (id BIGINT PRIMARY KEY, balance DECIMAL(10, 0) NOT NULL)",
        )
        capture = schema.capture()
        log = MySQLChangeLog(capture)
        first = log.begin("audit")
        log.close()
        for table, step in (("accounts", 11), ("savings", 13)):
            rows = ", ".join(f"({number * step % 100}, 100)" for number in range(10))
            schema.run(f"INSERT INTO {table} (id, balance) VALUES {rows}")
        toy = Bank.make(spark, folder)
        bank = cls(toy.spark, folder, ToyDatabase(folder / "unused.db"), url=schema.server.server_url())
        bank.schema, bank.captured, bank.first = schema, capture, first
        (folder / "transformations" / "bank.py").write_text(_PYTHON.format(schema=schema.name))
        (folder / "transformations" / "total.sql").unlink()
        bank.set("")
        return bank

    def _connected(self) -> Any:
        assert self.schema is not None
        return self.schema.server.open_connection(database=self.schema.name)

    def work(self, transactions: int = 3) -> None:
        with self._connected() as connection:
            for _ in range(transactions):
                self._transfer_between(connection)

    @contextmanager
    def load(self, writers: int = 2) -> Iterator[None]:
        """Transfers by concurrent connections all the time."""
        ended = threading.Event()

        def write() -> None:
            try:
                with self._connected() as connection:
                    while not ended.wait(0.03):
                        self._transfer_between(connection)
            except BaseException as error:
                self.failures.append(error)

        threads = [threading.Thread(target=write) for _ in range(writers)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            for thread in threads:
                thread.join()
        assert not self.failures

    def _transfer_between(self, connection: Any) -> None:
        """Between the two tables; accounts are opened and closed, savings get other keys."""
        giver, taker, amount = self.pick.randrange(100), self.pick.randrange(100), self.pick.randint(1, 9)
        kind = self.pick.random()
        cursor = connection.cursor()
        try:
            cursor.execute("START TRANSACTION")
            if kind < 0.1:
                cursor.execute("UPDATE savings SET id = %s ORDER BY id LIMIT 1", (taker,))
                cursor.execute("COMMIT")
                return
            if kind < 0.3:
                cursor.execute("SELECT id, balance FROM accounts ORDER BY id DESC LIMIT 1 FOR UPDATE")
                row = cursor.fetchone()
                if row is not None:
                    giver, amount = row
                    cursor.execute("DELETE FROM accounts WHERE id = %s", (giver,))
                changed = row is not None
            else:
                statement = "UPDATE accounts SET balance = balance - %s WHERE id = %s"
                changed = bool(cursor.execute(statement, (amount, giver)))
            table = "savings" if kind < 0.8 else "accounts"
            if changed:
                cursor.execute(
                    f"INSERT INTO {table} (id, balance) VALUES (%s, %s) "
                    f"ON DUPLICATE KEY UPDATE balance = balance + %s",
                    (taker, amount, amount),
                )
            cursor.execute("ROLLBACK" if self.pick.random() < 0.1 else "COMMIT")
        except (pymysql.err.IntegrityError, pymysql.err.OperationalError):
            cursor.execute("ROLLBACK")

    def states(self) -> list[State]:  # type: ignore[override]
        """All states that the database ever had, in the order in which transactions were committed."""
        assert self.captured is not None
        assert self.first is not None
        log = MySQLChangeLog(self.captured)
        # Statements that change tables leave rows as they are here: the log is read through them.
        with patch.object(Statement, "effects", _truncates):
            events = log.read(self.first, 1_000_000).rows.to_pylist()
        log.close()
        states: list[State] = [{table: {} for table in _TABLES}]
        point = 0
        for event in events:
            if event["point"] != point:
                states.append({table: dict(rows) for table, rows in states[-1].items()})
                point = event["point"]
            table = event["relation"].partition(".")[2]
            rows = states[-1][table]
            if event["operation"] == "truncate":
                rows.clear()
                continue
            columns = dict(event["columns"])
            rows.pop(columns["id"], None)
            if event["operation"] != "delete":
                rows[columns["id"]] = texts_of(columns)
        return states

    def now(self) -> State:
        state: State = {}
        with self._connected() as connection:
            for table in _TABLES:
                cursor = connection.cursor(pymysql.cursors.DictCursor)
                cursor.execute(f"SELECT * FROM {table}")
                state[table] = {str(row["id"]): texts_of(row) for row in cursor.fetchall()}
        return state

    def require_acknowledged_is_durable(self) -> None:
        """Nothing is acknowledged."""

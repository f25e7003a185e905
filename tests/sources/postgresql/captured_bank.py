"""A bank in PostgreSQL that a pipeline captures, and what must hold of every checkpoint."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession
from tests.sources.bank import Bank

from tautochrone.meta import MetaStore
from tautochrone.model.checkpoint import CheckpointState
from tautochrone.sources.postgresql.connection import lsn_number
from tautochrone.sources.postgresql.messages import decode
from tautochrone.testing.toy_database import ToyDatabase

__all__ = ["CapturedBank", "State", "texts_of"]

Rows = dict[str, dict[str, str]]
"""By the key of a row its values that are not NULL: a column that came without a value is none yet."""
State = dict[str, Rows]

_DDL = """
CREATE TABLE accounts (id int PRIMARY KEY, balance int NOT NULL, note text);
CREATE TABLE savings (id bigint PRIMARY KEY, balance numeric(10, 0) NOT NULL);
ALTER TABLE accounts ALTER note SET STORAGE EXTERNAL;
"""
_TABLES = ("accounts", "savings")
_OPENING = """
INSERT INTO accounts SELECT i * 11 %% 100, 100, repeat('x', 3000) FROM generate_series(0, 9) i;
INSERT INTO savings SELECT i * 13 %% 100, 100 FROM generate_series(0, 9) i
"""
_PYTHON = """
from pyspark.sql import SparkSession

from tautochrone.sources import postgresql

postgresql.capture("bank", url=SparkSession.active().conf.get("bank.url"), tables="public.*", slot="{slot}")
"""


@dataclass
class CapturedBank(Bank):
    """
    Attributes:
        url: of the database.
        slot: how the name of the slot begins. Another one, `<slot>_audit`, keeps the whole history.
    """

    url: str = ""
    slot: str = ""
    failures: list[BaseException] = field(default_factory=list)
    added: int = 0
    """So many columns accounts got."""
    ignores_columns: bool = False
    """The lake takes no other columns than those of the beginning."""

    @classmethod
    def of(cls, spark: SparkSession, folder: Path, connection: psycopg.Connection) -> CapturedBank:
        info = connection.info
        slot = f"bank_{info.dbname[-8:]}"
        url = f"host={info.host} dbname={info.dbname} user=postgres"
        connection.execute(_DDL)
        connection.execute("CREATE PUBLICATION audit FOR TABLE accounts, savings")
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [f"{slot}_audit"])
        with connection.transaction():
            connection.execute(_OPENING.replace("%%", "%"))
        toy = Bank.make(spark, folder)
        bank = cls(toy.spark, folder, ToyDatabase(folder / "unused.db"), url=url, slot=slot)
        (folder / "transformations" / "bank.py").write_text(_PYTHON.format(slot=slot))
        # The checkpoints of the toy database have a view: here it would be a refresh more in each run.
        (folder / "transformations" / "total.sql").unlink()
        bank.set("")
        return bank

    def set(self, settings: str) -> None:
        super().set(f'"bank.url" = "{self.url}"\n{settings}')

    def work(self, transactions: int = 3) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            for _ in range(transactions):
                self._transfer(connection)

    def add_column(self) -> None:
        """One without a value, between writes that do not know it and writes that do."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            self._transfer(connection)
            self.added += 1
            connection.execute(f"ALTER TABLE accounts ADD COLUMN c{self.added} int")
            connection.execute(f"UPDATE accounts SET c{self.added} = balance WHERE id % 3 = 0")
            self._transfer(connection)

    def copied_rows(self) -> int:
        """Rows of the log table that are of a copy."""
        return self.operations()["copy"]

    def operations(self) -> Counter[str]:
        """How many rows the log table has of each operation."""
        storage = self.folder / "storage"
        catalog = SqlCatalog("lake", uri=f"sqlite:///{storage}/catalog.db", warehouse=f"{storage}/warehouse")
        operations = catalog.load_table("default.bank_log").scan(selected_fields=("operation",)).to_arrow()
        catalog.close()
        return Counter(operations["operation"].to_pylist())

    @contextmanager
    def load(self, writers: int = 2) -> Iterator[None]:
        """Transfers by concurrent connections all the time."""
        ended = threading.Event()

        def write() -> None:
            try:
                with psycopg.connect(self.url, autocommit=True) as connection:
                    connection.execute("SET synchronous_commit = off")
                    while not ended.wait(0.03):
                        self._transfer(connection)
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

    def _transfer(self, connection: psycopg.Connection) -> None:
        """Between the two tables; accounts are opened and closed, savings get other keys."""
        giver, taker, amount = self.pick.randrange(100), self.pick.randrange(100), self.pick.randint(1, 9)
        kind = self.pick.random()
        try:
            with connection.transaction():
                if kind < 0.1:
                    statement = "UPDATE savings SET id = %s WHERE id = (SELECT min(id) FROM savings)"
                    connection.execute(statement, (taker,))
                    return
                if kind < 0.3:
                    statement = (
                        "DELETE FROM accounts WHERE id = (SELECT max(id) FROM accounts) RETURNING balance"
                    )
                    row = connection.execute(statement).fetchone()
                else:
                    statement = "UPDATE accounts SET balance = balance - %s WHERE id = %s RETURNING %s"
                    row = connection.execute(statement, (amount, giver, amount)).fetchone()
                table = "savings" if kind < 0.8 else "accounts"
                if row is not None:
                    connection.execute(
                        f"INSERT INTO {table} (id, balance) VALUES (%s, %s) "
                        f"ON CONFLICT (id) DO UPDATE SET balance = {table}.balance + EXCLUDED.balance",
                        (taker, row[0]),
                    )
        except (psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected):
            pass

    def states(self) -> list[State]:  # type: ignore[override]
        """All states that the database ever had, in the order in which transactions were committed."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("SELECT pg_logical_emit_message(true, 'audit', '')")
            with connection.cursor(binary=True) as cursor:
                cursor.execute(
                    "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, "
                    "'proto_version', '1', 'publication_names', 'audit')",
                    (f"{self.slot}_audit",),
                )
                messages = [data for (data,) in cursor]
        events = decode(messages, {f"public.{table}": ("id",) for table in _TABLES}).rows.to_pylist()
        states: list[State] = [{table: {} for table in _TABLES}]
        point = 0
        for event in events:
            if event["point"] != point:
                states.append({table: dict(rows) for table, rows in states[-1].items()})
                point = event["point"]
            table = event["relation"].removeprefix("public.")
            rows = states[-1][table]
            if event["operation"] == "truncate":
                rows.clear()
                continue
            columns = dict(event["columns"])
            old = rows.pop(columns["id"], None)
            if event["operation"] != "delete":
                if old is not None:
                    columns |= {name: old[name] for name in event["unchanged"]}
                rows[columns["id"]] = texts_of(self._taken(table, columns))
        return states

    def now(self) -> State:
        with psycopg.connect(self.url, autocommit=True) as connection:
            state = {}
            for table in _TABLES:
                with connection.cursor(row_factory=dict_row) as cursor:
                    rows = cursor.execute(f"SELECT * FROM {table}").fetchall()
                    state[table] = _by_key([self._taken(table, row) for row in rows])
            return state

    def columns(self) -> dict[str, set[str]]:
        """Those that the tables have now."""
        accounts = {"id", "balance", "note", *(f"c{number + 1}" for number in range(self.added))}
        return {"accounts": accounts, "savings": {"id", "balance"}}

    def _taken(self, table: str, row: dict[str, Any]) -> dict[str, Any]:
        """A row of the database with the columns that the lake takes."""
        taken = self.columns()[table] if self.ignores_columns else row.keys()
        return {name: value for name, value in row.items() if name in taken}

    def require_acknowledged_is_durable(self) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            query = (
                "SELECT confirmed_flush_lsn::text FROM pg_replication_slots "
                "WHERE starts_with(slot_name, %s) AND slot_name <> %s"
            )
            row = connection.execute(query, (self.slot, f"{self.slot}_audit")).fetchone()
        position = self.position()
        if position is not None:
            assert row is not None
            assert lsn_number(row[0]) <= position.point

    def check(self) -> None:
        """Every checkpoint shows one state that the database had, later ones no older one; the newest shows
        the last state."""
        states = self.states()
        assert states[-1] == self.now(), "the replay of the log is the database"
        storage = self.folder / "storage"
        catalog = SqlCatalog("lake", uri=f"sqlite:///{storage}/catalog.db", warehouse=f"{storage}/warehouse")
        newest, shown, columns = 0, State(), dict[str, set[str]]()
        with MetaStore.open(f"sqlite:///{storage}/meta.db") as store:
            published = [
                entry.number
                for entry in store.checkpoints.newest()
                if entry.state in (CheckpointState.PUBLISHED, CheckpointState.PARTIAL)
            ]
            for number in sorted(published):
                versions = {
                    name.table: version for name, version in store.checkpoints.versions_at(number).items()
                }
                shown, columns = _shown(catalog, versions)
                fitting = [
                    index
                    for index, state in enumerate(states)
                    if index >= newest and all(state[table] == rows for table, rows in shown.items())
                ]
                assert fitting, (number, shown)
                newest = fitting[0]
        assert shown == states[-1]
        assert columns == self.columns()
        catalog.close()


def texts_of(row: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in row.items() if value is not None}


def _by_key(rows: list[dict[str, Any]]) -> Rows:
    return {str(row["id"]): texts_of(row) for row in rows}


def _rows(catalog: SqlCatalog, table: str, version: str) -> list[dict[str, Any]]:
    scan = catalog.load_table(f"default.{table}").scan(snapshot_id=int(version))
    rows: list[dict[str, Any]] = scan.to_arrow().to_pylist()
    return rows


def _shown(catalog: SqlCatalog, versions: Mapping[str, str]) -> tuple[State, dict[str, set[str]]]:
    """The rows and columns of the tables at a checkpoint."""
    shown, columns = State(), {}
    for table in _TABLES:
        if f"bank_{table}" in versions:
            name, version = f"bank_{table}", versions[f"bank_{table}"]
            rows = _rows(catalog, name, version)
            assert len({row["id"] for row in rows}) == len(rows), rows
            shown[table] = _by_key(rows)
            scan = catalog.load_table(f"default.{name}").scan(snapshot_id=int(version))
            columns[table] = {column.name for column in scan.projection().fields}
    return shown, columns

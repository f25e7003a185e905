"""A toy database with a journal of its transactions, and the change log that reads it.

One SQLite file holds three tables, the journal, and the slot that says up to where the journal is needed.
Acknowledged transactions are deleted from the journal, as real databases do: what is acknowledged too early
is lost for good, and a test sees it.

    accounts, savings   id → balance; transfers between them leave the sum over both as it is
    transfers           id → amount; rows are only inserted

In a definition file:

    from tautochrone.testing import toy_database

    toy_database.register(spark)

    @dp.table
    def bank_log():
        return toy_database.stream(spark, "/path/to/bank.db")
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import (
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tautochrone.errors import IngestError
from tautochrone.model.moments import now_ms
from tautochrone.model.source import CHANGE_LOG_LIMITS, LogBatch, RateLimitOptions
from tautochrone.model.source_position import BulkProgress, LogPosition
from tautochrone.sources.registry import register_change_log

__all__ = ["RELATIONS", "Change", "ToyChangeLog", "ToyDatabase", "register", "stream"]

RELATIONS = ("accounts", "savings", "transfers")
FORMAT = "toy_database"
CHUNK = 50
"""So many ids are copied at once; ids are below `MAX_ID`."""
MAX_ID = 100

_SCHEMA = StructType(
    [
        StructField("point", LongType()),
        StructField("sequence", IntegerType()),
        StructField("relation", StringType()),
        StructField("operation", StringType()),
        StructField("id", LongType()),
        StructField("amount", LongType()),
        StructField("committed_at", TimestampType()),
    ]
)
_ARROW = pa.schema(
    [
        ("point", pa.int64()),
        ("sequence", pa.int32()),
        ("relation", pa.string()),
        ("operation", pa.string()),
        ("id", pa.int64()),
        ("amount", pa.int64()),
        ("committed_at", pa.timestamp("us", "UTC")),
    ]
)
_AFTER_ALL = 2**31 - 1
"""The sequence of copied rows: a copy shows the whole transaction that it is as of."""

_DDL = """
CREATE TABLE IF NOT EXISTS state (relation TEXT, id INTEGER, amount INTEGER, PRIMARY KEY (relation, id));
CREATE TABLE IF NOT EXISTS journal (
    point INTEGER, sequence INTEGER, relation TEXT, operation TEXT, id INTEGER, amount INTEGER,
    committed_us INTEGER, PRIMARY KEY (point, sequence)
);
CREATE TABLE IF NOT EXISTS counter (point INTEGER);
CREATE TABLE IF NOT EXISTS slot (log TEXT, acknowledged INTEGER);
CREATE TABLE IF NOT EXISTS acknowledgements (point INTEGER);
CREATE TABLE IF NOT EXISTS history (point INTEGER, relation TEXT, id INTEGER, amount INTEGER);
"""


@dataclass(frozen=True, slots=True)
class Change:
    """One row that a transaction writes; without an `amount` the row is deleted."""

    relation: str
    id: int
    amount: int | None


class ToyDatabase:
    """The database, for whoever writes to it and for the test that knows its whole history."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self.connect() as connection:
            connection.executescript(_DDL)
            if connection.execute("SELECT count(*) FROM counter").fetchone() == (0,):
                connection.execute("INSERT INTO counter VALUES (0)")

    def transaction(self, *changes: Change, committed_at_ms: int | None = None) -> int:
        """Commit; answers the point of the transaction. Without a time, it is now."""
        at_ms = now_ms() if committed_at_ms is None else committed_at_ms
        with self.connect() as connection:
            connection.execute("BEGIN IMMEDIATE")
            point = int(connection.execute("SELECT point FROM counter").fetchone()[0]) + 1
            connection.execute("UPDATE counter SET point = ?", (point,))
            is_kept = connection.execute("SELECT count(*) FROM slot").fetchone() != (0,)
            for sequence, change in enumerate(changes):
                key = (change.relation, change.id)
                existing = connection.execute(
                    "SELECT 1 FROM state WHERE relation = ? AND id = ?", key
                ).fetchone()
                connection.execute("DELETE FROM state WHERE relation = ? AND id = ?", key)
                operation = "delete"
                if change.amount is not None:
                    operation = "update" if existing else "insert"
                    connection.execute("INSERT INTO state VALUES (?, ?, ?)", (*key, change.amount))
                row = (change.relation, change.id, change.amount)
                connection.execute("INSERT INTO history VALUES (?, ?, ?, ?)", (point, *row))
                if is_kept:
                    entry = (point, sequence, change.relation, operation, change.id, change.amount)
                    connection.execute(
                        "INSERT INTO journal VALUES (?, ?, ?, ?, ?, ?, ?)", (*entry, at_ms * 1000)
                    )
            return point

    def rows(self, relation: str) -> dict[int, int]:
        """The relation's rows now: id → amount."""
        with self.connect() as connection:
            query = "SELECT id, amount FROM state WHERE relation = ?"
            return dict(connection.execute(query, (relation,)).fetchall())

    def states(self) -> list[dict[str, dict[int, int]]]:
        """All states that the database ever had, one for each transaction; the first is empty."""
        states: list[dict[str, dict[int, int]]] = [{relation: {} for relation in RELATIONS}]
        with self.connect() as connection:
            query = "SELECT point, relation, id, amount FROM history ORDER BY point, rowid"
            last = 0
            for point, relation, key, amount in connection.execute(query):
                if point != last:
                    states.append({name: dict(rows) for name, rows in states[-1].items()})
                    last = point
                states[-1][relation].pop(key, None)
                if amount is not None:
                    states[-1][relation][key] = amount
        return states

    @property
    def points_acknowledged_by_reader(self) -> list[int]:
        """All points that the reader of the journal acknowledged, in the order in which that happened."""
        with self.connect() as connection:
            return [point for (point,) in connection.execute("SELECT point FROM acknowledgements")]

    def lose_log(self) -> None:
        """Drop the slot, and make another one under its name: what the old one kept is gone."""
        with self.connect() as connection:
            connection.execute("DELETE FROM slot")
            connection.execute("DELETE FROM journal")

    @contextmanager
    def connect(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self.path, timeout=30, isolation_level=None)
        try:
            connection.execute("PRAGMA synchronous = OFF")
            yield connection
            if connection.in_transaction:
                connection.execute("COMMIT")
        finally:
            connection.close()


class ToyChangeLog:
    """The database's journal behind the port `ChangeLog`."""

    def __init__(self, database: ToyDatabase) -> None:
        self._database = database

    @property
    def name(self) -> str:
        return f"toy database {self._database.path.name}"

    def input_ids(self) -> frozenset[str]:
        return frozenset({str(self._database.path)})

    def supported_limits(self) -> RateLimitOptions:
        return CHANGE_LOG_LIMITS

    def schema(self) -> StructType:
        return _SCHEMA

    def relations(self) -> Sequence[str]:
        return RELATIONS

    def begin(self, reader: str) -> LogPosition:  # noqa: ARG002 (it has one reader)
        with self._database.connect() as connection:
            connection.execute("BEGIN IMMEDIATE")
            slot = connection.execute("SELECT log, acknowledged FROM slot").fetchone()
            if slot is None:
                slot = (uuid4().hex, connection.execute("SELECT point FROM counter").fetchone()[0])
                connection.execute("INSERT INTO slot VALUES (?, ?)", slot)
        bulk = BulkProgress(pending=dict.fromkeys(RELATIONS, _chunks()))
        return LogPosition(log=slot[0], point=slot[1], marker=dict.fromkeys(RELATIONS, ""), bulk=bulk)

    def resume(self, position: LogPosition, anew: Collection[str] = ()) -> LogPosition:
        if not anew:
            return position
        kept = position.marker.keys() - {*anew}
        return replace(position, bulk=position.bulk.copied_again(kept, dict.fromkeys(anew, _chunks())))

    def read(self, after: LogPosition, max_events: int) -> LogBatch:
        with self._database.connect() as connection:
            connection.execute("BEGIN")
            slot = connection.execute("SELECT log, acknowledged FROM slot").fetchone()
            if slot is None or slot[0] != after.log or slot[1] > after.point:
                raise IngestError(
                    "SOURCE_LOG_LOST",
                    f"The journal of {self.name} no longer has what follows transaction {after.point}",
                    hint="copy the database again with --full-refresh",
                )
            newest = connection.execute("SELECT point FROM counter").fetchone()[0]
            query = "SELECT * FROM journal WHERE point > ? ORDER BY point, sequence"
            rows: list[tuple[Any, ...]] = []
            caught_up = True
            for row in connection.execute(query, (after.point,)):
                if len(rows) >= max_events and row[0] != rows[-1][0]:
                    caught_up = False
                    break
                rows.append(row)
        point = newest if caught_up else rows[-1][0]
        return LogBatch(rows=_table(rows), position=replace(after, point=point), caught_up=caught_up)

    def read_chunk(self, relation: str, chunk: str) -> tuple[pa.Table, int]:
        low, high = map(int, chunk.split("-"))
        with self._database.connect() as connection:
            connection.execute("BEGIN")
            visible = connection.execute("SELECT point FROM counter").fetchone()[0]
            query = "SELECT id, amount FROM state WHERE relation = ? AND id >= ? AND id < ?"
            copied = connection.execute(query, (relation, low, high)).fetchall()
        with self._database.connect() as connection:
            pass_at = connection.execute("SELECT point FROM counter").fetchone()[0]
        return _table([(visible, _AFTER_ALL, relation, "copy", *row, None) for row in copied]), pass_at

    def completed_rows(self, relations: Sequence[str], position: LogPosition) -> pa.Table:
        point = position.point
        return _table(
            [(point, _AFTER_ALL, relation, "completed", None, None, None) for relation in relations]
        )

    def acknowledge(self, position: LogPosition) -> None:
        with self._database.connect() as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("UPDATE slot SET acknowledged = max(acknowledged, ?)", (position.point,))
            connection.execute("DELETE FROM journal WHERE point <= ?", (position.point,))
            connection.execute("INSERT INTO acknowledgements VALUES (?)", (position.point,))

    def lag(self, position: LogPosition) -> Mapping[str, int]:
        with self._database.connect() as connection:
            newest = connection.execute("SELECT point FROM counter").fetchone()[0]
        return {"transactions": newest - position.point}

    def check_prerequisites(self) -> str:
        return f"{self._database.path.name}: {', '.join(RELATIONS)}"

    def close(self) -> None:
        """It keeps no connection open."""


def _chunks() -> tuple[str, ...]:
    """Ranges of keys that cover a relation."""
    return tuple(f"{low}-{low + CHUNK}" for low in range(0, MAX_ID, CHUNK))


def _table(rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(_ARROW)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _ARROW, strict=True)]
    return pa.table(arrays, _ARROW)


class ToyStream(DataSource):
    """Stands for the log in a query; Spark itself never reads it."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in _SCHEMA.fields)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        raise NotImplementedError("the log is read by us")


def register(session: SparkSession) -> None:
    """Make the format known. Query functions must not, so definition files do it when they are imported."""
    register_change_log(FORMAT, lambda options: ToyChangeLog(ToyDatabase(Path(options["path"]))))
    session.dataSource.register(ToyStream)


def stream(session: SparkSession, path: str | Path) -> DataFrame:
    """The change log of the database at `path`, as the query of a streaming table."""
    return session.readStream.format(FORMAT).option("path", str(path)).load()

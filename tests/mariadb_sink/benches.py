"""A database of its own on one MariaDB server, opened by several sinks as by several processes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

from pyspark.sql import types as spark

from tautochrone.model.lake import RowChange
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.sink import Intent, Operation, Sink, TransactionId
from tautochrone.sinks.common.mirrored import mirror_name
from tautochrone.sinks.mariadb.database import quoted
from tautochrone.sinks.mariadb.options import mariadb_options
from tautochrone.sinks.mariadb.sink import MariadbSink
from tautochrone.testing.mariadb import SINK_PASSWORD, open_connection, sink_url
from tautochrone.testing.sqlite_sink import ListRows

ORDERS = TableName("lake", ("default",), "orders")
_databases = count(1)


class LostAnswerError(Exception):
    """The operation was done, and its answer did not arrive."""


class FaultySink(MariadbSink):
    """Loses a row or an answer when its bench says so."""

    bench: MariadbBench

    def _insert(self, cursor: Any, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        if self.bench.loses_row:
            self.bench.loses_row, rows = False, rows[:-1]
        super()._insert(cursor, statement, rows)

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name not in tuple(Operation):
            return value

        def operate(*arguments: Any, **named: Any) -> Any:
            answer = value(*arguments, **named)
            if self.bench.loses_answer:
                self.bench.loses_answer = False
                raise LostAnswerError(name)
            return answer

        return operate


class MariadbBench:
    """What the suite of all sinks needs.

    Attributes:
        key: of every table, in place of the one that `ensure` is given.
    """

    def __init__(self, key: Sequence[str] = ()) -> None:
        self.database = f"mirror_{next(_databases)}"
        self.options = mariadb_options(
            "mirror", {"url": sink_url(self.database), "password": SINK_PASSWORD, "chunk_rows": "1"}
        )
        self.loses_row = self.loses_answer = False
        self._sinks: list[FaultySink] = []
        self._columns = ["id", "word"]
        self._key = key

    def open(self) -> Sink:
        sink = FaultySink("mirror", self.options)
        sink.bench = self
        ensure = sink.ensure
        sink.ensure = (  # type: ignore[method-assign]
            lambda table, schema, key, fence: ensure(table, schema, key or self._key, fence)
        )
        self._sinks.append(sink)
        return sink

    def schema(self, *columns: str) -> Any:
        self._columns = ["id", "word", *columns]
        texts = [spark.StructField(name, spark.StringType()) for name in ("word", *columns)]
        return spark.StructType([spark.StructField("id", spark.LongType()), *texts])

    def frame(self, rows: Sequence[tuple[Any, ...]]) -> ListRows:
        return ListRows(["id", "word"], rows)

    def read(self, table: TableName) -> Sequence[tuple[Any, ...]]:
        name = quoted(self.database, mirror_name(table))
        return self.query(f"SELECT {', '.join(map(quoted, self._columns))} FROM {name}")

    def query(self, statement: str) -> Sequence[tuple[Any, ...]]:
        """What the administrator gets."""
        with open_connection() as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def break_during(self, operation: Operation) -> type[Exception] | None:
        # A commit is one transaction, and what is staged ends with the connection.
        return None

    def lose_answer(self) -> type[Exception]:
        self.loses_answer = True
        return LostAnswerError

    def lose_row(self) -> None:
        self.loses_row = True

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()
        self.query(f"DROP DATABASE IF EXISTS {self.database}")


def transaction(checkpoint: int, fence: int = 1, attempt: int = 1) -> TransactionId:
    return TransactionId(
        incarnation="store-1",
        sink="mirror",
        checkpoint=CheckpointNumber(checkpoint),
        fence=Fence(fence),
        attempt=attempt,
    )


def deliver(
    sink: Sink,
    opened: TransactionId,
    columns: list[str],
    added: list[tuple[Any, ...]],
    removed: list[tuple[Any, ...]] | None = None,
) -> None:
    """A checkpoint with changed rows of `ORDERS`, up to the commit."""
    sink.begin(Intent(transaction=opened, versions={ORDERS: Version(f"o{opened.checkpoint}")}))
    change = RowChange(
        added=ListRows(columns, added) if added else None,
        removed=ListRows(columns, removed) if removed else None,
        rows=len(added) + len(removed or []),
    )
    sink.prepare(opened, sink.write(opened, ORDERS, change))
    sink.commit(opened, opened.fence)

"""A database of its own on one fake StarRocks, opened by several sinks as by several processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from pyspark.sql import types as spark
from tests.starrocks_sink.fake_server import FakeDatabase, server

from tautochrone.errors import SinkError
from tautochrone.model.lake import RowChange
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.sink import Intent, Operation, Sink, TransactionId
from tautochrone.sinks.common.mirrored import mirror_name
from tautochrone.sinks.starrocks.client import TransactionClient
from tautochrone.sinks.starrocks.database import quoted
from tautochrone.sinks.starrocks.options import starrocks_options
from tautochrone.sinks.starrocks.sink import StarrocksSink
from tautochrone.testing.sqlite_sink import ListRows

ORDERS = TableName("lake", ("default",), "orders")
_databases = count(1)


class LostAnswerError(Exception):
    """The operation was done, and its answer did not arrive."""


class FaultySink(StarrocksSink):
    """Loses a row or an answer when its bench says so."""

    bench: StarrocksBench

    def _keep(self, spool: Any, batch: Any) -> None:
        if self.bench.loses_row:
            self.bench.loses_row, batch = False, batch[:-1]
        super()._keep(spool, batch)

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


class StarrocksBench:
    """What the suite of all sinks needs.

    Attributes:
        database: the server's side, with the faults to come.
    """

    def __init__(self) -> None:
        self.database = FakeDatabase(f"mirror_{next(_databases)}")
        server().databases[self.database.name] = self.database
        url = f"http://user@127.0.0.1:{server().frontend}/{self.database.name}"
        options = starrocks_options("mirror", {"url": url, "password": "secret", "chunk_rows": "1"})
        self.options = replace(options, pause_s=0.001, visible_wait_s=30.0)
        self.loses_row = self.loses_answer = False
        self._sinks: list[FaultySink] = []
        self._columns = ["id", "word"]

    def open(self) -> Sink:
        client = TransactionClient("mirror", self.options)
        sink = FaultySink("mirror", self.options, self.database, client)
        sink.bench = self
        self._sinks.append(sink)
        return sink

    def schema(self, *columns: str) -> Any:
        self._columns = ["id", "word", *columns]
        texts = [spark.StructField(name, spark.StringType()) for name in ("word", *columns)]
        return spark.StructType([spark.StructField("id", spark.LongType()), *texts])

    def frame(self, rows: Sequence[tuple[Any, ...]]) -> ListRows:
        return ListRows(["id", "word"], rows)

    def read(self, table: TableName) -> Sequence[tuple[Any, ...]]:
        name = quoted(self.database.name, mirror_name(table))
        return self.database.query(f"SELECT {', '.join(map(quoted, self._columns))} FROM {name}")

    def break_during(self, operation: Operation) -> type[Exception] | None:
        broken = {
            Operation.COMMIT: [("commit", "slow"), ("state", "unsent")],
            Operation.ABORT: [("rollback", "unsent"), ("state", "unsent")],
        }
        # Until it is prepared, a transaction is in its process only.
        if operation not in broken or not self.database.labels:
            return None
        self.database.faults += broken[operation]
        return SinkError

    def lose_answer(self) -> type[Exception]:
        self.loses_answer = True
        return LostAnswerError

    def lose_row(self) -> None:
        self.loses_row = True

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()


def transaction(checkpoint: int, fence: int = 1, attempt: int = 1) -> TransactionId:
    return TransactionId(
        incarnation="store-1",
        sink="mirror",
        checkpoint=CheckpointNumber(checkpoint),
        fence=Fence(fence),
        attempt=attempt,
    )


def stage(
    sink: Sink,
    opened: TransactionId,
    added: list[tuple[Any, ...]],
    removed: list[tuple[Any, ...]] | None = None,
) -> None:
    """A checkpoint with changed rows of `ORDERS`, up to the prepare."""
    sink.begin(Intent(transaction=opened, versions={ORDERS: Version(f"o{opened.checkpoint}")}))
    columns = ["id", "word"]
    change = RowChange(
        added=ListRows(columns, added) if added else None,
        removed=ListRows(columns, removed) if removed else None,
        rows=len(added) + len(removed or []),
    )
    sink.prepare(opened, sink.write(opened, ORDERS, change))


def deliver(
    sink: Sink,
    opened: TransactionId,
    added: list[tuple[Any, ...]],
    removed: list[tuple[Any, ...]] | None = None,
) -> None:
    """A checkpoint with changed rows of `ORDERS`, up to the commit."""
    stage(sink, opened, added, removed)
    sink.commit(opened, opened.fence)

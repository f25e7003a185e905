"""A database of its own on one fake StarRocks, opened by several sinks as by several processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from tests.sinks.benches import LosesAnswers, SparkBench
from tests.sinks.starrocks.fake_server import FakeDatabase, server

from tautochrone.errors import SinkError
from tautochrone.model.names import TableName
from tautochrone.model.sink import Operation, Sink
from tautochrone.sinks.common.mirrored import NameRules, mirror_name, quoted
from tautochrone.sinks.starrocks.client import TransactionClient
from tautochrone.sinks.starrocks.options import starrocks_options
from tautochrone.sinks.starrocks.sink import StarrocksSink

_databases = count(1)


class FaultySink(LosesAnswers, StarrocksSink):
    """Loses a row or an answer when its bench says so."""

    bench: StarrocksBench

    def _keep(self, spool: Any, batch: Any) -> None:
        super()._keep(spool, self.bench.without_lost_row(batch))


class StarrocksBench(SparkBench):
    """What the suite of all sinks needs.

    Attributes:
        database: the server's side, with the faults to come.
    """

    def __init__(self) -> None:
        super().__init__()
        self.database = FakeDatabase(f"mirror_{next(_databases)}")
        server().databases[self.database.name] = self.database
        url = f"http://user@127.0.0.1:{server().frontend}/{self.database.name}"
        options = starrocks_options("mirror", {"url": url, "password": "secret", "chunk_rows": "1"})
        self.options = replace(options, pause_s=0.001, visible_wait_s=30.0)

    def open(self) -> Sink:
        client = TransactionClient("mirror", self.options)
        sink: Sink = self.opened(FaultySink("mirror", self.options, self.database, client))
        return sink

    def read(self, table: TableName) -> Sequence[tuple[Any, ...]]:
        name = quoted(self.database.name, mirror_name(table, NameRules(longest=64)))
        return self.database.query(f"SELECT {', '.join(map(quoted, self.columns))} FROM {name}")

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

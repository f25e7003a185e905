"""Deliveries by `clickhouse-connect` to a server whose answers get lost, that dies, or gets late requests."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import types as spark
from tests.sinks.clickhouse.dashboards import Client

from tautochrone.errors import SinkError
from tautochrone.model.lake import RowChange
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.reason import ReasonCode
from tautochrone.model.sink import (
    Intent,
    ReportsComparison,
    SentChunk,
    Sink,
    SinkMaintenance,
    TransactionId,
    TransactionState,
)
from tautochrone.sinks import examine_sink, observe_sink, open_sink
from tautochrone.sinks.clickhouse import comparison
from tautochrone.testing.sink_conformance import begin
from tautochrone.testing.sqlite_sink import ListRows

FRONT = Path(__file__).with_name("front.py")
TABLES = [TableName("lake", ("default",), name) for name in ("orders", "lines")]
SCHEMA = spark.StructType(
    [spark.StructField("id", spark.LongType()), spark.StructField("part", spark.IntegerType())]
)


class Server:
    """The test server in a process of its own, always at the same port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self.process: subprocess.Popen[str]
        self.start()

    def start(self) -> None:
        arguments = [sys.executable, str(FRONT), str(self.folder), str(self.port)]
        self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def await_uptime(self) -> None:
        """Wait until it has run for so long that the sink may count rows."""
        client = Client(self.port)
        while client.rows("SELECT uptime()")[0][0] < comparison._LEAST_UPTIME_S:
            time.sleep(0.1)
        client.close()

    def plan(self, kind: str, text: str) -> None:
        self.folder.with_suffix(".fault").write_text(f"{kind} {text}")

    def is_planned(self) -> bool:
        return self.folder.with_suffix(".fault").exists()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


class Mirror:
    """Two tables, partitioned, in one database of the server."""

    def __init__(self, server: Server, database: str) -> None:
        self.server, self.database = server, database

    def open(self, fence: int, **options: str) -> Sink:
        options |= {f"partition_by.{name.table}": "part" for name in TABLES}
        url = f"clickhouse://127.0.0.1:{self.server.port}/{self.database}"
        sink = open_sink("mirror", "clickhouse", {"url": url, "chunk_rows": "2", **options})
        sink.fence(Fence(fence))
        for name in TABLES:
            sink.ensure(name, SCHEMA, (), Fence(fence))
        return sink

    def stage(
        self, sink: Sink, checkpoint: int, fence: int, rows: Sequence[tuple[Any, ...]], **intended: Any
    ) -> Intent:
        intent = self.begin(sink, checkpoint, fence, **intended)
        chunks = self.write(sink, intent.transaction, rows)
        sink.prepare(intent.transaction, chunks)
        return Intent(transaction=intent.transaction, versions=intent.versions, chunks=tuple(chunks))

    def begin(
        self, sink: Sink, checkpoint: int, fence: int, *, replaces: bool = False, attempt: int = 1
    ) -> Intent:
        transaction = TransactionId(
            incarnation="store",
            sink="mirror",
            checkpoint=CheckpointNumber(checkpoint),
            fence=Fence(fence),
            attempt=attempt,
        )
        versions = {name: Version(str(checkpoint)) for name in TABLES}
        replaced = tuple(TABLES) if replaces else ()
        intent = Intent(transaction=transaction, versions=versions, replaced=replaced)
        begin(sink, intent)
        return intent

    def write(
        self, sink: Sink, transaction: TransactionId, rows: Sequence[tuple[Any, ...]]
    ) -> list[SentChunk]:
        change = RowChange(added=ListRows(SCHEMA.names, rows), rows=len(rows))
        return [chunk for name in TABLES for chunk in sink.write(transaction, name, change)]

    def deliver(
        self, sink: Sink, checkpoint: int, fence: int, rows: Sequence[tuple[Any, ...]], attempt: int = 1
    ) -> None:
        transaction = self.stage(sink, checkpoint, fence, rows, attempt=attempt).transaction
        sink.commit(transaction, Fence(fence))

    def check(self, sink: Sink, checkpoint: int, rows: Sequence[tuple[Any, ...]]) -> None:
        published = sink.published()
        assert published is not None
        assert published.checkpoint == checkpoint
        for name in TABLES:
            expected = sink.digest(name, ListRows(SCHEMA.names, rows))
            assert sink.audit(name, CheckpointNumber(checkpoint)) == expected


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server") / "engine")
    yield server
    server.stop()


def test_a_server_is_only_looked_at(server: Server) -> None:
    mirror = Mirror(server, "looked_at")
    options = {"url": f"clickhouse://127.0.0.1:{server.port}/looked_at"}
    with pytest.raises(SinkError) as missing:
        observe_sink("mirror", "clickhouse", options)
    assert missing.value.error_class == "SINK_OBJECT_MISSING"
    sink = mirror.open(1)
    mirror.deliver(sink, 1, 1, [(1, 1)])
    observed = observe_sink("mirror", "clickhouse", options)
    assert observed.published() == sink.published()
    assert not observed.changed_tables(TABLES, 100)
    observed.close()
    sink.close()


@pytest.fixture
def mirror(server: Server, request: pytest.FixtureRequest) -> Mirror:
    return Mirror(server, re.sub(r"\W", "_", request.node.name))


FIRST = [(1, 0), (2, 0), (3, 1)]
SECOND = [(4, 0), (5, 1), (6, 2)]


@pytest.mark.parametrize(
    ("kind", "text", "compare"),
    [
        ("lose", "_1`", "count"),
        ("die", "MOVE PARTITION", "count"),
        *(
            pytest.param(kind, text, compare, marks=pytest.mark.slow)
            for compare in ("hash", "count")
            for kind, text in (
                *((kind, text) for kind in ("lose", "die") for text in ("CREATE TABLE", "taut_published (f")),
                ("die", "_1`"),
                ("lose", "MOVE PARTITION"),
            )
        ),
        pytest.param("lose", "_1`", "hash", marks=pytest.mark.slow),
        pytest.param("die", "MOVE PARTITION", "hash", marks=pytest.mark.slow),
    ],
)
def test_a_fault_loses_and_doubles_nothing(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch, kind: str, text: str, compare: str
) -> None:
    # The transaction ends before a server could be up again.
    monkeypatch.setattr(comparison, "_LEAST_UPTIME_S", 1)
    mirror.server.await_uptime()
    server, sink = mirror.server, mirror.open(1, compare=compare)
    mirror.deliver(sink, 1, 1, FIRST)
    # Of the second transaction rows are only counted.
    server.plan(kind, text)
    with pytest.raises(Exception, match=r"\w"):
        mirror.deliver(sink, 2, 1, SECOND)
    assert not server.is_planned()
    if kind == "die":
        server.process.wait()
        server.start()
    again = mirror.open(2, compare=compare)
    again.recover([], Fence(2))
    is_committed = "MOVE" in text or "taut_published" in text
    mirror.check(again, 1 + is_committed, [*FIRST, *SECOND] if is_committed else FIRST)
    if not is_committed:
        mirror.deliver(again, 2, 2, SECOND)
        mirror.check(again, 2, [*FIRST, *SECOND])
    again.close()
    sink.close()


@pytest.mark.slow
def test_a_folding_that_comes_late_finds_no_table(mirror: Mirror) -> None:
    sink = mirror.open(1, keep_checkpoints="2", keep_minutes="0")
    assert isinstance(sink, SinkMaintenance)
    for number in range(1, 4):
        transaction = mirror.stage(sink, number, 1, FIRST, replaces=True).transaction
        sink.commit(transaction, Fence(1))
    late = mirror.server.folder.with_suffix(".late")
    late.touch()
    mirror.server.plan("late", "REPLACE PARTITION")
    errors: list[Exception] = []

    def zombie() -> None:
        try:
            sink.maintain(Fence(1))
        except SinkError as error:
            errors.append(error)

    thread = threading.Thread(target=zombie)
    thread.start()
    while mirror.server.is_planned():
        thread.join(0.01)
    owner = mirror.open(2)
    owner.recover([], Fence(2))
    mirror.deliver(owner, 4, 2, SECOND)
    late.unlink()
    thread.join(30)
    assert len(errors) == 1
    assert "UNKNOWN_TABLE" in str(errors[0])
    mirror.check(owner, 4, [*FIRST, *SECOND])


def test_a_move_that_comes_late_finds_no_table(mirror: Mirror) -> None:
    sink = mirror.open(1)
    intent = mirror.stage(sink, 1, 1, FIRST)
    late = mirror.server.folder.with_suffix(".late")
    late.touch()
    mirror.server.plan("late", "MOVE PARTITION")
    errors: list[Exception] = []

    def zombie() -> None:
        try:
            sink.commit(intent.transaction, Fence(1))
        except SinkError as error:
            errors.append(error)

    thread = threading.Thread(target=zombie)
    thread.start()
    while mirror.server.is_planned():
        thread.join(0.01)
    owner = mirror.open(2)
    (recovered,) = owner.recover([intent], Fence(2))
    assert recovered.state is TransactionState.COMMITTED
    mirror.check(owner, 1, FIRST)
    mirror.deliver(owner, 2, 2, SECOND)
    late.unlink()
    thread.join(30)
    assert len(errors) == 1
    assert "UNKNOWN_TABLE" in str(errors[0])
    mirror.check(owner, 2, [*FIRST, *SECOND])


def test_a_server_is_examined_without_a_trace(mirror: Mirror) -> None:
    url = f"clickhouse://127.0.0.1:{mirror.server.port}/{mirror.database}"
    answer = examine_sink("mirror", "clickhouse", {"url": url})
    assert f"127.0.0.1:{mirror.server.port} lets default in" in str(answer)
    client = Client(mirror.server.port)
    assert [mirror.database] not in client.rows("SELECT name FROM system.databases")
    client.close()


@pytest.mark.parametrize(
    "lost",
    [
        *("staging", "rows", "views", "published"),
        *(pytest.param(lost, marks=pytest.mark.slow) for lost in ("transactions", "replaced")),
    ],
)
def test_what_is_dropped_of_a_decided_commit_is_said(mirror: Mirror, lost: str) -> None:
    """The commit ends whole, or by a class whose hint ends the trouble."""
    sink: Any = mirror.open(1)
    mirror.deliver(sink, 1, 1, FIRST)
    transaction = mirror.stage(sink, 2, 1, SECOND).transaction
    sink._first.decide(transaction, Fence(1))
    client = Client(mirror.server.port)
    names = [str(name) for (name,) in client.rows(f"SHOW TABLES FROM {mirror.database}")]
    prefixes = {"staging": str(transaction), "rows": "taut_rows_", "views": "taut_read_"}
    dropped = [name for name in names if name.startswith(prefixes.get(lost, f"taut_{lost}"))]
    assert dropped or lost == "views"
    for name in dropped:
        client.run(f"DROP TABLE {mirror.database}.`{name}` SYNC")
    sink.close()
    rows = [*FIRST, *SECOND]
    refused: SinkError | None = None
    try:
        sink = mirror.open(2)
        sink.recover([], Fence(2))
        shown = sink.published()
        changed = sink.changed_tables(TABLES, None)
    except SinkError as error:
        refused, shown, changed = error, None, {}
    if refused is not None:
        assert "--forget mirror" in str(refused.hint), refused.render()
        client.run(f"DROP DATABASE {mirror.database} SYNC")
        sink.close()
        sink = mirror.open(3)
        mirror.deliver(sink, 2, 3, rows)
        mirror.check(sink, 2, rows)
    elif shown is not None and not changed:
        # The next delivery would send a delta to what is shown.
        mirror.check(sink, int(shown.checkpoint), rows if shown.checkpoint == 2 else FIRST)
    client.close()
    sink.close()


def test_counted_rows_of_a_restarted_server_are_sent_again(mirror: Mirror) -> None:
    # The last test of the file: by now the server has run for so long.
    mirror.server.await_uptime()
    sink = mirror.open(1, compare="count")
    assert isinstance(sink, ReportsComparison)
    mirror.deliver(sink, 1, 1, FIRST)
    transaction = mirror.begin(sink, 2, 1).transaction
    chunks = mirror.write(sink, transaction, SECOND)
    assert {reason.code for reason in sink.comparison_reasons().values()} == {ReasonCode.SINK_ROWS_COUNTED}
    mirror.server.stop()
    mirror.server.start()
    with pytest.raises(SinkError, match="SINK_SERVER_RESTARTED") as refused:
        sink.prepare(transaction, chunks)
    assert refused.value.retryable
    sink.recover([], Fence(1))
    mirror.deliver(sink, 2, 1, SECOND, attempt=2)
    assert {reason.code for reason in sink.comparison_reasons().values()} == {
        ReasonCode.SINK_ROWS_HASHED_FIRST
    }
    mirror.check(sink, 2, [*FIRST, *SECOND])
    sink.close()

"""One transaction over several servers: rows are spread by hash, and one that is down delays everything."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.sinks.clickhouse.benches import BrokenConnectionError, FaultyEngine, ShardedBench
from tests.sinks.clickhouse.test_server import FIRST, SCHEMA, SECOND, TABLES, Mirror, Server

from tautochrone.errors import SinkError
from tautochrone.model.names import CheckpointNumber, Fence
from tautochrone.model.sink import RowAudit, Sink, SinkMaintenance
from tautochrone.sinks import open_sink
from tautochrone.sinks.clickhouse import sink as sink_module
from tautochrone.sinks.clickhouse.ledger import Ledger
from tautochrone.sinks.clickhouse.options import server_options
from tautochrone.sinks.clickhouse.sink import ClickHouseSink
from tautochrone.testing.sink_conformance import LINES, ORDERS, Row, SinkConformance, new_intent

ROWS: list[Row] = [(number, "even" if number % 2 == 0 else "odd") for number in range(40)]


def deliver(
    bench: ShardedBench,
    sink: Sink,
    number: int,
    added: Sequence[Row],
    removed: Sequence[Row] = (),
    fence: int = 1,
) -> None:
    SinkConformance().deliver(bench, sink, new_intent(number, fence), *added, removed=removed)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[ShardedBench]:
    bench = ShardedBench(tmp_path, chunk_rows="1000", keep_checkpoints="2", keep_minutes="0")
    yield bench
    bench.close()


def opened(bench: ShardedBench, fence: int = 1) -> ClickHouseSink:
    sink = bench.open()
    assert isinstance(sink, ClickHouseSink)
    sink.fence(Fence(fence))
    sink.recover([], Fence(fence))
    for table in (ORDERS, LINES):
        sink.ensure(table, bench.schema(), (), Fence(fence))
    return sink


def shards(bench: ShardedBench) -> list[Counter[Any]]:
    return [Counter(bench.read_server(options.database, ORDERS)) for options in bench.servers]


def test_rows_are_spread_and_leave_where_they_came(
    bench: ShardedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_module, "_MAINTAINED_EVERY", 1)
    sink = opened(bench)
    deliver(bench, sink, 1, ROWS)
    first = shards(bench)
    assert all(5 <= shard.total() <= 25 for shard in first)
    # A column that is added later does not change where the rows belong.
    sink.ensure(ORDERS, bench.schema("more"), (), Fence(1))
    sink.ensure(LINES, bench.schema("more"), (), Fence(1))
    deliver(bench, sink, 2, [(100, "even")], removed=ROWS[:20])
    for number in (3, 4, 5):
        deliver(bench, sink, number, [(number, "new")], removed=[(number - 1, "new")] if number > 3 else ())
    folded = sink.maintain(Fence(1))
    assert sum(table.rows_before for table in folded) > sum(table.rows_after for table in folded)
    kept = [(*row, None) for row in (*ROWS[20:], (100, "even"), (5, "new"))]
    assert Counter(bench.read(ORDERS)) == Counter(kept)
    expected = sink.digest(ORDERS, bench.frame([row[:2] for row in kept]))
    assert sink.audit(ORDERS, CheckpointNumber(5)) == expected
    with pytest.raises(SinkError, match="CHECKPOINT_GONE"):
        sink.audit(ORDERS, CheckpointNumber(3))
    # An audit finds a row that one server lost.
    database = bench.servers[1].database
    (lost, *_) = bench.read_server(database, ORDERS)
    bench.reader.run(
        f"ALTER TABLE `{database}`.taut_rows_shop__orders DELETE WHERE id = {lost[0]} "
        "SETTINGS mutations_sync = 2"
    )
    lake = bench.frame([row[:2] for row in kept])
    ((difference),) = sink.differences(ORDERS, CheckpointNumber(5), lake, 10)
    assert (str(lost[0]) in difference.row, difference.in_sink, difference.in_lake) == (True, 0, 1)
    assert isinstance(sink, RowAudit)
    assert isinstance(sink, SinkMaintenance)


def test_rows_of_one_key_are_on_one_server_and_the_layout_is_fixed(tmp_path: Path) -> None:
    by_word = {"shard_by.orders": "word", "shard_by.lines": "word"}
    bench = ShardedBench(tmp_path, chunk_rows="1000", **by_word)
    deliver(bench, opened(bench), 1, ROWS)
    words = [word for shard in shards(bench) for word in {row[1] for row in shard}]
    assert sorted(words) == ["even", "odd"]
    bench.servers.reverse()
    with pytest.raises(SinkError, match="SINK_SERVERS_CHANGED"):
        opened(bench)
    bench.servers.reverse()
    removed = bench.servers.pop()
    with pytest.raises(SinkError, match="SINK_SERVERS_CHANGED"):
        opened(bench)
    bench.servers.append(removed)
    bench.reader.run(f"DROP DATABASE {removed.database} SYNC")
    with pytest.raises(SinkError, match="SINK_SERVERS_DIFFER"):
        opened(bench, fence=2)
    bench.close()


STATEMENTS = (
    "taut_transactions",
    "CREATE TABLE",
    "INSERT INTO `{database}`.`taut_",
    "MOVE PARTITION",
    "taut_published (",
    "DROP TABLE",
)


@pytest.mark.parametrize(
    ("moment", "server"),
    [
        ("after", 2),
        *(
            pytest.param(moment, server, marks=pytest.mark.slow)
            for moment in ("before", "after")
            for server in (0, 1, 2)
            if (moment, server) != ("after", 2)
        ),
    ],
)
def test_all_servers_agree_after_a_break_at_each_step(bench: ShardedBench, moment: str, server: int) -> None:
    fence, number, rows = 1, 1, Counter(ROWS)
    sink = opened(bench)
    deliver(bench, sink, number, ROWS)
    database = bench.servers[server].database
    for text in STATEMENTS if (moment, server) != ("after", 2) else STATEMENTS[3:5]:
        (engine,) = {id(part._engine): part._engine for part in sink._servers}.values()
        assert isinstance(engine, FaultyEngine)
        text = text.format(database=database)
        setattr(engine, moment, lambda statement, text=text: text in statement and database in statement)
        added = [(100 * fence + index, "new") for index in range(20)]
        broken = pytest.raises(BrokenConnectionError)
        with broken:
            deliver(bench, sink, number + 1, added, fence=fence)
        fence += 1
        sink = opened(bench, fence)
        published = sink.published()
        assert published is not None
        if published.checkpoint == number + 1:
            rows += Counter(added)
            number += 1
        assert Counter(bench.read(ORDERS)) == Counter(bench.read(LINES)) == rows
        pointers = {part.published() and str(part.published().transaction) for part in sink._servers}  # type: ignore[union-attr]
        assert len(pointers) == 1
    assert number > 1


# -- servers in processes of their own ---------------------------------------------------------------


class ShardedMirror(Mirror):
    """As `Mirror`, on two servers."""

    def __init__(self, servers: Sequence[Server], database: str) -> None:
        super().__init__(servers[0], database)
        self.servers = servers

    def open(self, fence: int, **options: str) -> Sink:
        urls = ", ".join(f"clickhouse://127.0.0.1:{server.port}/{self.database}" for server in self.servers)
        options |= {f"partition_by.{name.table}": "part" for name in TABLES}
        sink = open_sink("mirror", "clickhouse", {"url": urls, "chunk_rows": "2", **options})
        sink.fence(Fence(fence))
        for name in TABLES:
            sink.ensure(name, SCHEMA, (), Fence(fence))
        return sink


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    folder = tmp_path_factory.mktemp("servers")
    servers = [Server(folder / name) for name in ("one", "two")]
    yield servers
    for server in servers:
        server.stop()


@pytest.mark.parametrize("text", ["MOVE PARTITION", "taut_published (", "_1`", "CREATE TABLE"])
@pytest.mark.parametrize("position", [0, 1])
@pytest.mark.slow
def test_deliveries_wait_for_a_server_that_is_down(
    servers: list[Server], request: pytest.FixtureRequest, text: str, position: int
) -> None:
    mirror = ShardedMirror(servers, re.sub(r"\W", "_", request.node.name))
    sink, server = mirror.open(1), servers[position]
    mirror.deliver(sink, 1, 1, FIRST)
    server.plan("die", text)
    with pytest.raises(Exception, match=r"\w"):
        mirror.deliver(sink, 2, 1, SECOND)
    server.process.wait()
    with pytest.raises(SinkError) as waits:
        sink.recover([], Fence(1))
    assert (waits.value.error_class, waits.value.retryable) == ("SINK_NOT_REACHABLE", True)
    assert f":{server.port}/" in str(waits.value)
    server.start()
    sink.recover([], Fence(1))
    published = sink.published()
    assert published is not None
    mirror.check(sink, published.checkpoint, [*FIRST, *SECOND] if published.checkpoint == 2 else FIRST)
    if published.checkpoint == 1:
        mirror.deliver(sink, 2, 1, SECOND, attempt=2)
        mirror.check(sink, 2, [*FIRST, *SECOND])
    sink.close()


def test_several_urls_are_several_servers() -> None:
    url = "clickhouse://a@one/shop, clickhouses://two:9443/shop"
    servers = server_options("mirror", {"url": url, "password": "p"})
    assert [server.address for server in servers] == ["one:8123/shop", "two:9443/shop"]
    with pytest.raises(SinkError, match="SINK_OPTION_INVALID"):
        server_options("mirror", {"url": "clickhouse://one/shop, clickhouse://one:8123/shop"})


def test_a_database_under_two_names_is_refused(tmp_path: Path) -> None:
    server = Server(tmp_path / "engine")
    try:
        urls = [f"clickhouse://{host}:{server.port}/shop" for host in ("127.0.0.1", "localhost")]
        with pytest.raises(SinkError, match="SINK_SERVERS_SAME"):
            open_sink("mirror", "clickhouse", {"url": ", ".join(urls)})
        # The database is not spoiled for the right url.
        sink = open_sink("mirror", "clickhouse", {"url": urls[0]})
        server.stop()
        with pytest.raises(SinkError) as waits:
            sink.recover([], Fence(1))
        assert (waits.value.error_class, waits.value.retryable) == ("SINK_NOT_REACHABLE", True)
        sink.close()
    finally:
        server.stop()


@pytest.mark.parametrize("engine", ["Replicated", "Shared"])
def test_a_replicated_database_is_refused(engine: str) -> None:
    class Replicated(FaultyEngine):
        def rows(self, query: str) -> list[list[Any]]:
            return [[engine]] if "system.databases" in query else [[0]]

    with pytest.raises(SinkError, match="SINK_DATABASE_REPLICATED"):
        Ledger("mirror", Replicated(None), "shop")  # type: ignore[arg-type]

"""Rows are counted only where nothing but their number can differ; else they are compared by their hashes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import types as spark
from tests.sinks.clickhouse.benches import BrokenConnectionError, CountingBench, EmbeddedBench, FaultyEngine

from tautochrone.errors import SinkContentError, SinkError
from tautochrone.model.names import Fence, TableName
from tautochrone.model.reason import ReasonCode
from tautochrone.model.sink import Intent, Recovered, SentChunk, TransactionState
from tautochrone.sinks.clickhouse.comparison import ComparisonPolicy
from tautochrone.sinks.clickhouse.engines import ServerRun
from tautochrone.sinks.clickhouse.options import ClickHouseOptions
from tautochrone.sinks.clickhouse.rows import Batch
from tautochrone.sinks.clickhouse.sink import ClickHouseSink
from tautochrone.sinks.clickhouse.types import MirroredColumn, column_type
from tautochrone.testing.sink_conformance import LINES, ORDERS, SinkConformance, begin, new_intent

SUITE = SinkConformance()
LONG = [MirroredColumn("id", column_type("mirror", "t.id", spark.LongType()), "")]
_databases = iter(range(1_000))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("clickhouse")
    keeper = EmbeddedBench(folder)
    yield folder
    keeper.close()


@pytest.fixture
def bench(folder: Path) -> Iterator[EmbeddedBench]:
    bench = EmbeddedBench(folder, database=f"compared_{next(_databases)}")
    yield bench
    bench.close()


def opened(bench: EmbeddedBench, fence: int = 1) -> ClickHouseSink:
    sink = bench.open()
    assert isinstance(sink, ClickHouseSink)
    sink.fence(Fence(fence))
    for table in (ORDERS, LINES):
        sink.ensure(table, bench.schema(), (), Fence(fence))
    return sink


def engine_of(sink: ClickHouseSink) -> FaultyEngine:
    engine = sink._first._engine
    assert isinstance(engine, FaultyEngine)
    return engine


def codes(sink: ClickHouseSink) -> set[ReasonCode]:
    return {reason.code for reason in sink.comparison_reasons().values()}


def hashed(chunks: Sequence[SentChunk]) -> list[bool]:
    return [bool(chunk.digest.hash) for chunk in chunks]


def test_only_the_first_chunk_of_a_run_is_hashed(bench: EmbeddedBench) -> None:
    sink = opened(bench)
    first, second = new_intent(1), new_intent(2)
    begin(sink, first)
    chunks = SUITE.send(bench, sink, first, (1, "one"), (2, "two"))
    assert hashed(chunks) == [True, False] * 2
    assert codes(sink) == {ReasonCode.SINK_ROWS_HASHED_FIRST}
    sink.prepare(first.transaction, chunks)
    sink.commit(first.transaction, Fence(1))
    begin(sink, second)
    chunks = SUITE.send(bench, sink, second, (3, "three"))
    assert hashed(chunks) == [False, False]
    assert codes(sink) == {ReasonCode.SINK_ROWS_COUNTED}
    engine_of(sink).statements.clear()
    sink.prepare(second.transaction, chunks)
    sink.commit(second.transaction, Fence(1))
    assert not [text for text in engine_of(sink).statements if "MD5" in text]
    SUITE.same_rows(bench, sink, (1, "one"), (2, "two"), (3, "three"))
    # Another object has proven nothing, and neither has this one after a recovery or for a new column.
    for other in (opened(bench), sink):
        other.recover([], Fence(1))
        intent = new_intent(3, attempt=1 + (other is sink))
        begin(other, intent)
        assert hashed(SUITE.send(bench, other, intent, (4, "four"))) == [True, True]
        other.abort(intent.transaction, Fence(1))
    deliver_two(bench, sink, 4)
    sink.ensure(ORDERS, bench.schema("more"), (), Fence(1))
    intent = new_intent(6)
    begin(sink, intent)
    assert hashed(SUITE.send(bench, sink, intent, (5, "five"))) == [True, False]


def deliver_two(bench: EmbeddedBench, sink: ClickHouseSink, checkpoint: int) -> None:
    for number in (checkpoint, checkpoint + 1):
        SUITE.deliver(bench, sink, new_intent(number), (number, "x"))
    assert codes(sink) == {ReasonCode.SINK_ROWS_COUNTED}


def test_rows_that_are_staged_again_are_hashed(bench: EmbeddedBench) -> None:
    """An insert of the first try may still come, with as many other rows under the same number."""
    sink = opened(bench)
    deliver_two(bench, sink, 1)
    intent = new_intent(3)
    begin(sink, intent)
    engine_of(sink).after = lambda text: "INSERT INTO" in text
    with pytest.raises(BrokenConnectionError):
        SUITE.send(bench, sink, intent, (7, "seven"))
    chunks = SUITE.send(bench, sink, intent, (7, "seven"))
    # Only the insert into the first table was not answered.
    assert hashed(chunks) == [True, False]
    assert {table: reason.code for table, reason in sink.comparison_reasons().items()} == {
        ORDERS: ReasonCode.SINK_ROWS_HASHED_AGAIN,
        LINES: ReasonCode.SINK_ROWS_COUNTED,
    }
    staging = sink._first._tables.staging_name(intent.transaction, ORDERS, Fence(1))
    name = sink._first._tables.qualified_staging(staging)
    columns = "id, word, _ck, _sign, _nulls, _chunk"
    bench.reader.run(f"TRUNCATE TABLE {name}")
    bench.reader.run(f"INSERT INTO {name} ({columns}) VALUES (8, 'other', 3, 1, '', 0)")
    with pytest.raises(SinkContentError):
        sink.prepare(intent.transaction, chunks)


def test_a_transaction_that_another_object_began_is_hashed(bench: EmbeddedBench) -> None:
    sink = opened(bench)
    deliver_two(bench, sink, 1)
    intent = new_intent(3)
    begin(opened(bench), intent)
    begin(sink, intent)
    assert hashed(SUITE.send(bench, sink, intent, (3, "three"))) == [True, True]
    assert codes(sink) == {ReasonCode.SINK_ROWS_HASHED_AGAIN}


@pytest.mark.parametrize("statement", ["VALUES (9, 'x', 3, 1, '', 0)", "SELECT * FROM {}", "DELETE"])
def test_rows_that_are_too_many_or_too_few_are_found(bench: EmbeddedBench, statement: str) -> None:
    """An insert that a client or a proxy repeats without saying so, or of which the server keeps nothing."""
    sink = opened(bench)
    deliver_two(bench, sink, 1)
    intent = new_intent(3)
    begin(sink, intent)
    chunks = SUITE.send(bench, sink, intent, (3, "three"))
    assert hashed(chunks) == [False, False]
    name = sink._first._tables.qualified_staging(
        sink._first._tables.staging_name(intent.transaction, LINES, Fence(1))
    )
    if statement == "DELETE":
        bench.reader.run(f"TRUNCATE TABLE {name}")
    else:
        columns = "id, word, _ck, _sign, _nulls, _chunk"
        source = statement.format(name).replace("*", columns)
        bench.reader.run(f"INSERT INTO {name} ({columns}) {source}")
    with pytest.raises(SinkContentError):
        sink.prepare(intent.transaction, chunks)
    sink.abort(intent.transaction, Fence(1))
    SUITE.deliver(bench, sink, new_intent(3, attempt=2), (3, "three"))
    SUITE.same_rows(bench, sink, (1, "x"), (2, "x"), (3, "three"))


def test_a_new_owner_drops_counted_rows_that_are_not_decided(folder: Path) -> None:
    bench = CountingBench(folder, database="counted_owners", **{"partition_by.orders": "id"})
    rows = [(number, "x") for number in range(3)]
    for decided in (False, True):
        fence = 1 + decided
        sink = opened(bench, fence)
        intent = new_intent(fence, fence)
        begin(sink, intent)
        chunks = SUITE.send(bench, sink, intent, *rows)
        sink.prepare(intent.transaction, chunks)
        if decided:
            moves = iter(range(10))
            engine_of(sink).after = lambda text, moves=moves: "MOVE" in text and next(moves) == 1
            with pytest.raises(BrokenConnectionError):
                sink.commit(intent.transaction, Fence(fence))
        named = Intent(transaction=intent.transaction, versions=intent.versions, chunks=tuple(chunks))
        owner = opened(bench, fence + 1)
        (recovered,) = owner.recover([named], Fence(fence + 1))
        state = TransactionState.COMMITTED if decided else TransactionState.ABORTED
        assert recovered == Recovered(intent.transaction, state)
        SUITE.same_rows(bench, owner, *(rows if decided else []))
    bench.close()


def test_a_moved_partition_with_other_rows_is_found_by_their_number(folder: Path) -> None:
    bench = CountingBench(folder, database="counted_moves")
    sink = opened(bench)
    intent = new_intent(1)
    begin(sink, intent)
    sink.prepare(intent.transaction, SUITE.send(bench, sink, intent, (1, "one")))
    name = sink._first._tables.rows(ORDERS)
    bench.reader.run(f"INSERT INTO {name} (id, word, _ck, _sign) VALUES (2, 'two', 1, 1)")
    with pytest.raises(SinkContentError):
        sink.commit(intent.transaction, Fence(1))
    bench.close()


# -- the rules ------------------------------------------------------------------------------------


TABLE = TableName("lake", ("shop",), "orders")


def counts(comparison: ComparisonPolicy) -> bool:
    check, _ = comparison.of(TABLE, LONG, is_new=True)
    return check.counts and not check.hashes_first


def test_a_restarted_server_has_to_be_proven_again() -> None:
    comparison = ComparisonPolicy("mirror", ClickHouseOptions(host="ch", is_encrypted=True))
    comparison.observe_run(ServerRun(1000, 50))
    assert not counts(comparison)
    comparison.record_proven(TABLE, LONG)
    assert counts(comparison)
    # Both values are rounded.
    for started_s in (1001, 1000, 999):
        assert comparison.observe_run(ServerRun(started_s, 100))
    assert counts(comparison)
    assert not comparison.observe_run(ServerRun(1002, 100))
    assert not counts(comparison)
    comparison.record_proven(TABLE, LONG)
    assert counts(comparison)
    with pytest.raises(SinkError, match="SINK_SERVER_RESTARTED"):
        comparison.require_no_restart(ServerRun(1500, 4))
    # Another restart could have the same second.
    comparison.observe_run(ServerRun(2000, 3))
    comparison.record_proven(TABLE, LONG)
    assert comparison.of(TABLE, LONG, is_new=True)[0].counts is False


def test_an_option_a_type_and_the_network_decide() -> None:
    text = [MirroredColumn("tags", column_type("mirror", "t.tags", spark.ArrayType(spark.StringType())), "")]
    for options, columns, is_new, code in (
        ({"is_encrypted": False}, LONG, True, ReasonCode.SINK_ROWS_HASHED_WITHOUT_TLS),
        ({"is_encrypted": False, "compare": "count"}, LONG, True, ReasonCode.SINK_ROWS_HASHED_FIRST),
        ({"compare": "hash"}, LONG, True, ReasonCode.SINK_ROWS_HASHED_BY_OPTION),
        ({}, text, True, ReasonCode.SINK_ROWS_HASHED_COMPOSITES),
        ({}, LONG, False, ReasonCode.SINK_ROWS_HASHED_AGAIN),
        ({}, LONG, True, ReasonCode.SINK_ROWS_HASHED_FIRST),
    ):
        values: dict[str, Any] = {"host": "ch", "is_encrypted": True, **options}
        comparison = ComparisonPolicy("mirror", ClickHouseOptions(**values))
        comparison.observe_run(ServerRun(1000, 50))
        check, reason = comparison.of(TABLE, columns, is_new=is_new)
        assert reason.code is code
        assert check.counts is (code is ReasonCode.SINK_ROWS_HASHED_FIRST)


@pytest.mark.parametrize(
    ("kind", "near", "far"),
    [
        (
            spark.DateType(),
            [dt.date(1900, 1, 1), dt.date(2299, 12, 31)],
            [dt.date(1899, 12, 31), dt.date(2300, 1, 1)],
        ),
        (
            spark.TimestampType(),
            [dt.datetime(1900, 1, 1, tzinfo=dt.UTC), dt.datetime(2299, 12, 31, 23, 59, tzinfo=dt.UTC)],
            [dt.datetime(1899, 12, 31, 23, tzinfo=dt.UTC), dt.datetime(2300, 1, 1, tzinfo=dt.UTC)],
        ),
    ],
)
def test_chunks_with_far_dates_are_hashed(kind: Any, near: list[Any], far: list[Any]) -> None:
    column = MirroredColumn("day", column_type("mirror", "t.day", kind), "")
    comparison = ComparisonPolicy("mirror", ClickHouseOptions(folder="f"))
    comparison.record_proven(TABLE, [column])
    check, _ = comparison.of(TABLE, [column], is_new=True)
    for values, is_hashed in (
        ([*near, None], False),
        ([None, None], False),
        *(([*near, value], True) for value in far),
    ):
        assert check.is_hashed(Batch.of([column], ["day"], [values]), is_first=False) is is_hashed

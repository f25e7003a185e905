"""What ClickHouse does with repeated inserts and moves, and that the sink depends on none of it.

Each trap is shown on the engine: should a newer one behave differently, the sink's reasons have changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.sinks.clickhouse.benches import EmbeddedBench

from tautochrone.errors import SinkError
from tautochrone.model.names import CheckpointNumber, Fence
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.sink import ReportsWaits
from tautochrone.sinks.clickhouse import server as server_module
from tautochrone.sinks.clickhouse.engines import Engine
from tautochrone.testing.sink_conformance import LINES, ORDERS, SinkConformance, begin, new_intent


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBench]:
    bench = EmbeddedBench(tmp_path_factory.mktemp("traps"))
    bench.reader.run("CREATE DATABASE traps ENGINE = Atomic")
    yield bench
    bench.close()


@pytest.fixture
def engine(bench: EmbeddedBench) -> Engine:
    return bench.reader


def create(engine: Engine, *tables: str, window: int) -> None:
    for table in tables:
        engine.run(
            f"CREATE OR REPLACE TABLE traps.{table} (p Int32, id Int32) ENGINE = MergeTree PARTITION BY p "
            f"ORDER BY id SETTINGS non_replicated_deduplication_window = {window}"
        )


def insert(engine: Engine, table: str, values: str, token: str = "") -> None:
    settings = f"SETTINGS insert_deduplication_token = '{token}' " if token else ""
    engine.run(f"INSERT INTO traps.{table} {settings}VALUES {values}")


def rows(engine: Engine, table: str) -> list[list[int]]:
    return engine.rows(f"SELECT p, id FROM traps.{table} ORDER BY p, id")


def test_a_token_is_ignored_without_a_window(engine: Engine) -> None:
    create(engine, "plain", window=0)
    for _ in range(2):
        insert(engine, "plain", "(1, 1)", token="same")
    assert rows(engine, "plain") == [[1, 1], [1, 1]]


def test_a_deleted_row_does_not_come_back_under_its_token(engine: Engine) -> None:
    create(engine, "deleted", window=100)
    insert(engine, "deleted", "(1, 1)", token="same")
    engine.run("ALTER TABLE traps.deleted DELETE WHERE 1 SETTINGS mutations_sync = 2")
    insert(engine, "deleted", "(1, 1)", token="same")
    assert rows(engine, "deleted") == []


def test_other_rows_under_a_used_token_are_lost_by_partition(engine: Engine) -> None:
    create(engine, "reused", window=100)
    insert(engine, "reused", "(1, 1), (2, 2)", token="same")
    insert(engine, "reused", "(1, 99), (3, 98)", token="same")
    assert rows(engine, "reused") == [[1, 1], [2, 2], [3, 98]]


def test_a_window_forgets_old_tokens(engine: Engine) -> None:
    create(engine, "small", window=3)
    for number in range(6):
        insert(engine, "small", f"(1, {number})", token=f"t{number}")
    insert(engine, "small", "(1, 0)", token="t0")
    assert rows(engine, "small").count([1, 0]) == 2


@pytest.mark.parametrize(("window", "staged"), [(100, 0), (0, 2)])
def test_a_staging_table_with_a_window_drops_rows_staged_again(
    engine: Engine, window: int, staged: int
) -> None:
    create(engine, "staging", "target", window=window)
    insert(engine, "staging", "(1, 1), (1, 2)")
    engine.run("ALTER TABLE traps.staging MOVE PARTITION 1 TO TABLE traps.target")
    engine.run("TRUNCATE TABLE traps.target")
    insert(engine, "staging", "(1, 1), (1, 2)")
    assert len(rows(engine, "staging")) == staged


def test_a_move_can_be_repeated_and_an_attach_cannot(engine: Engine) -> None:
    create(engine, "moved", "attached", "origin", window=0)
    insert(engine, "origin", "(1, 1)")
    for _ in range(2):
        engine.run("ALTER TABLE traps.attached ATTACH PARTITION 1 FROM traps.origin")
    for _ in range(2):
        engine.run("ALTER TABLE traps.origin MOVE PARTITION 1 TO TABLE traps.moved")
    assert rows(engine, "attached") == [[1, 1], [1, 1]]
    assert rows(engine, "moved") == [[1, 1]]


def test_several_moves_in_one_statement_are_not_atomic(engine: Engine) -> None:
    create(engine, "several", "several_target", window=0)
    insert(engine, "several", "(1, 1), (2, 2)")
    with pytest.raises(SinkError):
        engine.run(
            "ALTER TABLE traps.several MOVE PARTITION 1 TO TABLE traps.several_target, "
            "MOVE PARTITION 2 TO TABLE traps.nothing"
        )
    assert rows(engine, "several_target") == [[1, 1]]


def test_replacing_merges_lose_the_versions_of_older_checkpoints(engine: Engine) -> None:
    engine.run(
        "CREATE TABLE traps.replacing (id Int32, value Int32, ck Int32) "
        "ENGINE = ReplacingMergeTree(ck) ORDER BY id"
    )
    for number in (1, 2):
        engine.run(f"INSERT INTO traps.replacing VALUES (7, {number}, {number})")
    engine.run("OPTIMIZE TABLE traps.replacing FINAL")
    assert engine.rows("SELECT id FROM traps.replacing WHERE ck <= 1") == []


def test_the_sink_delivers_the_same_rows_again_and_again(bench: EmbeddedBench) -> None:
    """Rows that came, went and come again, staged twice, in tables that were merged meanwhile."""
    sink, suite = bench.open(), SinkConformance()
    sink.fence(Fence(1))
    sink.ensure(ORDERS, bench.schema(), (), Fence(1))
    sink.ensure(LINES, bench.schema(), (), Fence(1))
    for number in range(1, 6):
        intent = new_intent(number)
        came, went = ([(1, "one")], []) if number % 2 else ([], [(1, "one")])
        begin(sink, intent)
        suite.send(bench, sink, intent, *came, removed=went)
        sink.prepare(intent.transaction, suite.send(bench, sink, intent, *came, removed=went))
        sink.commit(intent.transaction, Fence(1))
        bench.reader.run("OPTIMIZE TABLE lake.taut_rows_shop__orders FINAL")
        assert bench.read(ORDERS) == came
    for number in range(1, 6):
        shown = [(1, "one")] if number % 2 else []
        assert sink.audit(ORDERS, CheckpointNumber(number)) == sink.digest(ORDERS, bench.frame(shown))


def test_a_delivery_waits_while_a_table_has_many_unmerged_parts(
    bench: EmbeddedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_MERGES_S", 0.5)
    folder = bench.options.folder
    crowded = EmbeddedBench(
        Path(folder), database="crowded", max_parts="2", chunk_rows="100", chunk_bytes="40"
    )
    sink, suite = crowded.open(), SinkConformance()
    sink.fence(Fence(1))
    sink.ensure(ORDERS, crowded.schema(), (), Fence(1))
    sink.ensure(LINES, crowded.schema(), (), Fence(1))
    tables = [f"crowded.taut_rows_shop__{name}" for name in ("orders", "lines")]
    for table in tables:
        crowded.reader.run(f"SYSTEM STOP MERGES {table}")
    reasons: list[Reason] = []
    assert isinstance(sink, ReportsWaits)
    sink.on_wait(reasons.append)
    for number in (1, 2, 3):
        suite.deliver(crowded, sink, new_intent(number), (number, "one"))
    with pytest.raises(SinkError) as refused:
        begin(sink, new_intent(4))
    assert (refused.value.error_class, refused.value.retryable) == ("SINK_TOO_MANY_PARTS", True)
    # People are told when the wait begins.
    assert [reason.code for reason in reasons] == [ReasonCode.SINK_PARTS_UNMERGED]
    assert (reasons[0].params["parts"], reasons[0].params["limit"]) == (3, 2)
    for table in tables:
        crowded.reader.run(f"SYSTEM START MERGES {table}")
        crowded.reader.run(f"OPTIMIZE TABLE {table} FINAL")
    intent = new_intent(5)
    begin(sink, intent)
    rows = [(number, "x" * 10) for number in range(4, 10)]
    chunks = suite.send(crowded, sink, intent, *rows)
    # Larger than chunk_bytes, so they came in several inserts.
    assert len(chunks) > 2
    sink.prepare(intent.transaction, chunks)
    sink.commit(intent.transaction, Fence(1))
    assert len(crowded.read(ORDERS)) == 9
    crowded.close()

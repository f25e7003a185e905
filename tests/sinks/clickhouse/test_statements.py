"""How often a transaction asks its server, and that this is often enough when a newer owner comes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.sinks.clickhouse.benches import BrokenConnectionError, EmbeddedBench, FaultyEngine

from tautochrone.errors import SinkError
from tautochrone.model.names import CheckpointNumber, Fence
from tautochrone.model.sink import Intent, SentChunk
from tautochrone.sinks.clickhouse import staging
from tautochrone.sinks.clickhouse.sink import ClickHouseSink
from tautochrone.testing.sink_conformance import LINES, ORDERS, Row, SinkConformance, begin, new_intent

SUITE = SinkConformance()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[EmbeddedBench]:
    bench = EmbeddedBench(tmp_path / "engine", chunk_rows="2")
    yield bench
    bench.close()


class Owner:
    """A sink of one owner."""

    def __init__(self, bench: EmbeddedBench, fence: int) -> None:
        sink = bench.open()
        assert isinstance(sink, ClickHouseSink)
        self.bench, self.sink, self.fence = bench, sink, fence
        sink.fence(Fence(fence))

    def take_over(self, *intents: Intent) -> None:
        self.sink.recover(intents, Fence(self.fence))
        for table in (ORDERS, LINES):
            self.sink.ensure(table, self.bench.schema(), (), Fence(self.fence))

    @property
    def engine(self) -> FaultyEngine:
        engine = self.sink._first._engine
        assert isinstance(engine, FaultyEngine)
        return engine

    def stage(self, checkpoint: int, row: Row, *, replaces: bool = False) -> Intent:
        tables = (ORDERS, LINES)
        intent = new_intent(checkpoint, self.fence, replaced=tables if replaces else ())
        begin(self.sink, intent)
        chunks: list[SentChunk] = []
        if replaces:
            for table in tables:
                chunks += self.sink.replace(intent.transaction, table, self.bench.frame([row]))
        else:
            chunks += SUITE.send(self.bench, self.sink, intent, row)
        self.sink.prepare(intent.transaction, chunks)
        return Intent(
            transaction=intent.transaction,
            versions=intent.versions,
            replaced=intent.replaced,
            chunks=tuple(chunks),
        )

    def deliver(self, checkpoint: int, row: Row) -> None:
        self.sink.commit(self.stage(checkpoint, row).transaction, Fence(self.fence))


def test_a_small_transaction_asks_its_server_rarely(bench: EmbeddedBench) -> None:
    owner = Owner(bench, 1)
    owner.take_over()
    owner.deliver(1, (1, "one"))
    owner.engine.statements.clear()
    owner.deliver(2, (2, "two"))
    # Of each table: create, check, insert, compare, move, look at what arrived, drop. Of all tables: what the
    # sink shows (2), whether that is the base, twice (2 each), and what the pointer records (3).
    assert len(owner.engine.statements) == 5 + 2 * 7 + 2 + 2 * 2 + 3, owner.engine.statements
    SUITE.same_rows(bench, owner.sink, (1, "one"), (2, "two"))


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_insert_that_breaks_during_encoding_fails_the_write(
    bench: EmbeddedBench, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    monkeypatch.setattr(staging, "_PIPELINED_ROWS", 1)
    owner = Owner(bench, 1)
    owner.take_over()
    rows: list[Row] = [(number, "x") for number in range(5)]
    intent = new_intent(1)
    begin(owner.sink, intent)
    for broken in range(1, 4):
        inserts = iter(range(1, 10))
        condition = lambda text, inserts=inserts, broken=broken: (  # noqa: E731
            "INSERT INTO" in text and next(inserts) == broken
        )
        setattr(owner.engine, moment, condition)
        with pytest.raises(BrokenConnectionError):
            SUITE.send(bench, owner.sink, intent, *rows)
        setattr(owner.engine, moment, None)
    chunks = SUITE.send(bench, owner.sink, intent, *rows)
    assert [chunk.digest.rows for chunk in chunks] == [2, 2, 1] * 2
    owner.sink.prepare(intent.transaction, chunks)
    owner.sink.commit(intent.transaction, Fence(1))
    SUITE.same_rows(bench, owner.sink, *rows)


STATEMENTS = (
    "taut_transactions SELECT",
    "taut_replaced VALUES",
    "MOVE PARTITION",
    "taut_published (",
    "DROP",
)


@pytest.mark.parametrize(
    ("replaces", "is_named"),
    [
        (True, False),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in ((True, True), (False, False), (False, True))
        ),
    ],
)
def test_an_owner_that_is_overtaken_within_its_commit_changes_nothing(
    bench: EmbeddedBench, *, replaces: bool, is_named: bool
) -> None:
    """Before a statement of the commit a newer owner takes over and delivers, and one after it again."""
    fence = checkpoint = 1
    owner = Owner(bench, fence)
    owner.take_over()
    rows: list[Row] = [(0, "first")]
    owner.deliver(checkpoint, rows[0])
    for text in STATEMENTS if replaces else (STATEMENTS[0], *STATEMENTS[2:]):
        checkpoint += 1
        staged = owner.stage(checkpoint, (checkpoint, "staged"), replaces=replaces)
        overtaken = Overtaking(bench, fence + 1, text, staged, is_named=is_named)
        owner.engine.before = overtaken
        with suppress(SinkError):
            owner.sink.commit(staged.transaction, Fence(fence))
        assert overtaken.is_done
        if overtaken.has_committed:
            rows = [*([] if replaces else rows), (checkpoint, "staged")]
            checkpoint += 1
        rows += [(checkpoint, "newer"), (checkpoint + 1, "newer")]
        checkpoint += 1
        SUITE.same_rows(bench, owner.sink, *rows)
        fence += 2
        owner = Owner(bench, fence)
        owner.take_over()
        SUITE.same_rows(bench, owner.sink, *rows)
        checkpoint += 1
        rows.append((checkpoint, "newest"))
        owner.deliver(checkpoint, rows[-1])
        SUITE.same_rows(bench, owner.sink, *rows)
        expected = owner.sink.digest(ORDERS, bench.frame(rows))
        assert owner.sink.audit(ORDERS, CheckpointNumber(checkpoint)) == expected


class Overtaking:
    """What happens before the statement with a text: a newer owner takes over and delivers."""

    def __init__(
        self, bench: EmbeddedBench, fence: int, text: str, staged: Intent, *, is_named: bool
    ) -> None:
        self.bench, self.fence, self.text, self.staged, self.is_named = bench, fence, text, staged, is_named
        self.is_done = self.has_committed = False

    def __call__(self, statement: str) -> bool:
        if self.is_done or self.text not in statement:
            return False
        self.is_done = True
        owner = Owner(self.bench, self.fence)
        owner.take_over(*([self.staged] if self.is_named else []))
        published = owner.sink.published()
        assert published is not None
        self.has_committed = published.transaction == self.staged.transaction
        checkpoint = self.staged.checkpoint + self.has_committed
        owner.deliver(checkpoint, (checkpoint, "newer"))
        owner.deliver(checkpoint + 1, (checkpoint + 1, "newer"))
        return False

"""Folding of history: it changes nothing that a kept checkpoint shows, whatever breaks in between."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.sinks.clickhouse.benches import BrokenConnectionError, EmbeddedBench, FaultyEngine

from tautochrone.errors import SinkError
from tautochrone.model.lake import RowChange
from tautochrone.model.names import CheckpointNumber, Fence
from tautochrone.model.sink import SentChunk
from tautochrone.sinks.clickhouse import sink as sink_module
from tautochrone.sinks.clickhouse.sink import ClickHouseSink
from tautochrone.testing.sink_conformance import LINES, ORDERS, Row, begin, new_intent

TABLES = (ORDERS, LINES)


class Mirror:
    """Two tables that change at random, and what each checkpoint of them is."""

    def __init__(self, folder: Path, **options: str) -> None:
        options = {"keep_checkpoints": "3", "keep_minutes": "0", "chunk_rows": "1000", **options}
        options |= {f"partition_by.{table.table}": "word" for table in TABLES}
        self.bench = EmbeddedBench(folder, **options)
        self.chance = random.Random(7)
        self.rows: Counter[Row] = Counter()
        self.history: dict[int, Counter[Row]] = {}
        self.fence = 0
        self.take_over()

    def take_over(self) -> None:
        """A new owner, as after a kill."""
        self.fence += 1
        sink = self.bench.open()
        assert isinstance(sink, ClickHouseSink)
        self.sink = sink
        self.sink.fence(Fence(self.fence))
        self.sink.recover([], Fence(self.fence))
        for table in TABLES:
            self.sink.ensure(table, self.bench.schema(), (), Fence(self.fence))

    @property
    def engine(self) -> FaultyEngine:
        engine = self.sink._first._engine
        assert isinstance(engine, FaultyEngine)
        return engine

    def deliver(self, *, replaces: bool = False) -> None:
        number = len(self.history) + 1
        chance = self.chance
        removed = Counter(chance.sample(list(self.rows.elements()), min(6, self.rows.total())))
        added = Counter((chance.randrange(6), chance.choice("ab")) for _ in range(8))
        self.rows = added if replaces else self.rows - removed + added
        intent = new_intent(number, self.fence, replaced=TABLES if replaces else ())
        begin(self.sink, intent)
        chunks: list[SentChunk] = []
        for table in TABLES:
            if replaces:
                rows = self.bench.frame(list(added.elements()))
                chunks += self.sink.replace(intent.transaction, table, rows)
                continue
            net_added, net_removed = added - removed, removed - added
            change = RowChange(
                added=self.bench.frame(list(net_added.elements())),
                removed=self.bench.frame(list(net_removed.elements())),
                rows=net_added.total() + net_removed.total(),
            )
            chunks += self.sink.write(intent.transaction, table, change)
        self.sink.prepare(intent.transaction, chunks)
        self.sink.commit(intent.transaction, Fence(self.fence))
        self.history[number] = Counter(self.rows)

    def check(self, oldest: int) -> None:
        """Every checkpoint from `oldest` on shows its rows, and older ones say that they are gone."""
        for table in TABLES:
            assert Counter(self.bench.read(table)) == self.rows
            view = f"`{self.bench.options.database}`.`shop__{table.table}_at`"
            for number, rows in self.history.items():
                if number < oldest:
                    if number < oldest - 1:
                        continue
                    with pytest.raises(SinkError, match="no longer kept"):
                        self.bench.reader.rows(f"SELECT * FROM {view}(checkpoint = {number})")
                    with pytest.raises(SinkError, match="CHECKPOINT_GONE"):
                        self.sink.audit(table, CheckpointNumber(number))
                    continue
                shown = self.bench.reader.rows(f"SELECT * FROM {view}(checkpoint = {number})")
                assert Counter((int(key), word) for key, word in shown) == rows
                expected = self.sink.digest(table, self.bench.frame(list(rows.elements())))
                assert self.sink.audit(table, CheckpointNumber(number)) == expected

    def stored(self, table: str) -> int:
        ((count,),) = self.bench.reader.rows(
            f"SELECT toUInt32(count()) FROM `{self.bench.options.database}`.`{table}`"
        )
        return int(count)


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    monkeypatch.setattr(sink_module, "_MAINTAINED_EVERY", 1)
    mirror = Mirror(tmp_path)
    yield mirror
    mirror.bench.close()


def test_stored_rows_do_not_grow_with_the_number_of_checkpoints(mirror: Mirror) -> None:
    sizes: list[tuple[int, ...]] = []
    for number in range(1, 10):
        mirror.deliver(replaces=number == 4)
        mirror.sink.maintain(Fence(1))
        tables = ("taut_published", "taut_transactions", "taut_replaced", "taut_folded", "taut_fences")
        sizes.append(tuple(map(mirror.stored, tables)))
    mirror.check(7)
    assert sizes[-1][0] == 3
    assert max(map(sum, sizes)) <= 20
    # Net rows, two changes of each row in the kept checkpoints, and what was not worth a rewrite.
    assert mirror.stored("taut_rows_shop__orders") < mirror.rows.total() * 1.3 + 3 * 14


STATEMENTS = ("taut_folded", "INSERT INTO `lake`.`taut_fold", "REPLACE", "MOVE", "DROP", "DELETE")


@pytest.mark.parametrize(
    ("moment", "statements"),
    [
        ("after", ("REPLACE", "DELETE")),
        pytest.param("before", STATEMENTS, marks=pytest.mark.slow),
        pytest.param("after", STATEMENTS, marks=pytest.mark.slow),
    ],
)
def test_a_kill_while_history_is_folded_changes_nothing(
    mirror: Mirror, moment: str, statements: Sequence[str]
) -> None:
    broken = 0
    for text in statements:
        for _ in range(4 if not broken else 2):
            mirror.deliver()
        if text == "MOVE":
            # All rows of one partition went.
            mirror.deliver(replaces=True)
            mirror.chance = random.Random(7)
        setattr(mirror.engine, moment, lambda statement, text=text: text in statement)
        try:
            mirror.sink.maintain(Fence(mirror.fence))
        except BrokenConnectionError:
            broken += 1
        setattr(mirror.engine, moment, None)
        mirror.take_over()
        mirror.check(mirror.sink._first._ledger.floor())
        mirror.sink.maintain(Fence(mirror.fence))
    mirror.check(len(mirror.history) - 2)
    assert broken >= len(statements) - 1


def test_a_pinned_checkpoint_stays_until_its_pin_ends(mirror: Mirror) -> None:
    for _ in range(3):
        mirror.deliver()
    run = mirror.bench.reader.run
    run("INSERT INTO lake.taut_pins (publication, until) VALUES (2, now() + INTERVAL 1 HOUR)")
    for _ in range(3):
        mirror.deliver()
    mirror.sink.maintain(Fence(1))
    mirror.check(2)
    run("ALTER TABLE lake.taut_pins DELETE WHERE 1 SETTINGS mutations_sync = 2")
    mirror.sink.maintain(Fence(1))
    mirror.check(4)


def test_a_pin_that_comes_while_the_floor_rises_stops_the_folding(mirror: Mirror) -> None:
    for _ in range(4):
        mirror.deliver()
    run = mirror.bench.reader.run

    def pin(statement: str) -> bool:
        if "taut_folded" in statement:
            run("INSERT INTO lake.taut_pins (publication, until) VALUES (1, now() + INTERVAL 1 HOUR)")
        return False

    mirror.engine.before = pin
    before = mirror.stored("taut_rows_shop__orders")
    assert not mirror.sink.maintain(Fence(1))
    assert mirror.stored("taut_rows_shop__orders") == before


def test_an_older_owner_folds_nothing(mirror: Mirror) -> None:
    for _ in range(4):
        mirror.deliver()
    old = mirror.sink
    mirror.take_over()
    before = mirror.stored("taut_rows_shop__orders")
    with pytest.raises(SinkError):
        old.maintain(Fence(1))
    assert mirror.stored("taut_rows_shop__orders") == before
    mirror.check(1)


def test_recent_checkpoints_are_kept_by_time(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path, keep_checkpoints="2", keep_minutes="10")
    for _ in range(3):
        mirror.deliver()
    assert not mirror.sink.maintain(Fence(1))
    mirror.check(1)
    mirror.bench.close()


def test_reads_group_only_partitions_in_which_rows_went(mirror: Mirror) -> None:
    for _ in range(2):
        mirror.deliver()
    read = "`lake`.`taut_read_shop__orders`(checkpoint = 2, changed = ['nothing'])"
    plan = "\n".join(row[0] for row in mirror.bench.reader.rows(f"EXPLAIN SELECT * FROM {read}"))
    _, _, grouped = plan.partition("Aggregating")
    assert "Parts: 0" in grouped or "Parts" not in grouped, plan

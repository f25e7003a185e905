"""Deliveries over a lake of lists: random schedules of checkpoints, revisions, crashes and takeovers.

At every moment the sink shows exactly what the lake had at the versions of its pointer.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import StructType
from tests.crash.faults import Crash, Strike, StrikingEffects

from tautochrone.errors import (
    CommitOutcomeUnknownError,
    FencedError,
    HistoryLostError,
    SinkError,
    SinkFencedError,
)
from tautochrone.meta import DatasetEntry, MetaStore, Store
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.model.effects import Step
from tautochrone.model.lake import CollectedChange, RowChange
from tautochrone.model.names import Fence, TableName, Version
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.sink import DeliveryState, SinkDeclaration
from tautochrone.runtime.delivery import delivery as delivery_module
from tautochrone.runtime.delivery import deltas
from tautochrone.runtime.delivery.delivery import Delivery, _with_defined_types
from tautochrone.runtime.job.journal import Journal
from tautochrone.testing.sink_conformance import Columns
from tautochrone.testing.sqlite_sink import FORMAT, ListRows, Mishap, MishapError, SqliteSink

ORDERS, LINES = (TableName("lake", ("default",), name) for name in ("orders", "lines"))
Bag = Counter[tuple[int, str]]


class Rows(ListRows):
    def unionByName(self, other: ListRows, *, allowMissingColumns: bool) -> Rows:  # noqa: N802, N803
        assert allowMissingColumns
        return Rows(self.columns, [*self.rows, *other.rows])


def rows_of(bag: Bag) -> Rows | None:
    return Rows(["id", "word"], list(bag.elements())) if bag else None


def net(added: ListRows, removed: ListRows) -> tuple[ListRows | None, ListRows | None]:
    came, left = Counter(added.rows), Counter(removed.rows)
    return rows_of(came - left), rows_of(left - came)


@dataclass
class Table:
    """A table whose versions form a tree, as after revisions."""

    name: TableName
    content: dict[Version, Bag] = field(default_factory=dict)
    parent: dict[Version, Version | None] = field(default_factory=dict)
    expired: set[Version] = field(default_factory=set)
    main: Version | None = None
    schema: Any = field(default_factory=lambda: Columns("id", "word"))
    lost: Sequence[str] = ()

    def commit(self, bag: Bag, parent: Version | None) -> Version:
        version = Version(f"{self.name.table}-{len(self.content)}")
        self.content[version], self.parent[version], self.main = bag, parent, version
        return version

    def ancestors(self, version: Version | None) -> list[Version]:
        ancestors: list[Version] = []
        while version is not None and version in self.content and version not in self.expired:
            ancestors.append(version)
            version = self.parent[version]
        return ancestors

    def collected_change(self, old: Version, new: Version) -> CollectedChange | Reason:
        change = self.changed_rows(None, old, new)
        if change.added is None and change.removed is None:
            return CollectedChange()
        return Reason.of(ReasonCode.STORAGE_NOT_LOCAL, location="memory")

    def changed_rows(self, _session: Any, old: Version, new: Version) -> RowChange:
        chain = self.ancestors(new)
        if old not in chain:
            raise HistoryLostError("HISTORY_LOST", f"{old} is not in the history of {new}")
        between = chain[: chain.index(old) + 1][::-1]
        added, removed = Bag(), Bag()
        for first, second in pairwise(between):
            added += self.content[second] - self.content[first]
            removed += self.content[first] - self.content[second]
        return RowChange(added=rows_of(added), removed=rows_of(removed))

    def common_ancestor(self, first: Version, second: Version) -> Version | None:
        before = self.ancestors(first)
        return next((version for version in self.ancestors(second) if version in before), None)

    def schema_at(self, _version: Version) -> Any:
        return self.schema

    def columns_lost(self, _old: Version, _new: Version) -> Sequence[str]:
        return self.lost

    def goes_back_to(self, version: Version) -> bool:
        return version in self.ancestors(self.main)

    def read(self, _session: Any, version: Version) -> Rows:
        return Rows(["id", "word"], list(self.content[version].elements()))


@dataclass
class World:
    """A store, a lake of two tables, a sink; and who owns the job."""

    folder: Path
    store: Store
    tables: dict[TableName, Table] = field(
        default_factory=lambda: {name: Table(name) for name in (ORDERS, LINES)}
    )
    fence: Fence = field(default_factory=lambda: Fence(0))
    events: list[dict[str, Any]] = field(default_factory=list)
    cut: int = 0

    @property
    def path(self) -> str:
        return str(self.folder / "mirror.db")

    def take_over(self) -> None:
        entries = [DatasetEntry(name, "streaming table", "x", is_root=True) for name in self.tables]
        self.store.jobs.start_run("shop", "job", entries)
        self.fence = self.store.jobs.take_over("job")

    def publish(self, bags: Sequence[Bag], parents: Sequence[Version | None] | None = None) -> int:
        tables = list(self.tables.values())
        parents = parents or [table.main for table in tables]
        roots = {
            table.name: table.commit(bag, parent)
            for table, bag, parent in zip(tables, bags, parents, strict=True)
        }
        self.cut += 1
        number = self.store.checkpoints.open("job", self.fence, NewCheckpoint(roots, self.cut)).number
        self.store.checkpoints.publish("job", self.fence, number, self.cut)
        return int(number)

    def delivery(
        self, effects: StrikingEffects | None = None, insert_only: Sequence[TableName] = (), **options: str
    ) -> Delivery:
        declaration = SinkDeclaration(
            name="mirror",
            format=FORMAT,
            tables=(LINES, ORDERS),
            options={"path": self.path, **options},
            insert_only=frozenset(insert_only),
        )
        return Delivery(self.job(effects or StrikingEffects(), Columns("id", "word")), declaration)

    def mirrored(
        self, format_name: str, options: Mapping[str, str], schema: Any, key: Sequence[str]
    ) -> Delivery:
        """A delivery to a sink of any format."""
        declaration = SinkDeclaration(
            name="mirror", format=format_name, tables=(LINES, ORDERS), options=options, key=tuple(key)
        )
        return Delivery(self.job(StrikingEffects(), schema), declaration)

    def job(self, effects: StrikingEffects, schema: Any) -> Any:
        for table in self.tables.values():
            table.schema = schema
        return SimpleNamespace(
            store=self.store,
            name="job",
            journal=Journal(self.store, "job", effects, self.fence),
            incarnation=self.store.incarnation,
            effects=effects,
            emit=lambda event: self.events.append(event.as_json()),
            base=None,
            lake_id="lake-1",
            graph=SimpleNamespace(schemas=dict[TableName, Any]()),
            tables=self.tables,
            lake_table=lambda name: self.tables[name],
        )

    def check(self) -> int | None:
        """The sink shows the lake at its pointer; answers the pointer's checkpoint."""
        sink = SqliteSink("mirror", self.path)
        published = sink.published()
        for name, table in self.tables.items():
            expected = Bag() if published is None else table.content[published.versions[name]]
            assert Counter(sink.rows(name)) == expected, (name, published)
        sink.close()
        return None if published is None else int(published.checkpoint)

    def named(self, event: str) -> list[dict[str, Any]]:
        return [entry for entry in self.events if entry["event"] == event]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(deltas, "consolidated", net)
    left = Reason.of(ReasonCode.COLUMN_COMPARED_BY_SPARK, column="word", type="array<string>")
    monkeypatch.setattr(deltas, "net_rows", lambda *_: left)
    with MetaStore.open(f"sqlite:///{tmp_path}/meta.db") as store:
        new_world = World(tmp_path, store)
        new_world.take_over()
        yield new_world


def bag(*ids: int) -> Bag:
    return Counter((number, f"row {number}") for number in ids)


def test_deltas_follow_the_checkpoints(world: World) -> None:
    delivery = world.delivery()
    assert not delivery.deliver()
    for bags in ([bag(1, 2), bag(1)], [bag(2, 2, 3), bag()], [bag(2, 2, 3), bag(4)]):
        number = world.publish(bags)
        assert delivery.deliver()
        assert not delivery.deliver()
        assert world.check() == number
    first, *later = world.named("sink_delivered")
    assert len(first["replaced"]) == 2
    assert {reason["reason_code"] for reason in first["replaced_reasons"]} == {"SINK_HAS_NO_ROWS"}
    assert not any(event["replaced"] for event in later)
    # Both tables changed at the second checkpoint, only lines at the third.
    left = [[(e["dataset"], e["reason_code"]) for e in event["left_to_spark"]] for event in (first, *later)]
    code = "STORAGE_NOT_LOCAL"
    assert list(map(sorted, left)) == [[], [(str(LINES), code), (str(ORDERS), code)], [(str(LINES), code)]]


def test_a_table_with_other_columns_is_sent_whole_and_alone(world: World) -> None:
    delivery, orders = world.delivery(), world.tables[ORDERS]
    orders.schema = Columns("id", "word", "more")
    world.publish([bag(1), bag(1)])
    assert delivery.deliver()
    orders.schema = Columns("id", "word")
    newest = world.publish([bag(1, 2), bag(1, 2)])
    assert delivery.deliver()
    assert world.check() == newest
    event = world.named("sink_delivered")[-1]
    assert [(e["dataset"], e["reason_code"]) for e in event["replaced_reasons"]] == [
        (str(ORDERS), "SINK_TABLE_REBUILT")
    ]
    newest = world.publish([bag(2), bag(1, 2)])
    assert delivery.deliver()
    assert world.check() == newest
    assert not world.named("sink_delivered")[-1]["replaced"]


def test_the_pin_is_renewed_while_rows_are_sent(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery_module, "_PIN_MS", 300)
    is_renewed = Event()
    replace_rows = SqliteSink.replace

    def renew(pin: str, lease_ms: int) -> None:
        assert lease_ms == 300
        assert pin
        is_renewed.set()

    def slow(sink: SqliteSink, *arguments: Any) -> Any:
        assert is_renewed.wait(30)
        return replace_rows(sink, *arguments)

    monkeypatch.setattr(world.store.pins, "renew", renew)
    monkeypatch.setattr(SqliteSink, "replace", slow)
    newest = world.publish([bag(1), bag(1)])
    assert world.delivery().deliver()
    assert world.check() == newest


def test_rows_that_a_sink_refuses_are_compared_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until there is another checkpoint, or the sink shows another one."""
    delivery = world.delivery()
    world.publish([bag(1), bag(1)])
    assert delivery.deliver()
    comparisons: list[int | None] = []
    changed_tables = SqliteSink.changed_tables

    def changed(sink: SqliteSink, tables: Sequence[TableName], max_rows: int | None) -> Any:
        comparisons.append(max_rows)
        return changed_tables(sink, tables, max_rows)

    def refused(*_: object) -> None:
        raise SinkError("SINK_KEY_NOT_UNIQUE", "two rows of a key", retryable=True)

    monkeypatch.setattr(SqliteSink, "changed_tables", changed)
    with monkeypatch.context() as patched:
        patched.setattr(SqliteSink, "write", refused)
        for expected in ([100_000, None], [10_000_000, None]):
            world.publish([bag(1, 2), bag(1)])
            for _ in range(3):
                with pytest.raises(SinkError, match="two rows"):
                    delivery.deliver()
                delivery.reset_after_failure()
            assert comparisons == expected
            comparisons.clear()
    newest = world.publish([bag(1, 2, 3), bag(1)])
    assert delivery.deliver()
    assert world.check() == newest


def test_columns_are_those_of_the_delivered_version(world: World) -> None:
    """The definitions spell a column in another way than the lake, and rename the other one."""
    delivery = world.delivery()
    for table in world.tables.values():
        table.schema = StructType().add("id", "long").add("word", "string")
        delivery.job.graph.schemas[table.name] = StructType().add("ID", "long").add("text", "string")
    for bags in ([bag(1), bag(1)], [bag(1, 2), bag(2)]):
        newest = world.publish(bags)
        assert delivery.deliver()
        assert world.check() == newest


def test_columns_that_a_table_has_no_more_are_read_from_the_version(world: World) -> None:
    delivery = world.delivery()
    world.publish([bag(1), bag(1)])
    assert delivery.deliver()
    world.tables[ORDERS].lost = ["word"]
    newest = world.publish([bag(1, 2), bag(1, 2)])
    assert delivery.deliver()
    assert world.check() == newest
    (reason,) = world.named("sink_delivered")[-1]["replaced_reasons"]
    assert (reason["dataset"], reason["reason_code"]) == (str(ORDERS), "COLUMNS_CHANGED_SINCE")


def test_types_are_those_of_the_definitions() -> None:
    stored = StructType().add("n", "integer").add("Id", "long").add("s", StructType().add("a", "integer"))
    defined = StructType().add("n", "short", False).add("Id", "long").add("s", StructType().add("a", "byte"))
    assert _with_defined_types(stored, defined) is defined
    spelled = StructType().add("n", "short").add("id", "long").add("s", StructType().add("a", "string"))
    mixed = StructType().add("n", "short").add("Id", "long").add("s", StructType().add("a", "integer"))
    assert _with_defined_types(stored, spelled) == mixed


def test_each_table_has_its_own_key(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    keys: dict[TableName, Sequence[str]] = {}
    ensure = SqliteSink.ensure

    def noted(sink: SqliteSink, table: TableName, schema: Any, key: Sequence[str], fence: Fence) -> Any:
        keys[table] = key
        return ensure(sink, table, schema, key, fence)

    monkeypatch.setattr(SqliteSink, "ensure", noted)
    delivery = world.delivery()
    delivery.declaration = replace(delivery.declaration, key=("id",), keys={LINES: ("id", "word")})
    world.publish([bag(1), bag(1)])
    assert delivery.deliver()
    assert keys == {ORDERS: ("id",), LINES: ("id", "word")}


def test_a_sink_without_news_writes_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    delivery = world.delivery()
    world.publish([bag(1), bag(1)])
    assert delivery.deliver()

    def resolve(*_args: object, **_options: object) -> None:
        raise AssertionError("a pin is a write")

    with monkeypatch.context() as patched:
        patched.setattr(world.store.reads, "resolve", resolve)
        assert not delivery.deliver()
    newest = world.publish([bag(2), bag(1)])
    assert delivery.deliver()
    assert world.check() == newest


def test_several_checkpoints_arrive_as_one(world: World) -> None:
    delivery = world.delivery()
    first = world.publish([bag(1), bag(1)])
    delivery.deliver()
    world.publish([bag(1, 2), bag(1, 2)])
    newest = world.publish([bag(1, 3), bag(1)])
    delivery.deliver()
    (_, event) = world.named("sink_delivered")
    assert (event["since"], event["checkpoint"], event["rows"]) == (first, newest, 1)
    assert world.check() == newest


def test_a_revision_compensates(world: World) -> None:
    delivery = world.delivery()
    world.publish([bag(1), bag(1)])
    good = [table.main for table in world.tables.values()]
    delivery.deliver()
    wrong = world.publish([bag(1, 66), bag(66)])
    delivery.deliver()
    world.store.checkpoints.revoke("job", world.fence, wrong)  # type: ignore[arg-type]
    assert not delivery.deliver(), "readers see an older checkpoint, the sink waits for the next one"
    right = world.publish([bag(1, 2), bag(1)], good)
    delivery.deliver()
    assert world.check() == right
    event = world.named("sink_delivered")[-1]
    assert not event["replaced"]
    assert event["rows"] == 4


def test_lost_history_replaces_all_rows_with_a_reason(world: World) -> None:
    delivery = world.delivery()
    world.publish([bag(1), bag(1)])
    delivery.deliver()
    old = [table.main for table in world.tables.values()]
    newest = world.publish([bag(2), bag(1)])
    for table, version in zip(world.tables.values(), old, strict=True):
        assert version is not None
        table.expired.add(version)
    delivery.deliver()
    assert world.check() == newest
    assert all("history" in reason for reason in world.named("sink_delivered")[-1]["replaced"].values())


def test_new_rows_only_from_a_table_that_was_updated_is_refused(world: World) -> None:
    delivery = world.delivery(insert_only=[ORDERS])
    world.publish([bag(1), bag(1)])
    delivery.deliver()
    world.publish([bag(1, 2), bag(2)])
    delivery.deliver()
    shown = world.publish([bag(1, 2), bag(3)])
    delivery.deliver()
    world.publish([bag(1, 5), bag(3)])
    with pytest.raises(SinkError) as refused:
        delivery.deliver()
    assert refused.value.error_class == "SINK_TAKES_INSERTS_ONLY"
    assert world.check() == shown


def test_a_sink_that_only_appends_gets_all_rows_first(world: World) -> None:
    delivery = world.delivery(append_only="true")
    world.publish([bag(1), bag(1)])
    delivery.deliver()
    shown = world.publish([bag(1, 2), bag(1)])
    delivery.deliver()
    world.publish([bag(2), bag(1)])
    with pytest.raises(SinkError, match="SINK_TAKES_INSERTS_ONLY"):
        delivery.deliver()
    assert world.check() == shown


def test_a_store_of_another_lake_is_refused(world: World, tmp_path: Path) -> None:
    world.publish([bag(1), bag(1)])
    world.delivery().deliver()
    with MetaStore.open(f"sqlite:///{tmp_path}/other.db") as store:
        other_world = World(world.folder, store)
        other_world.take_over()
        other_world.tables[ORDERS].content = {Version("another"): bag(9)}
        other_world.publish([bag(9), bag(9)], [None, None])
        # Versions of the same names would prove that it is the same lake, so they get other names.
        for table in other_world.tables.values():
            table.content = {Version(f"x{name}"): rows for name, rows in table.content.items()}
            table.main = None
        with pytest.raises(SinkError) as refused:
            other_world.delivery().deliver()
        assert refused.value.error_class == "SINK_OF_ANOTHER_STORE"
    assert world.check() == 1


def test_a_sink_ahead_of_store_and_lake_is_refused(world: World) -> None:
    world.publish([bag(1), bag(1)])
    world.delivery().deliver()
    shown = world.publish([bag(1, 2), bag(1)])
    delivery = world.delivery()
    delivery.deliver()
    for table in world.tables.values():
        # An older copy of the lake.
        table.main = table.parent[table.main]  # type: ignore[index]
    with world.store._database.write() as connection:
        connection.exec_driver_sql("UPDATE deliveries SET checkpoint = 1")
    with pytest.raises(SinkError) as refused:
        world.delivery().deliver()
    assert refused.value.error_class == "SINK_AHEAD_OF_STORE"
    assert world.check() == shown


def test_the_old_owner_is_refused_by_the_sink(world: World) -> None:
    old = world.delivery()
    world.publish([bag(1), bag(1)])
    old.deliver()
    world.take_over()
    world.delivery().deliver()
    number = world.publish([bag(1, 2), bag(1)])
    with pytest.raises((FencedError, SinkFencedError)):
        old.deliver()
    assert world.check() == number - 1


STEPS = [step for step in Step if step.value.startswith(("sink.", "meta.delivery_"))]
HANDLED = (Crash, MishapError, CommitOutcomeUnknownError, SinkError)


@pytest.mark.parametrize(
    "seed", [seed if seed < 8 else pytest.param(seed, marks=pytest.mark.slow) for seed in range(60)]
)
def test_random_schedules(world: World, seed: int) -> None:
    chance = random.Random(seed)
    mishaps = SqliteSink.mishaps.setdefault(world.path, [])
    delivery = world.delivery()
    newest: int | None = None
    for _ in range(12):
        newest = _one_event(world, chance, newest)
        mishap = chance.choice(("healthy", "healthy", "crash", "lose", "mishap", "takeover"))
        if mishap == "takeover":
            delivery.close()
            world.take_over()
            delivery = world.delivery()
        if mishap == "mishap":
            mishaps.append(chance.choice(list(Mishap)))
        if mishap in ("crash", "lose"):
            strike = Strike(
                chance.choice(STEPS), chance.choice(("before", "after")), mishap, chance.choice((1, 1, 2))
            )
            delivery.close()
            if chance.random() < 0.5:
                world.take_over()
            delivery = world.delivery(StrikingEffects(strike))
        try:
            while delivery.deliver():
                world.check()
        except HANDLED as error:
            delivery.reset_after_failure()
            if isinstance(error, Crash):
                delivery.close()
                delivery = world.delivery()
        world.check()
    mishaps.clear()
    delivery.close()
    world.take_over()
    last = world.delivery()
    while last.deliver():
        pass
    assert newest is not None
    assert world.check() == newest
    (status,) = world.store.deliveries.sinks()
    assert (status.intent, status.state) == (None, DeliveryState.ACTIVE)
    last.close()


def _one_event(world: World, chance: random.Random, newest: int | None) -> int:
    """Publish the next checkpoint, sometimes after the newest was taken back."""
    parents: list[Version | None] | None = None
    if newest is not None and chance.random() < 0.2:
        world.store.checkpoints.revoke("job", world.fence, newest)  # type: ignore[arg-type]
        tables = list(world.tables.values())
        parents = [table.parent[table.main] for table in tables]  # type: ignore[index]
        if chance.random() < 0.3:
            table = chance.choice(tables)
            table.expired.add(table.main)  # type: ignore[arg-type]
    bags = [bag(*(chance.randrange(6) for _ in range(chance.randrange(6)))) for _ in world.tables]
    return world.publish(bags, parents)

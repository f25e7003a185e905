"""Events of connectors that send some of them again, and of servers whose positions begin anew.

Each key is a world of its own: a server makes changes to its row, the connector sends them in their order,
now and then it goes back and sends some again, and now and then another server follows whose positions begin
anywhere. What the merge has after each batch is compared with the changes in the order in which the servers
made them. A key may be refused instead, but only if its positions went back.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from tautochrone.model.auto_cdc import AutoCdc, Restart
from tautochrone.runtime.merges.event_merges import EventKeys, EventOrder
from tautochrone.sources import canal, debezium, maxwell
from tautochrone.spark.analysis.session_context import tuned_session
from tautochrone.spark.execute.change_order import ChangeOrder, with_generation
from tautochrone.spark.execute.materialize import materialize
from tautochrone.spark.execute.merge_events import COUNT, EventMerge, event_merge

pytestmark = pytest.mark.spark

COLUMNS = "id INT, name STRING"
PARTITIONS = 3


@dataclass(frozen=True)
class Change:
    """A change of a row, as a server made it. `number` is its place in the true order."""

    id: int
    number: int
    kind: str
    name: str
    position: int
    server: int

    @property
    def time_s(self) -> int:
        """When it was made. Servers' clocks differ, so it is not in the true order."""
        return 1_700_000_000 + self.number // 3 - 40 * (self.server % 2)


def debezium_of(connector: str, change: Change) -> dict[str, Any]:
    number, row = change.position, {"id": change.id, "name": change.name}
    sources: dict[str, dict[str, Any]] = {
        "postgresql": {"lsn": number, "txId": number // 2},
        "mysql": {
            "file": f"bin.{999_998 + number // 40}", "pos": number % 40 // 4, "row": number % 4,
            "server_id": change.server // 2,
        },
        "sqlserver": {
            "commit_lsn": f"{number // 40:08x}:{number // 4 % 10:08x}:0001",
            "change_lsn": f"{number // 40:08x}:{number // 2:08x}:0001", "event_serial_no": number % 2 + 1,
        },
        # Several changes of a key have one.
        "oracle": {"scn": str(number // 3), "rs_id": f"0x{number:06x}", "ssn": 0},
        "tidb": {"commit_ts": number},
        "kafka": {},
    }  # fmt: skip
    sources["mariadb"] = sources["mysql"]
    source = {**sources[connector], "ts_ms": change.time_s * 1000, "version": "3.0"}
    images = {"before": row, "after": None} if change.kind == "d" else {"before": None, "after": row}
    if change.kind == "t":
        images = {}
    return {"op": change.kind, **images, "source": source, "ts_ms": random.randrange(10**12)}


def maxwell_of(change: Change, *, by_statement: bool = False) -> dict[str, Any]:
    number = change.position
    position = {"position": f"bin.{999_998 + number // 40}:{number % 40 // 4}", "xid": number // 4}
    if not by_statement:
        position["xoffset"] = number % 4
    kind = {"c": "insert", "u": "update", "d": "delete"}[change.kind]
    data = {"id": change.id, "name": change.name}
    return {"database": "a", "table": "b", "type": kind, "ts": change.time_s, "data": data, **position}


def canal_of(change: Change) -> dict[str, Any]:
    kind = {"c": "INSERT", "u": "UPDATE", "d": "DELETE", "t": "TRUNCATE"}[change.kind]
    data = None if change.kind == "t" else [{"id": str(change.id), "name": change.name}]
    return {
        "database": "a", "table": "b", "type": kind, "isDdl": change.kind == "t", "data": data, "old": None,
        "es": change.time_s * 1000, "ts": random.randrange(10**12), "_tidb": {"commitTs": change.position},
    }  # fmt: skip


@dataclass(frozen=True)
class Form:
    """A form of records, and how they are read."""

    encode: Callable[[Change], dict[str, Any]]
    events: Callable[[DataFrame], DataFrame]
    has_position: bool = True
    by_transaction: bool = False
    """The position is a transaction's: of a deletion and a row with the same one the deletion comes first,
    since TiCDC splits updates into them."""


def _debezium(connector: str, *, has_position: bool = True) -> Form:
    return Form(
        partial(debezium_of, connector),
        lambda records: debezium.events(records, COLUMNS, connector=connector),
        has_position,
    )


FORMS: Mapping[str, Form] = {
    "postgresql": _debezium("postgresql"),
    "mysql": _debezium("mysql"),
    "mariadb": _debezium("mariadb"),
    "sqlserver": _debezium("sqlserver"),
    "oracle": _debezium("oracle"),
    "tidb": replace(_debezium("tidb"), by_transaction=True),
    "maxwell": Form(
        maxwell_of, lambda records: maxwell.events(records, COLUMNS, keys=["id"], ordered_by="position")
    ),
    "canal": Form(
        canal_of,
        lambda records: canal.events(records, COLUMNS, keys=["id"], ordered_by="commit_ts"),
        by_transaction=True,
    ),
    "offsets": _debezium("kafka", has_position=False),
}


def world(
    randoms: random.Random, key: int, *, repeats: bool, fails_over: bool, by_transaction: bool = False
) -> Iterator[Change]:
    """What the connector sends of one key, in its order. `by_transaction`: positions are not shared."""
    position, server, sent = randoms.randrange(200), 0, list[Change]()
    is_there = False
    first_of_server = 0
    for number in range(randoms.randrange(2, 14)):
        if fails_over and number and randoms.random() < 0.15:
            server, position = server + 1, randoms.randrange(300)
            first_of_server = len(sent)
        position += randoms.choice([1, 1, 2, 50])
        while by_transaction and any(change.position == position for change in sent):
            position += 1
        kind = randoms.choice("uud") if is_there else "c"
        is_there = kind != "d"
        # Few values, so that changes may be equal but for their positions.
        change = Change(key, number, kind, randoms.choice("ab"), position, server)
        sent.append(change)
        yield change
        if repeats and randoms.random() < 0.25:
            # The connector begins again somewhere in the log of its server.
            yield from sent[randoms.randrange(first_of_server, len(sent)) :]


def arrivals(randoms: random.Random, worlds: list[list[Change]]) -> list[tuple[Change, int, int]]:
    """The changes of all keys with their partitions and offsets; each key stays in its partition."""
    left = [list(reversed(changes)) for changes in worlds if changes]
    offsets, arrived = [0] * PARTITIONS, []
    while left:
        changes = randoms.choice(left)
        change = changes.pop()
        if not changes:
            left.remove(changes)
        partition = change.id % PARTITIONS
        arrived.append((change, partition, offsets[partition]))
        offsets[partition] += 1
    return arrived


@dataclass
class Merged:
    """The rows and the state of a table, as the refreshes leave them."""

    spark: SparkSession
    form: Form
    scd_type: int
    truncates: bool = False
    restarts: tuple[Restart, ...] = ()
    state: dict[tuple[Any, ...], tuple[Any, ...]] = field(default_factory=dict)
    rows: dict[tuple[Any, ...], tuple[Any, ...]] = field(default_factory=dict)
    events: DataFrame | None = None
    looked_up: int = 0

    def take(self, batch: list[tuple[Change, int, int]]) -> set[int]:
        """Merge a batch; the keys that are refused, of which nothing is merged."""
        values = [
            (json.dumps(self.form.encode(change)).encode(), "t", partition, offset)
            for change, partition, offset in batch
        ]
        records = self.spark.createDataFrame(
            values, "value BINARY, topic STRING, partition INT, offset BIGINT"
        )
        events = self.form.events(records).select(
            "id",
            "name",
            with_generation(sf.col("_sequence"), self.restarts).alias("__taut_sequence"),
            (sf.col("_op") == "d").alias("__taut_delete"),
            (sf.col("_op") == "t").alias("__taut_truncate"),
        )
        events, _ = materialize(events, max_rows=len(batch))
        truncate = "t" if self.truncates else None
        auto_cdc = AutoCdc(keys=("id",), sequence="_sequence", scd_type=self.scd_type, truncate=truncate)
        columns = auto_cdc.merge_columns(events.columns, "test")
        merge = event_merge(auto_cdc, columns, events.schema, truncates=self.truncates)
        refused = self._merge(merge, events)
        self.events = events if self.events is None else self.events.unionAll(events)
        return refused

    def _merge(self, merge: EventMerge, events: DataFrame) -> set[int]:
        order = EventOrder(None, ChangeOrder(merge), self.restarts)  # type: ignore[arg-type]
        schema = StructType(merge.state_schema("run").fields[:-1])
        stored = self.spark.createDataFrame(list(self.state.values()), schema)
        renamed = merge.renamed(events)
        if self.events is None:
            checked = order.of_all(renamed)
        else:
            checked = order.of_new(renamed, 100_000, lambda keys: keys.matching(stored), self._merged_before)
        checked, _ = materialize(checked, max_rows=100_000)
        refused = {row.k0 for row in checked.where("invalid").select("k0").collect()}
        if refused and self.truncates:
            return refused
        kept = checked.where(~sf.col("k0").isin(*refused)) if refused else checked
        folded, _ = materialize(merge.fold(kept), max_rows=100_000)
        merged = merge.merge(folded, stored)
        removed = {tuple(row) for row in merged.removed.collect()}
        for gone in removed:
            self.rows.pop(gone)
        identifying = list(merge.row_keys)
        for row in merged.added.collect():
            self.rows[tuple(row[name] for name in identifying)] = tuple(row)
        width = len(merge.state_keys)
        for row in merged.state.collect():
            if row[COUNT]:
                self.state[tuple(row[:width])] = tuple(row)
            else:
                self.state.pop(tuple(row[:width]), None)
        return refused

    def _merged_before(self, _keys: EventKeys) -> DataFrame:
        assert self.events is not None
        self.looked_up += 1
        return self.events


def truth(changes: list[Change], scd_type: int) -> list[tuple[Any, ...]]:
    """The rows of one key: its name, or each of its names with its changes' numbers."""
    rows: list[list[Any]] = []
    for change in sorted(set(changes), key=lambda change: change.number):
        last = rows[-1] if rows and rows[-1][1] else None
        if change.kind != "d" and last is not None and last[0] == change.name:
            continue
        if last is not None:
            last[1] = False
        if change.kind != "d":
            rows.append([change.name, True])
    return [tuple(row) for row in rows] if scd_type == 2 else [tuple(row) for row in rows if row[1]]


def held(merged: Merged, key: int, scd_type: int) -> list[tuple[Any, ...]]:
    rows = [row for row in merged.rows.values() if row[0] == key]
    if scd_type == 1:
        return [(row[1], True) for row in rows]
    rows.sort(key=lambda row: row[2])
    return [(row[1], row[3] is None) for row in rows]


def went_back(changes: list[Change], form: Form) -> bool:
    """Whether positions of a key's later servers are not above all before."""
    distinct = sorted(set(changes), key=lambda change: change.number)
    highest = -1
    for change in distinct:
        if form.has_position and change.position <= highest:
            return True
        highest = max(highest, change.position)
    return False


def check(spark: SparkSession, name: str, scd_type: int, seed: int, keys: int, batches: int) -> None:
    randoms, form = random.Random(seed), FORMS[name]
    worlds = [
        list(
            world(
                randoms,
                key,
                repeats=form.has_position and key % 4 != 0,
                fails_over=key % 2 == 1,
                by_transaction=form.by_transaction,
            )
        )
        for key in range(keys)
    ]
    arrived = arrivals(randoms, worlds)
    cuts = sorted(randoms.sample(range(1, len(arrived)), batches - 1))
    merged = Merged(spark, form, scd_type)
    refused, equal = set[int](), 0
    for start, end in zip([0, *cuts], [*cuts, len(arrived)], strict=True):
        batch = [arrival for arrival in arrived[start:end] if arrival[0].id not in refused]
        new = merged.take(batch) if batch else set[int]()
        delivered = [change for change, _, _ in arrived[:end]]
        for key in range(keys):
            own = [change for change in delivered if change.id == key]
            if key in new:
                assert went_back(own, form), (name, key, own)
            elif key not in refused:
                assert held(merged, key, scd_type) == truth(own, scd_type), (name, key, own)
                equal += 1
        refused |= new
    assert equal > keys // 2
    if form.has_position:
        assert refused
        assert merged.looked_up
    else:
        assert not refused


SHORT = [("mysql", 2)]


@pytest.mark.parametrize(
    ("name", "scd_type"),
    [
        pytest.param(name, scd_type, marks=[] if (name, scd_type) in SHORT else [pytest.mark.slow])
        for name in FORMS
        for scd_type in (1, 2)
    ],
)
def test_positions_that_begin_anew_are_refused_or_right(
    spark: SparkSession, name: str, scd_type: int
) -> None:
    with tuned_session(spark, delta_rows=1000, input_rows=1000):
        check(spark, name, scd_type, seed=1, keys=60, batches=3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 8))
@pytest.mark.parametrize("name", FORMS)
def test_positions_that_begin_anew_in_many_schedules(spark: SparkSession, name: str, seed: int) -> None:
    with tuned_session(spark, delta_rows=1000, input_rows=1000):
        check(spark, name, 1 + seed % 2, seed, keys=400, batches=5)


def truncated_world(randoms: random.Random, *, fails_over: bool) -> Iterator[Change]:
    """What the connector sends of a table that is truncated now and then."""
    position, server, sent, rows = randoms.randrange(200), 0, list[Change](), set[int]()
    first_of_server = 0
    for number in range(30):
        if fails_over and number and randoms.random() < 0.05:
            server, position = server + 1, randoms.randrange(300)
            first_of_server = len(sent)
        position += randoms.choice([1, 1, 2, 50])
        key = randoms.randrange(6)
        kind = "t" if randoms.random() < 0.15 else randoms.choice("ud") if key in rows else "c"
        if kind == "t":
            rows.clear()
        else:
            (rows.discard if kind == "d" else rows.add)(key)
        change = Change(key, number, kind, randoms.choice("ab"), position, server)
        sent.append(change)
        yield change
        if randoms.random() < 0.1:
            yield from sent[randoms.randrange(first_of_server, len(sent)) :]


def check_truncations(spark: SparkSession, name: str, seed: int) -> bool:
    """Whether the table was refused."""
    randoms, form = random.Random(seed), FORMS[name]
    sent = list(truncated_world(randoms, fails_over=seed % 2 == 1))
    cuts = sorted(randoms.sample(range(1, len(sent)), 2))
    merged = Merged(spark, form, 1, truncates=True)
    for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
        delivered = sorted(set(sent[:end]), key=lambda change: change.number)
        if merged.take([(sent[offset], 0, offset) for offset in range(start, end)]):
            assert went_back(delivered, form), (name, seed, sent[:end])
            return True
        rows: dict[int, str] = {}
        for change in delivered:
            if change.kind == "t":
                rows.clear()
            elif change.kind == "d":
                rows.pop(change.id, None)
            else:
                rows[change.id] = change.name
        expected = sorted(rows.items())
        assert sorted(row[:2] for row in merged.rows.values()) == expected, (name, seed, sent[:end])
    return False


@pytest.mark.slow
@pytest.mark.parametrize("name", ["postgresql", "oracle", "canal"])
def test_truncations_are_in_the_order_of_their_keys(spark: SparkSession, name: str) -> None:
    with tuned_session(spark, delta_rows=1000, input_rows=1000):
        refused = [check_truncations(spark, name, seed) for seed in range(12)]
    assert not any(refused[::2])
    assert any(refused)


@pytest.mark.slow
def test_a_truncation_and_keys_of_another_partition_have_no_order(spark: SparkSession) -> None:
    change = Change(1, 0, "c", "a", 5, 0)
    truncation = Change(1, 1, "t", "a", 9, 0)
    for first, second in ((change, truncation), (truncation, change)):
        merged = Merged(spark, FORMS["postgresql"], 1, truncates=True)
        assert not merged.take([(first, 0, 0)])
        assert merged.take([(second, 1, 0)])
        together = Merged(spark, FORMS["postgresql"], 1, truncates=True)
        assert together.take([(first, 0, 0), (second, 1, 0)])

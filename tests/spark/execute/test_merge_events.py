"""AUTO CDC's merge of events against a plain reference, for random events in random order.

An example is many keys at a time: each has its own events, and a Spark job costs the same for all of them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BooleanType, IntegerType, StringType, StructField, StructType

from tautochrone.model.auto_cdc import AutoCdc, ColumnChoice
from tautochrone.spark.analysis.session_context import tuned_session
from tautochrone.spark.execute.materialize import materialize
from tautochrone.spark.execute.merge_events import COUNT, EventMerge, event_merge

pytestmark = pytest.mark.spark

QUERY = StructType(
    [
        StructField("id", IntegerType()),
        StructField("a", IntegerType()),
        StructField("b", StringType()),
        StructField(
            "__taut_sequence", StructType([StructField("n", IntegerType()), StructField("m", IntegerType())])
        ),
        StructField("__taut_delete", BooleanType()),
        StructField("__taut_truncate", BooleanType()),
    ]
)
TRUNCATION = -1
"""The id of an event that empties the table."""


@dataclass(frozen=True)
class Event:
    """`sequence` is unique among the events of a key, unless the event is repeated."""

    id: int
    sequence: int
    a: int | None = None
    b: str | None = None
    deletes: bool = False

    def row(self) -> tuple[Any, ...]:
        truncates = self.id == TRUNCATION
        key = None if truncates else self.id
        return key, self.a, self.b, (self.sequence // 4, self.sequence % 4), self.deletes, truncates


def filled(values: Sequence[Any], older: Sequence[Any], ignoring: str) -> list[Any]:
    """The values of `a` and `b`, those before in place of NULL where it is ignored."""
    return [
        old if new is None and name in ignoring else new
        for name, new, old in zip("ab", values, older, strict=True)
    ]


def current_rows(events: list[Event], *, ignoring: str) -> list[tuple[Any, ...]]:
    """SCD type 1 of one key. `ignoring`: the columns in which NULL is ignored."""
    row: tuple[Any, ...] | None = None
    for event in sorted(events, key=lambda event: event.sequence):
        if event.deletes or event.id == TRUNCATION:
            row = None
        elif row is not None:
            row = event.id, *filled((event.a, event.b), row[1:], ignoring)
        else:
            row = event.id, event.a, event.b
    return [] if row is None else [row]


def versions(events: list[Event], *, ignoring: str, tracked: str) -> list[tuple[Any, ...]]:
    """SCD type 2 of one key: id, a, b, start, end."""
    rows: list[list[Any]] = []
    for event in sorted(set(events), key=lambda event: event.sequence):
        at = (event.sequence // 4, event.sequence % 4)
        last = rows[-1] if rows and rows[-1][4] is None else None
        if event.deletes:
            if last is not None:
                last[4] = at
            continue
        values = [event.a, event.b]
        if last is not None:
            values = filled(values, last[1:3], ignoring)
        same = last is not None and all(
            values[number] == last[1 + number] for number, name in enumerate("ab") if name in tracked
        )
        if last is not None and same:
            last[1:3] = values
            continue
        if last is not None:
            last[4] = at
        rows.append([event.id, *values, at, None])
    return [tuple(row) for row in rows]


@dataclass
class Table:
    """A table and its state, as a sequence of merges leaves them."""

    spark: SparkSession
    merge: EventMerge
    state: dict[tuple[Any, ...], tuple[Any, ...]] = field(default_factory=dict)
    rows: Counter[tuple[Any, ...]] = field(default_factory=Counter)

    def take(self, events: list[Event]) -> None:
        self.take_rows(self.spark.createDataFrame([event.row() for event in events], QUERY))

    def take_rows(self, frame: DataFrame) -> None:
        folded, _ = materialize(self.merge.folded(frame), max_rows=10_000)
        assert self.merge.invalid(folded).isEmpty()
        keys = {tuple(row) for row in self.merge.keys_of(folded).collect()}
        is_all = not self.merge.truncations(folded).isEmpty()
        count = len(self.merge.keys)
        known = [row for row in self.state.values() if is_all or row[:count] in keys]
        schema = StructType(self.merge.state_schema("run").fields[:-1])
        merged = self.merge.merge(folded, self.spark.createDataFrame(known, schema))
        identifying = list(self.merge.row_keys)
        indexes = [merged.added.columns.index(name) for name in identifying]
        removed = {tuple(row) for row in merged.removed.collect()}
        added = [tuple(row) for row in merged.added.collect()]
        for row in [row for row in self.rows if tuple(row[index] for index in indexes) in removed]:
            del self.rows[row]
        self.rows.update(added)
        width = len(self.merge.state_keys)
        for row in merged.state.collect():
            if row[COUNT] == 0:
                self.state.pop(tuple(row[:width]), None)
            else:
                self.state[tuple(row[:width])] = tuple(row)


def check(spark: SparkSession, auto_cdc: AutoCdc, events: list[Event], choice: random.Random) -> None:
    columns = auto_cdc.merge_columns(QUERY.names, "test")
    table = Table(spark, event_merge(auto_cdc, columns, QUERY, truncates=auto_cdc.truncate is not None))
    with tuned_session(spark, delta_rows=len(events), input_rows=len(events)):
        _check(table, auto_cdc, events, choice)


def _check(table: Table, auto_cdc: AutoCdc, events: list[Event], choice: random.Random) -> None:
    sent = [*events, *choice.sample(events, k=len(events) // 5)]
    choice.shuffle(sent)
    batches = choice.randint(2, 4)
    taken: list[Event] = []
    for number in range(batches):
        batch = sent[number::batches]
        if not batch:
            continue
        table.take(batch)
        taken += batch
    expected: Counter[tuple[Any, ...]] = Counter()
    truncations = [event for event in taken if event.id == TRUNCATION]
    tracked = "ab" if auto_cdc.tracked is None else "".join(auto_cdc.tracked.names)
    ignoring = "".join(table.merge.columns.null_ignoring)
    for key in {event.id for event in taken} - {TRUNCATION}:
        own = [event for event in taken if event.id == key]
        if auto_cdc.scd_type == 2:
            expected.update(versions(own, ignoring=ignoring, tracked=tracked))
        else:
            expected.update(current_rows([*own, *truncations], ignoring=ignoring))
    assert table.rows == expected


@st.composite
def histories(draw: st.DrawFn, keys: int, *, truncating: bool) -> list[Event]:
    """Events of some keys; sequence values are unique for a key, and none is that of a truncation."""
    truncated_at = draw(st.sets(st.integers(0, 19), max_size=2)) if truncating else set()
    events = [Event(TRUNCATION, number) for number in truncated_at]
    values = st.tuples(
        st.sampled_from([None, 1, 2]),
        st.sampled_from([None, "x", "y"]),
        st.sampled_from([False] * 3 + [True]),
    )
    numbers = st.integers(0, 19).filter(lambda number: number not in truncated_at)
    for key in range(keys):
        own = draw(st.dictionaries(numbers, values, max_size=6))
        events += [Event(key, number, *of_event) for number, of_event in own.items()]
    return events


MODES = {
    "newest": AutoCdc(keys=("id",), sequence="s", truncate="t"),
    "newest-without-truncation": AutoCdc(keys=("id",), sequence="s"),
    "newest-ignoring-null": AutoCdc(keys=("id",), sequence="s", truncate="t", is_ignoring_nulls=True),
    "history": AutoCdc(keys=("id",), sequence="s", scd_type=2),
    "history-of-a": AutoCdc(keys=("id",), sequence="s", scd_type=2, tracked=ColumnChoice(("a",))),
    "history-ignoring-null": AutoCdc(
        keys=("id",), sequence="s", scd_type=2, is_ignoring_nulls=True, tracked=ColumnChoice(("b",))
    ),
    "newest-ignoring-null-in-a": AutoCdc(
        keys=("id",), sequence="s", truncate="t", is_ignoring_nulls=True, null_ignoring=ColumnChoice(("a",))
    ),
    "history-ignoring-null-but-in-a": AutoCdc(
        keys=("id",),
        sequence="s",
        scd_type=2,
        is_ignoring_nulls=True,
        null_ignoring=ColumnChoice(("a", "id"), is_except=True),
    ),
}
CHECKS = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None)


@pytest.mark.parametrize("mode", ["history-ignoring-null-but-in-a"])
def test_merges_give_what_all_events_give(spark: SparkSession, mode: str) -> None:
    @seed(1)
    @settings(CHECKS, max_examples=2)
    @given(histories(40, truncating=MODES[mode].truncate is not None), st.randoms(use_true_random=False))
    def run(events: list[Event], choice: random.Random) -> None:
        check(spark, MODES[mode], events, choice)

    run()


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_merges_give_what_all_events_give_in_many_orders(spark: SparkSession, mode: str) -> None:
    @settings(CHECKS, max_examples=60)
    @given(histories(25, truncating=MODES[mode].truncate is not None), st.randoms(use_true_random=False))
    def run(events: list[Event], choice: random.Random) -> None:
        check(spark, MODES[mode], events, choice)

    run()


def test_microseconds_count_beside_a_map(spark: SparkSession) -> None:
    events = (
        "id INT, m MAP<STRING, INT>, __taut_sequence TIMESTAMP, __taut_delete BOOLEAN, "
        "__taut_truncate BOOLEAN"
    )
    first, late, last = (
        datetime.fromisoformat(f"2026-01-05T08:00:00.000{number}") for number in (100, 400, 900)
    )

    def event(value: int, at: datetime) -> tuple[Any, ...]:
        return 1, {"k": value}, at, False, False

    early = spark.createDataFrame([event(1, first), event(3, last)], events)
    auto_cdc = AutoCdc(keys=("id",), sequence="s", scd_type=2)
    columns = auto_cdc.merge_columns(early.columns, "test")
    merge = event_merge(auto_cdc, columns, early.schema, truncates=False)
    schema = StructType(merge.state_schema("run").fields[:-1])
    known = merge.merge(merge.folded(early), spark.createDataFrame([], schema)).state
    merged = merge.merge(merge.folded(spark.createDataFrame([event(2, late)], events)), known)
    assert sorted(tuple(row)[2:] for row in merged.added.collect()) == [(first, late), (late, last)]

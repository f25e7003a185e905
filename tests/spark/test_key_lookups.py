"""Rows that are looked up by keys are found, and found once."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tautochrone.model import limits
from tautochrone.model.names import TableName, Version
from tautochrone.spark.execute import materialize as held
from tautochrone.spark.execute.key_lookups import KeyLookups, LookupRequest

pytestmark = pytest.mark.spark

TABLE = TableName("lake", ("src",), "lines")
ROWS = "SELECT id AS k, id % 10 AS `part.no`, concat('n', id % 7) AS name, id AS value FROM range(100)"


@dataclass
class World:
    """Look-ups in one table, and how often it was read."""

    session: SparkSession
    known: frozenset[str] = frozenset()
    reads: int = 0
    lookups: KeyLookups = field(init=False)

    def __post_init__(self) -> None:
        self.lookups = KeyLookups(lambda _table: self.known)

    def rows(
        self,
        values: Collection[Any],
        column: str = "k",
        kind: str = "bigint",
        columns: Collection[str] = ("k", "value"),
        wider: Collection[Any] | None = None,
        version: str = "1",
        query: str = ROWS,
    ) -> list[Any] | None:
        """What comes back, sorted by all columns."""

        def read() -> DataFrame:
            self.reads += 1
            return self.session.sql(query)

        def wanted(values: Collection[Any]) -> LookupRequest:
            return LookupRequest(column=column, kind=kind, values=frozenset(values), columns=columns)

        more: Callable[[], LookupRequest | None] = lambda: None if wider is None else wanted(wider)  # noqa: E731
        found = self.lookups.rows(TABLE, Version(version), wanted(values), more, read)
        return (
            None
            if found is None
            else sorted(found.select(*(f"`{c}`" for c in columns if c in found.columns)).collect())
        )


@pytest.fixture
def world(spark: SparkSession) -> World:
    return World(spark)


@pytest.mark.parametrize("literals", [1, 1000])
def test_some_of_the_same_are_not_read_again(
    world: World, monkeypatch: pytest.MonkeyPatch, literals: int
) -> None:
    monkeypatch.setattr(limits, "MAX_IN_LIST_VALUES", literals)
    assert world.rows([3, 5, 9]) == [(3, 3), (5, 5), (9, 9)]
    assert world.rows([5]) == [(3, 3), (5, 5), (9, 9)], "the caller asks these again"
    assert world.reads == 1
    assert world.rows([5, 9, 40]) == [(3, 3), (5, 5), (9, 9), (40, 40)]
    assert world.rows([3, 40]) is not None
    assert world.reads == 2
    assert world.rows([3], version="2") == [(3, 3)]
    assert world.reads == 3


def test_the_first_looks_up_what_others_will_ask_for(world: World) -> None:
    world.known = frozenset({"name"})
    assert world.rows([3], wider=[3, 4, 5]) == [(3, 3), (4, 4), (5, 5)]
    assert world.rows([4, 5], columns=("k", "name")) == [(3, "n3"), (4, "n4"), (5, "n5")]
    assert world.reads == 1


def test_a_column_that_nobody_had_named_is_read(world: World) -> None:
    assert world.rows([3]) == [(3, 3)]
    assert world.rows([3], columns=("name",)) == [("n3",)]
    assert world.reads == 2
    assert world.rows([3], columns=("k", "value", "name")) == [(3, 3, "n3")]
    assert world.reads == 2


def test_an_older_version_lacks_a_column(world: World) -> None:
    world.known = frozenset({"added later"})
    assert world.rows([3], columns=("k", "added later")) == [(3,)]
    assert world.rows([3], columns=("k", "added later")) == [(3,)]
    assert world.reads == 1
    assert world.rows([3], column="added later") is None


@pytest.mark.parametrize("literals", [1, 1000])
def test_names_and_texts(world: World, monkeypatch: pytest.MonkeyPatch, literals: int) -> None:
    monkeypatch.setattr(limits, "MAX_IN_LIST_VALUES", literals)
    found = world.rows([3, 8], column="part.no", columns=("k", "part.no"))
    assert found == [(n, n % 10) for n in range(100) if n % 10 in (3, 8)]
    assert world.rows(["n1", "n2"], column="name", kind="string", columns=("k",)) == [
        (n,) for n in range(100) if n % 7 in (1, 2)
    ]


def test_too_many_are_not_held_and_not_tried_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_LOOKUP_ROWS", 25)
    assert world.rows([1, 2, 3], column="part.no", wider=range(10)) is None
    assert world.reads == 2, "all keys of the change, then those that are needed"
    assert world.rows([4, 5, 6], column="part.no") is None
    assert world.reads == 2
    assert len(world.rows([4, 5], column="part.no") or []) == 20


@pytest.mark.parametrize("partitions", [1, 12])
def test_no_more_are_kept_than_can_be_held(
    world: World, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    kept: list[int] = []
    computed = held.checkpointed

    def noted(frame: DataFrame) -> tuple[DataFrame, int]:
        found, count = computed(frame)
        kept.append(count)
        return found, count

    monkeypatch.setattr(held, "checkpointed", noted)
    monkeypatch.setattr(limits, "MAX_LOOKUP_VALUES", 60)
    query = f"{ROWS.replace('range(100)', f'range(0, 1000, 1, {partitions})')}"
    assert world.rows([1, 2, 3], column="part.no", columns=("k", "part.no", "value"), query=query) is None
    assert kept == [21 * partitions], "each task stops at the first one too many, of three columns"


@pytest.mark.parametrize("here", [5, 20])
def test_they_are_held_where_they_fit(world: World, monkeypatch: pytest.MonkeyPatch, here: int) -> None:
    monkeypatch.setattr(limits, "MAX_DRIVER_ROWS", here)
    wanted = [(n, n) for n in range(100) if n % 10 == 3]
    assert world.rows([3], column="part.no") == wanted
    assert world.rows([3], column="part.no") == wanted
    assert world.reads == 1


def test_a_read_that_fails_leaves_it_to_the_ordinary_one(world: World) -> None:
    failing = ROWS.replace("id AS value", "if(id = 3, raise_error('no'), id) AS value")
    assert world.rows([3, 4], query=failing) is None
    assert world.rows([4], query=failing) == [(4, 4)]


def test_keys_without_a_text_of_their_own(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_IN_LIST_VALUES", 1)
    assert world.rows(["n1", "a\x1fb"], column="name", kind="string") is None
    dates = "SELECT id AS k, date_add(DATE'2020-01-01', CAST(id AS INT)) AS day FROM range(100)"
    days = [dt.date(2020, 1, 5), dt.date(2020, 2, 1)]
    assert world.rows(days, column="day", kind="date", columns=("k",), query=dates) == [(4,), (31,)]
    prices = "SELECT id AS k, CAST(id / 8 AS DECIMAL(9, 3)) AS price FROM range(100)"
    some = [decimal.Decimal("0.125"), decimal.Decimal("2.000")]
    found = world.rows(some, column="price", kind="decimal(9,3)", columns=("k",), query=prices)
    assert found == [(1,), (16,)]


def test_rows_are_let_go(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_CACHED_LOOKUP_VALUES", 25)
    world.rows(range(10))
    world.rows(range(10), version="2")
    world.rows(range(10), version="2")
    assert world.reads == 2
    world.rows(range(10))
    assert world.reads == 3
    world.lookups.forget()
    world.rows(range(10))
    assert world.reads == 4

"""The cache of key lookups returns all rows with the keys and reads each of them once."""

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
from tautochrone.spark.execute import materialize
from tautochrone.spark.execute.key_lookups import KeyLookups, LookupRequest, OtherVersion
from tautochrone.spark.execute.materialize import materialize_few

pytestmark = pytest.mark.spark

TABLE = TableName("lake", ("src",), "lines")
ROWS = "SELECT id AS k, id % 10 AS `part.no`, concat('n', id % 7) AS name, id AS value FROM range(100)"


@dataclass
class LookupCache:
    """A cache of lookups in one table. `reads` counts how often the table was read."""

    session: SparkSession
    plan_columns: frozenset[str] = frozenset()
    reads: int = 0
    lookups: KeyLookups = field(init=False)

    def __post_init__(self) -> None:
        self.lookups = KeyLookups(lambda _table: self.plan_columns)

    def rows(
        self,
        values: Collection[Any],
        column: str = "k",
        kind: str = "bigint",
        columns: Collection[str] = ("k", "value"),
        wider: Collection[Any] | None = None,
        version: str = "1",
        query: str = ROWS,
        other: OtherVersion | None = None,
    ) -> list[Any] | None:
        """The rows that a lookup returns, sorted by all columns."""

        def read() -> DataFrame:
            self.reads += 1
            return self.session.sql(query)

        def request(values: Collection[Any]) -> LookupRequest:
            return LookupRequest(column=column, kind=kind, values=frozenset(values), columns=columns)

        wider_request: Callable[[], LookupRequest | None] = lambda: (  # noqa: E731
            None if wider is None else request(wider)
        )
        rows = self.lookups.candidate_rows(
            TABLE, Version(version), request(values), wider_request, read, other
        )
        return (
            None
            if rows is None
            else sorted(rows.select(*(f"`{c}`" for c in columns if c in rows.columns)).collect())
        )


@pytest.fixture
def cache(spark: SparkSession) -> LookupCache:
    return LookupCache(spark)


@pytest.mark.parametrize("literals", [1, 1000])
def test_cached_keys_are_not_read_again(
    cache: LookupCache, monkeypatch: pytest.MonkeyPatch, literals: int
) -> None:
    monkeypatch.setattr(limits, "MAX_IN_LIST_VALUES", literals)
    assert cache.rows([3, 5, 9]) == [(3, 3), (5, 5), (9, 9)]
    assert cache.rows([5]) == [(3, 3), (5, 5), (9, 9)], "the caller filters these out"
    assert cache.reads == 1
    assert cache.rows([5, 9, 40]) == [(3, 3), (5, 5), (9, 9), (40, 40)]
    assert cache.rows([3, 40]) is not None
    assert cache.reads == 2
    assert cache.rows([3], version="2") == [(3, 3)]
    assert cache.reads == 3


def test_wider_request_is_looked_up_first(cache: LookupCache) -> None:
    cache.plan_columns = frozenset({"name"})
    assert cache.rows([3], wider=[3, 4, 5]) == [(3, 3), (4, 4), (5, 5)]
    assert cache.rows([4, 5], columns=("k", "name")) == [(3, "n3"), (4, "n4"), (5, "n5")]
    assert cache.reads == 1


def test_missing_column_is_read(cache: LookupCache) -> None:
    assert cache.rows([3]) == [(3, 3)]
    assert cache.rows([3], columns=("name",)) == [("n3",)]
    assert cache.reads == 2
    assert cache.rows([3], columns=("k", "value", "name")) == [(3, 3, "n3")]
    assert cache.reads == 2


def test_a_later_checkpoint_reads_the_columns_that_lookups_requested(cache: LookupCache) -> None:
    cache.plan_columns = frozenset({"k", "value", "name"})
    cache.rows([3])
    assert cache.rows([3], columns=("name",)) == [("n3",)]
    assert cache.reads == 1
    cache.lookups.forget()
    cache.plan_columns |= {"part.no"}
    cache.rows([3])
    assert cache.rows([3], columns=("name",)) == [("n3",)]
    assert cache.reads == 2
    assert cache.rows([3], columns=("part.no",)) == [(3,)]
    assert cache.reads == 3
    cache.lookups.forget()
    cache.rows([3])
    assert cache.rows([3], columns=("part.no",)) == [(3,)]
    assert cache.reads == 4


def test_older_version_without_a_column(cache: LookupCache) -> None:
    cache.plan_columns = frozenset({"added later"})
    assert cache.rows([3], columns=("k", "added later")) == [(3,)]
    assert cache.rows([3], columns=("k", "added later")) == [(3,)]
    assert cache.reads == 1
    assert cache.rows([3], column="added later") is None


@pytest.mark.parametrize("literals", [1, 1000])
def test_quoted_column_name_and_string_keys(
    cache: LookupCache, monkeypatch: pytest.MonkeyPatch, literals: int
) -> None:
    monkeypatch.setattr(limits, "MAX_IN_LIST_VALUES", literals)
    rows = cache.rows([3, 8], column="part.no", columns=("k", "part.no"))
    assert rows == [(n, n % 10) for n in range(100) if n % 10 in (3, 8)]
    assert cache.rows(["n1", "n2"], column="name", kind="string", columns=("k",)) == [
        (n,) for n in range(100) if n % 7 in (1, 2)
    ]


def test_too_many_rows_are_not_cached_and_not_looked_up_again(
    cache: LookupCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_LOOKUP_ROWS", 25)
    assert cache.rows([1, 2, 3], column="part.no", wider=range(10)) is None
    assert cache.reads == 2, "all keys of the change, then the needed ones"
    assert cache.rows([4, 5, 6], column="part.no") is None
    assert cache.reads == 2
    assert len(cache.rows([4, 5], column="part.no") or []) == 20


@pytest.mark.parametrize("partitions", [1, 12])
def test_tasks_stop_after_the_row_limit(
    cache: LookupCache, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    checkpointed_rows: list[int] = []
    checkpointed = materialize.computed_on_executors

    def recorded(frame: DataFrame) -> tuple[DataFrame, int]:
        result, count = checkpointed(frame)
        checkpointed_rows.append(count)
        return result, count

    monkeypatch.setattr(materialize, "computed_on_executors", recorded)
    monkeypatch.setattr(limits, "MAX_LOOKUP_VALUES", 60)
    query = f"{ROWS.replace('range(100)', f'range(0, 1000, 1, {partitions})')}"
    assert cache.rows([1, 2, 3], column="part.no", columns=("k", "part.no", "value"), query=query) is None
    assert checkpointed_rows == [21 * partitions], "60 values of three columns are 20 rows"


@pytest.mark.parametrize("driver_rows", [5, 20])
def test_rows_are_cached_on_driver_or_executors(
    cache: LookupCache, monkeypatch: pytest.MonkeyPatch, driver_rows: int
) -> None:
    monkeypatch.setattr(limits, "MAX_DRIVER_ROWS", driver_rows)
    expected = [(n, n) for n in range(100) if n % 10 == 3]
    assert cache.rows([3], column="part.no") == expected
    assert cache.rows([3], column="part.no") == expected
    assert cache.reads == 1


def on_driver(session: SparkSession, query: str) -> DataFrame:
    rows = materialize_few(session.sql(query), 100)
    assert rows is not None
    return rows


def version_1(own: DataFrame | None, others: DataFrame | None) -> OtherVersion:
    return OtherVersion(Version("1"), lambda: (own, others))


def test_rows_of_another_version_follow_from_what_differs(cache: LookupCache) -> None:
    own = on_driver(cache.session, "SELECT name, id AS k, id AS value FROM (SELECT 3L AS id, 'n' AS name)")
    others = on_driver(cache.session, "SELECT id AS k, id * 2 AS value FROM range(4, 7)")
    other = version_1(own, others)
    assert cache.rows([3, 5, 9]) == [(3, 3), (5, 5), (9, 9)]
    assert cache.rows([3, 5], version="2", other=other) == [(5, 5), (5, 10), (9, 9)]
    assert cache.reads == 1
    assert cache.rows([9], version="2") == [(5, 5), (5, 10), (9, 9)], "it is cached, too"
    assert cache.rows([4], version="2", other=other, query=ROWS.replace("id AS value", "-id AS value"))
    assert cache.reads == 2, "not all keys are known"


@pytest.mark.parametrize(
    "own",
    [
        "SELECT 3L AS k, 4L AS value",  # not among the rows
        "SELECT 3L AS k",
        "SELECT 3L AS k, 3 AS value",
    ],
)
def test_another_version_that_does_not_fit_is_not_used(cache: LookupCache, own: str) -> None:
    cache.rows([3])
    other = version_1(on_driver(cache.session, own), None)
    assert cache.rows([3], version="2", other=other) == [(3, 3)]
    assert cache.reads == 2


def test_changes_that_the_driver_does_not_hold_are_not_used(cache: LookupCache) -> None:
    cache.rows([3])
    other = version_1(cache.session.sql(f"{ROWS} WHERE id = 3").select("k", "value"), None)
    assert cache.rows([3], version="2", other=other) == [(3, 3)]
    assert cache.reads == 2


def test_a_column_that_another_version_lacks_is_read(cache: LookupCache) -> None:
    cache.plan_columns = frozenset({"more"})
    newer = "SELECT id AS k, id AS value, if(id = 3, 'x', NULL) AS more FROM range(100)"
    added = on_driver(cache.session, "SELECT 3L AS k, 3L AS value, 'x' AS more")
    assert cache.rows([3, 4], query=ROWS) == [(3, 3), (4, 4)]
    other = version_1(None, added)
    assert cache.rows([4], columns=("k", "more"), version="2", other=other, query=newer) == [(4, None)]
    assert cache.rows([3], version="3", other=version_1(None, None), query=newer) == [(3, 3), (4, 4)]
    assert cache.reads == 2, "no column is missing"
    assert cache.rows([3], columns=("k", "more"), version="3", other=other, query=newer) == [
        (3, "x"),
        (4, None),
    ]


@pytest.mark.parametrize(("kind", "version"), [("string", "1"), ("bigint", "0")])
def test_what_differs_is_not_computed_in_vain(cache: LookupCache, kind: str, version: str) -> None:
    """For keys that are not compared, or if the other version is not cached."""
    column = "name" if kind == "string" else "k"
    keys = ["n3"] if kind == "string" else [3]
    cache.rows(keys, column=column, kind=kind, columns=(column,))
    other = OtherVersion(Version(version), lambda: pytest.fail("computed"))
    assert cache.rows(keys, column=column, kind=kind, columns=(column,), version="2", other=other)


def test_failed_lookup_returns_none(cache: LookupCache) -> None:
    failing = ROWS.replace("id AS value", "if(id = 3, raise_error('no'), id) AS value")
    assert cache.rows([3, 4], query=failing) is None
    assert cache.rows([4], query=failing) == [(4, 4)]
    assert cache.rows([3, 4], version="2") == [(3, 3), (4, 4)], "a failure is no number of keys"


def test_keys_as_text(cache: LookupCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_IN_LIST_VALUES", 1)
    assert cache.rows(["n1", "a\x1fb"], column="name", kind="string") is None
    dates = "SELECT id AS k, date_add(DATE'2020-01-01', CAST(id AS INT)) AS day FROM range(100)"
    days = [dt.date(2020, 1, 5), dt.date(2020, 2, 1)]
    assert cache.rows(days, column="day", kind="date", columns=("k",), query=dates) == [(4,), (31,)]
    prices = "SELECT id AS k, CAST(id / 8 AS DECIMAL(9, 3)) AS price FROM range(100)"
    keys = [decimal.Decimal("0.125"), decimal.Decimal("2.000")]
    rows = cache.rows(keys, column="price", kind="decimal(9,3)", columns=("k",), query=prices)
    assert rows == [(1,), (16,)]


def test_oldest_rows_are_dropped(cache: LookupCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_CACHED_LOOKUP_VALUES", 25)
    cache.rows(range(10))
    cache.rows(range(10), version="2")
    cache.rows(range(10), version="2")
    assert cache.reads == 2
    cache.rows(range(10))
    assert cache.reads == 3
    cache.lookups.forget()
    cache.rows(range(10))
    assert cache.reads == 4

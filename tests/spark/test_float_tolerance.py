"""Comparing with tolerance: floats to a billionth, everything else exactly, copies counted."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tautochrone.spark.execute.float_tolerance import FLOAT_TOLERANCE, Floats, count_close_pairs, is_close
from tautochrone.spark.execute.multiset_diff import diff_sizes

BIT = 1 + 1e-12
"""What another order of additions may change."""


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        (1.0, 1.0, True),
        (1.0, 1.0 + 0.9e-9, True),
        (1.0, 1.0 + 1.1e-9, False),
        (-1e300, -1e300 * BIT, True),
        (1e-300, 1.1e-300, False),
        (0.0, -0.0, True),
        (0.0, 1e-300, False),
        (1.0, -1.0, False),
        (math.nan, math.nan, True),
        (math.nan, 1.0, False),
        (math.inf, math.inf, True),
        (math.inf, -math.inf, False),
        (math.inf, 1e308, False),
        (None, None, True),
        (None, 0.0, False),
        (None, math.nan, False),
    ],
)
def test_close(left: float | None, right: float | None, equal: bool) -> None:
    assert is_close(left, right) is equal
    assert is_close(right, left) is equal


def test_partners_are_taken_once_and_copies_are_counted() -> None:
    assert count_close_pairs([((1.0,), 3)], [((BIT,), 2)]) == 2
    assert count_close_pairs([((1.0,), 1), ((BIT,), 1)], [((1.0 / BIT,), 1)]) == 1
    assert count_close_pairs([((1.0, 5.0), 1), ((BIT, 3.0), 1)], [((1.0, 3.0), 1), ((BIT, 5.0), 1)]) == 2
    assert count_close_pairs([((1.0, None), 1)], [((1.0, 0.0), 1)]) == 0
    assert count_close_pairs([((None, math.nan), 2)], [((None, math.nan), 2)]) == 2
    assert count_close_pairs([((math.inf,), 1)], [((-math.inf,), 1)]) == 0
    assert count_close_pairs([], [((1.0,), 1)]) == 0


def test_many_rows_without_a_key_do_not_take_for_ever() -> None:
    left = [((0.0, float(n)), 1) for n in range(20_000)]
    right = [((0.0, n * BIT), 1) for n in range(20_000)]
    assert count_close_pairs(left, right) == 20_000


values = st.none() | st.sampled_from([0.0, 1.0, -1.0, 1e10, math.nan, math.inf, 3.5])
rows = st.lists(st.tuples(st.tuples(values, values), st.integers(1, 3)), max_size=8)


@given(rows, rows)
def test_against_the_most_that_is_possible(left: list[Any], right: list[Any]) -> None:
    """Where closeness is an equivalence, the best pairing is the smaller number of each class."""

    def shaken(row: Floats) -> Floats:
        return tuple(None if value is None else value * BIT for value in row)

    def copies(side: list[tuple[Floats, int]]) -> dict[str, int]:
        found: dict[str, int] = {}
        for row, count in side:
            found[repr(row)] = found.get(repr(row), 0) + count
        return found

    ours, theirs = copies(left), copies(right)
    possible = sum(min(count, theirs.get(row, 0)) for row, count in ours.items())
    assert count_close_pairs(left, [(shaken(row), count) for row, count in right]) == possible


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    """Few rows need few partitions."""
    made = spark.newSession()
    made.conf.set("spark.sql.shuffle.partitions", "1")
    return made


@pytest.mark.spark
@pytest.mark.parametrize(
    ("schema", "expected", "actual", "answer"),
    [
        (
            "k int, x double",
            [(1, 0.1 + 0.2), (2, 5.0), (3, 0.3), (3, 0.3), (None, None), (None, math.nan), (None, 7.0)],
            [(1, 0.3), (2, 5.0), (3, 0.3), (3, 0.3 * BIT), (None, math.nan), (None, None), (None, 7.0 * BIT)],
            (0, 0),
        ),
        # Other keys; other numbers; a copy too few; a row that nobody expects.
        (
            "k int, x double",
            [(1, 0.3), (3, 0.3), (4, 0.3), (4, 0.3)],
            [(2, 0.3 * BIT), (3, 0.3001), (4, 0.3 * BIT), (5, 1.0)],
            (3, 3),
        ),
        ("k int, x double", [], [(1, 1.0)], (0, 1)),
        ("x double", [(1.0,), (2.0,), (3.0,)], [(1.0 * BIT,), (2.0 * BIT,), (4.0,)], (1, 1)),
        ("x double, y double, k string", [(1.0, 2.0, "a")], [(BIT, 2 * BIT, "a")], (0, 0)),
        # The tolerance is for floats only, and only at the top.
        ("x decimal(20,15)", [("1.000000000000001",)], [("1.000000000000000",)], (1, 1)),
        ("x bigint", [(10**12,)], [(10**12 + 1,)], (1, 1)),
        ("x struct<y: double>", [((1.0,),)], [((BIT,),)], (1, 1)),
        ("`a b` map<string, int>, x double", [({"k": 1}, 1.0)], [({"k": 1}, BIT)], (0, 0)),
        ("`a b` map<string, int>, x double", [({"k": 1}, 1.0)], [({"k": None}, BIT)], (1, 1)),
        ("k array<int>, x float", [([1], 1.5), ([1], 2.5)], [([1], 2.5), ([1], 1.5)], (0, 0)),
    ],
)
def test_compare(
    session: SparkSession,
    schema: str,
    expected: list[tuple[Any, ...]],
    actual: list[tuple[Any, ...]],
    answer: tuple[int, int],
) -> None:
    if "decimal" in schema:
        text = schema.replace("decimal(20,15)", "string")
        sides = [
            session.createDataFrame(rows, text).selectExpr("CAST(x AS DECIMAL(20, 15)) AS x")
            for rows in (expected, actual)
        ]
    else:
        sides = [session.createDataFrame(rows, schema) for rows in (expected, actual)]
    assert diff_sizes(*sides) == answer


@pytest.mark.spark
def test_a_sum_in_another_order_is_equal(session: SparkSession) -> None:
    numbers = [(n % 50, 0.1 * n) for n in range(5_000)]
    forth, back = (
        session.createDataFrame(rows, "k int, x double").coalesce(1) for rows in (numbers, numbers[::-1])
    )
    sums = [frame.groupBy("k").agg({"x": "sum"}) for frame in (forth, back)]
    exact = sums[0].exceptAll(sums[1]).count()
    assert exact > 0, "the orders give the same sums, so this proves nothing"
    assert diff_sizes(*sums) == (0, 0)
    assert FLOAT_TOLERANCE == 1e-9

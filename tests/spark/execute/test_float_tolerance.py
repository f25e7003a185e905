"""Comparing rows with a tolerance: floats to a billionth, other values exactly, copy by copy."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tautochrone.spark.execute.multiset_diff import (
    FLOAT_TOLERANCE,
    Floats,
    count_close_pairs,
    diff_sizes,
    is_close,
)

BIT = 1 + 1e-12
"""A factor within the tolerance, as another order of additions may cause."""


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
def test_is_close(left: float | None, right: float | None, equal: bool) -> None:
    assert is_close(left, right) is equal
    assert is_close(right, left) is equal


def test_each_copy_has_one_partner() -> None:
    assert count_close_pairs([((1.0,), 3)], [((BIT,), 2)]) == 2
    assert count_close_pairs([((1.0,), 1), ((BIT,), 1)], [((1.0 / BIT,), 1)]) == 1
    assert count_close_pairs([((1.0, 5.0), 1), ((BIT, 3.0), 1)], [((1.0, 3.0), 1), ((BIT, 5.0), 1)]) == 2
    assert count_close_pairs([((1.0, None), 1)], [((1.0, 0.0), 1)]) == 0
    assert count_close_pairs([((None, math.nan), 2)], [((None, math.nan), 2)]) == 2
    assert count_close_pairs([((math.inf,), 1)], [((-math.inf,), 1)]) == 0
    assert count_close_pairs([], [((1.0,), 1)]) == 0


def test_many_rows_without_key_are_paired_fast() -> None:
    left = [((0.0, float(n)), 1) for n in range(20_000)]
    right = [((0.0, n * BIT), 1) for n in range(20_000)]
    assert count_close_pairs(left, right) == 20_000


values = st.none() | st.sampled_from([0.0, 1.0, -1.0, 1e10, math.nan, math.inf, 3.5])
rows = st.lists(st.tuples(st.tuples(values, values), st.integers(1, 3)), max_size=8)


@given(rows, rows)
def test_pairs_as_many_rows_as_possible(left: list[Any], right: list[Any]) -> None:
    """If closeness is transitive, the largest pairing has the smaller number of each class of close rows."""

    def perturbed(row: Floats) -> Floats:
        return tuple(None if value is None else value * BIT for value in row)

    def copies(side: list[tuple[Floats, int]]) -> dict[str, int]:
        counts: dict[str, int] = {}
        for row, count in side:
            counts[repr(row)] = counts.get(repr(row), 0) + count
        return counts

    left_copies, right_copies = copies(left), copies(right)
    largest = sum(min(count, right_copies.get(row, 0)) for row, count in left_copies.items())
    assert count_close_pairs(left, [(perturbed(row), count) for row, count in right]) == largest


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    """A session with one shuffle partition, because the tests have few rows."""
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "1")
    return session


@pytest.mark.spark
@pytest.mark.parametrize(
    ("schema", "expected", "actual", "sizes"),
    [
        (
            "k int, x double",
            [(1, 0.1 + 0.2), (2, 5.0), (3, 0.3), (3, 0.3), (None, None), (None, math.nan), (None, 7.0)],
            [(1, 0.3), (2, 5.0), (3, 0.3), (3, 0.3 * BIT), (None, math.nan), (None, None), (None, 7.0 * BIT)],
            (0, 0),
        ),
        # Different keys, different numbers, a missing copy, an unexpected row.
        (
            "k int, x double",
            [(1, 0.3), (3, 0.3), (4, 0.3), (4, 0.3)],
            [(2, 0.3 * BIT), (3, 0.3001), (4, 0.3 * BIT), (5, 1.0)],
            (3, 3),
        ),
        ("k int, x double", [], [(1, 1.0)], (0, 1)),
        ("x double", [(1.0,), (2.0,), (3.0,)], [(1.0 * BIT,), (2.0 * BIT,), (4.0,)], (1, 1)),
        ("x double, y double, k string", [(1.0, 2.0, "a")], [(BIT, 2 * BIT, "a")], (0, 0)),
        # The tolerance is for float columns only, not for floats inside other types.
        ("x decimal(20,15)", [("1.000000000000001",)], [("1.000000000000000",)], (1, 1)),
        ("x bigint", [(10**12,)], [(10**12 + 1,)], (1, 1)),
        ("x struct<y: double>", [((1.0,),)], [((BIT,),)], (1, 1)),
        ("`a b` map<string, int>, x double", [({"k": 1}, 1.0)], [({"k": 1}, BIT)], (0, 0)),
        ("`a b` map<string, int>, x double", [({"k": 1}, 1.0)], [({"k": None}, BIT)], (1, 1)),
        ("k array<int>, x float", [([1], 1.5), ([1], 2.5)], [([1], 2.5), ([1], 1.5)], (0, 0)),
    ],
)
def test_diff_sizes(
    session: SparkSession,
    schema: str,
    expected: list[tuple[Any, ...]],
    actual: list[tuple[Any, ...]],
    sizes: tuple[int, int],
) -> None:
    if "decimal" in schema:
        text = schema.replace("decimal(20,15)", "string")
        sides = [
            session.createDataFrame(rows, text).selectExpr("CAST(x AS DECIMAL(20, 15)) AS x")
            for rows in (expected, actual)
        ]
    else:
        sides = [session.createDataFrame(rows, schema) for rows in (expected, actual)]
    assert diff_sizes(*sides) == sizes


@pytest.mark.spark
def test_sums_in_another_order_are_equal(session: SparkSession) -> None:
    numbers = [(n % 50, 0.1 * n) for n in range(5_000)]
    forwards, backwards = (
        session.createDataFrame(rows, "k int, x double").coalesce(1) for rows in (numbers, numbers[::-1])
    )
    sums = [frame.groupBy("k").agg({"x": "sum"}) for frame in (forwards, backwards)]
    exact = sums[0].exceptAll(sums[1]).count()
    assert exact > 0, "both orders give the same sums, so the test shows nothing"
    assert diff_sizes(*sums) == (0, 0)
    assert FLOAT_TOLERANCE == 1e-9

"""What differs between two multisets of rows."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tautochrone.runtime.unit_tests.differences import RowState, RowValues, difference, plain_value

VALUES = st.one_of(
    st.none(), st.integers(0, 3), st.sampled_from([0.0, -0.0, math.nan, 1.0, math.inf]), st.sampled_from("ab")
)
ROWS = st.lists(st.tuples(VALUES, VALUES), max_size=6)
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A busy machine is no failure."""


def rows(*values: tuple[Any, ...]) -> RowValues:
    return RowValues(("a", "b"), values)


@patient
@given(ROWS, st.randoms())
def test_order_does_not_matter(values: list[tuple[Any, Any]], random: Any) -> None:
    shuffled = random.sample(values, len(values))
    assert not difference(rows(*values), rows(*shuffled))


@patient
@given(ROWS, ROWS)
def test_the_numbers_of_rows_add_up(expected: list[tuple[Any, Any]], actual: list[tuple[Any, Any]]) -> None:
    compared = difference(rows(*expected), rows(*actual))
    states = [row.state for row in compared.rows]
    changed = states.count(RowState.CHANGED)
    assert compared.matching + changed + states.count(RowState.MISSING) == len(expected)
    assert compared.matching + changed + states.count(RowState.UNEXPECTED) == len(actual)
    for row in compared.rows:
        assert (row.state is RowState.CHANGED) == bool(row.columns)


@patient
@given(ROWS, st.tuples(VALUES, VALUES))
def test_a_row_more_is_noticed(values: list[tuple[Any, Any]], more: tuple[Any, Any]) -> None:
    assert [row.state for row in difference(rows(*values), rows(*values, more)).rows] == [RowState.UNEXPECTED]
    assert [row.state for row in difference(rows(*values, more), rows(*values)).rows] == [RowState.MISSING]


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        (Decimal("1.10"), Decimal("1.1"), True),
        (math.nan, math.nan, True),
        (0.0, -0.0, True),
        (0.1 + 0.2, 0.3, True),
        ([0.1 + 0.2], [0.3], True),
        (1.0, 1.001, False),
        (None, 0.0, False),
        ([("k", 1), ("l", 2)], [("l", 2), ("k", 1)], True),
        ([{"x": 1}, {"x": 2}], [{"x": 2}, {"x": 1}], False),
        ({"x": None}, {"x": None}, True),
        (b"a", b"b", False),
        (
            datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin")),
            datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
            False,
        ),
        (
            datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
            datetime(2024, 10, 27, 1, 30, tzinfo=UTC),
            True,
        ),
    ],
)
def test_values(left: object, right: object, equal: bool) -> None:
    assert bool(difference(rows((1, left)), rows((1, right)))) is not equal


def test_rows_match_by_their_rarest_values() -> None:
    compared = difference(rows((7, "x"), (8, "x")), rows((8, "y"), (9, "x")))
    assert [(row.expected, row.actual, row.columns) for row in compared.rows] == [
        ((7, "x"), (9, "x"), ("a",)),
        ((8, "x"), (8, "y"), ("b",)),
    ]


def test_values_for_people() -> None:
    assert plain_value([("k", Decimal("1.10"))]) == {"k": "1.10"}
    assert plain_value({"x": [b"\x01", math.nan]}) == {"x": ["01", "NaN"]}

"""Bug classes of other systems, 3 to 6, 8 to 10, 12, 17, 22: groups and orders. All of them: `README.md`."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest

from tautochrone.algebra.nodes import AggregateFunction, Materialized, Node, Rename, Union
from tautochrone.testing.plan_evaluator import PlanEvaluator

from .small import bag, call, cols, first, group, join, row_number, scan
from .world import View

COUNT, SUM, AVERAGE, VARIANCE, MIN, MAX, BIT_AND, BIT_OR, BIT_XOR, OTHER = AggregateFunction
T = scan("t", "k v")

STATE = pytest.mark.parametrize("state", [True, False], ids=["from state", "from inputs"])


def follow(view: View, change: list[tuple[tuple[object, ...], int]], state: bool = True) -> None:
    numbers = () if state else list(view.states)
    view.refresh({"t": change}, without=numbers)


@STATE
def test_03_a_scalar_aggregate_stays_when_its_input_empties(state: bool) -> None:
    calls = [
        call(COUNT),
        call(COUNT, "v"),
        call(SUM, "v"),
        call(AVERAGE, "v"),
        call(MIN, "v"),
        call(MAX, "v"),
        call(BIT_AND, "v"),
        call(BIT_OR, "v"),
        call(BIT_XOR, "v"),
        call(VARIANCE, "v"),
    ]
    view = View(group(T, "", *calls), {"t": [(1, 6), (1, 12)]})
    assert view.rows == bag((2, 2, 18, 9, 6, 12, 4, 14, 10, 9))
    follow(view, [((1, 6), -1), ((1, 12), -1)], state)
    assert view.rows == bag((0, 0, *[None] * 8))
    follow(view, [((1, 7), 1)], state)
    assert view.rows == bag((1, 1, *[7] * 7, 0))


@STATE
def test_03_a_scalar_aggregate_is_there_before_any_row(state: bool) -> None:
    """Also below a join, where its old rows are asked for."""
    total = group(T, "", call(COUNT), call(SUM, "v"))
    view = View(join(scan("l", "a"), total), {"t": [], "l": [(1,)]})
    assert view.rows == bag((1, 0, None))
    view.refresh({"l": [((2,), 1)], "t": [((1, 0), 1)]}, without=[] if state else [total.number])
    assert view.rows == bag((1, 1, 0), (2, 1, 0))


@STATE
def test_04_a_group_of_nulls_lives_and_its_sum_is_null(state: bool) -> None:
    calls = [call(COUNT), call(COUNT, "v"), call(SUM, "v"), call(AVERAGE, "v"), call(MIN, "v")]
    view = View(group(T, "k", *calls), {"t": [(1, None), (1, 0)]})
    assert view.rows == bag((1, 2, 1, 0, 0, 0))
    follow(view, [((1, 0), -1)], state)
    assert view.rows == bag((1, 1, 0, None, None, None))
    follow(view, [((1, None), 1)], state)
    assert view.rows == bag((1, 2, 0, None, None, None))
    follow(view, [((1, None), -1), ((1, None), -1)], state)
    assert view.rows == bag()
    follow(view, [((1, None), 1)], state)
    assert view.rows == bag((1, 1, 0, None, None, None))


@STATE
@pytest.mark.parametrize(("kind", "best", "next_best"), [(MIN, 1, 2), (MAX, 3, 2)])
def test_05_one_of_two_equal_extrema_goes(
    kind: AggregateFunction, best: int, next_best: int, state: bool
) -> None:
    view = View(group(T, "k", call(kind, "v")), {"t": [(0, best), (0, best), (0, 2), (9, best)]})
    follow(view, [((0, best), -1)], state)
    assert view.rows == bag((0, best), (9, best))
    follow(view, [((0, best), -1)], state)
    assert view.rows == bag((0, next_best), (9, best))
    follow(view, [((0, next_best), -1), ((0, best), 1)], state)
    assert view.rows == bag((0, best), (9, best))


@STATE
def test_05_a_bit_that_one_value_had_goes_with_it(state: bool) -> None:
    calls = [call(BIT_AND, "v"), call(BIT_OR, "v"), call(BIT_XOR, "v")]
    view = View(group(T, "k", *calls), {"t": [(0, 6), (0, 12), (0, 4), (9, 5)]})
    assert view.rows == bag((0, 4, 14, 14), (9, 5, 5, 5))
    follow(view, [((0, 12), -1)], state)
    assert view.rows == bag((0, 4, 6, 2), (9, 5, 5, 5))
    follow(view, [((0, 6), -1), ((0, 1), 1), ((0, None), 1), ((9, 5), -1)], state)
    assert view.rows == bag((0, 0, 5, 5))


def test_05_an_extremum_goes_and_a_better_one_comes() -> None:
    view = View(group(T, "k", call(MIN, "v"), call(MAX, "v")), {"t": [(0, 2), (0, 5)]})
    follow(view, [((0, 2), -1), ((0, 1), 1), ((0, 5), -1), ((0, 4), 1)])
    assert view.rows == bag((0, 1, 4))


@STATE
def test_05_a_group_that_vanished_comes_back_without_its_past(state: bool) -> None:
    """Its row in the state stands there with a count of 0: no old extremum, no rest of an inexact sum."""
    calls = [call(MIN, "v"), call(MAX, "v"), call(SUM, "v", exact=False), call(AVERAGE, "v", exact=False)]
    view = View(group(T, "k", *calls), {"t": [(0, 0.1), (0, 1e16)]})
    follow(view, [((0, 0.1), -1), ((0, 1e16), -1)], state)
    assert view.rows == bag()
    follow(view, [((0, 5.0), 1)], state)
    assert view.rows == bag((0, 5.0, 5.0, 5.0, 5.0))


@STATE
def test_06_null_is_a_key_of_groups_partitions_and_distinct(state: bool) -> None:
    start = {"t": [(None, 1), (None, 2), (None, None), (1, 1)]}
    change = [((None, 2), -1), ((None, 1), 1), ((None, None), -1)]
    groups = View(group(T, "k", call(SUM, "v"), call(MAX, "v"), call(OTHER, "v")), start)
    follow(groups, change, state)
    assert groups.rows == bag((None, 2, 1, (1, 1)), (1, 1, 1, (1,)))
    merged = View(group(T, "k", call(SUM, "v"), call(MAX, "v")), start)
    follow(merged, change, state)
    assert merged.rows == bag((None, 2, 1), (1, 1, 1))
    distinct = View(group(T, "k v"), start)
    follow(distinct, change, state)
    assert distinct.rows == bag((None, 1), (1, 1))
    partitions = View(row_number(T, "k", "v"), start)
    follow(partitions, change, state)
    assert partitions.rows == bag((None, 1, 1), (None, 1, 2), (1, 1, 1))
    meeting = View(join(T, scan("t", "j w"), "k==j v==w"), start)
    follow(meeting, change, state)
    assert meeting.rows == bag(*[(None, 1, None, 1)] * 4, (1, 1, 1, 1))


def test_08_a_switch_between_full_and_incremental_leaves_no_duplicates() -> None:
    """Rows have no identity but their values: a rebuilt view and a followed one are the same bag."""
    query = join(group(T, "k", call(COUNT)), scan("t", "j w"), "k=j")
    view = View(query, {"t": [(1, 1), (1, 1), (2, 2)]})
    follow(view, [((1, 1), -1), ((2, 2), 1)])
    rebuilt = View(query, view.tables)
    assert rebuilt.rows == view.rows
    for each in (view, rebuilt):
        follow(each, [((2, 2), -1), ((1, 3), 1)])
    assert rebuilt.rows == view.rows
    assert rebuilt.changes[-1] == view.changes[-1]


def test_09_nothing_is_subtracted_from_a_sum_of_floats() -> None:
    """1e16 + 0.1 - 1e16 is 0: a group that loses a float is added up again."""
    sums = group(T, "k", call(SUM, "v", exact=False), call(AVERAGE, "v", exact=False))
    view = View(sums, {"t": [(1, 0.1), (1, 1e16)]})
    follow(view, [((1, 1e16), -1)])
    assert view.rows == bag((1, 0.1, 0.1))
    follow(view, [((1, 0.1), -1), ((1, 0.2), 1)])
    assert view.rows == bag((1, 0.2, 0.2))
    for _ in range(10):
        follow(view, [((1, 1e16), 1)])
        follow(view, [((1, 1e16), -1)])
    assert view.rows == bag((1, 0.2, 0.2))


def test_09_nan_and_negative_zero_are_keys_that_cancel() -> None:
    start = {"t": [(math.nan, 1), (-0.0, 2), (0.0, 3)]}
    view = View(group(T, "k", call(SUM, "v")), start)
    assert view.rows == bag(("NaN", 1), (0.0, 5))
    follow(view, [((-0.0, 2), -1), ((math.nan, 4), 1)])
    assert view.rows == bag(("NaN", 5), (0.0, 3))
    follow(view, [((math.nan, 1), -1), ((math.nan, 4), -1)])
    assert view.rows == bag((0.0, 3))


def test_10_ties_are_broken_by_all_columns() -> None:
    """Rows of one rank keep their numbers whatever order the engine reads them in, and the border of a
    limit goes through the same row always."""
    start = {"t": [(1, "a"), (1, "b"), (1, "c"), (1, "c"), (1, "d")]}
    ranked, cut = row_number(T, "", "k"), first(T, "k", 3, offset=1)
    for seed in range(20):
        views = View(ranked, start), View(cut, start)
        for view in views:
            view.refresh({"t": [((1, "a"), -1), ((1, "c"), 1)]}, seed=seed)
        assert views[0].rows == bag((1, "b", 1), (1, "c", 2), (1, "c", 3), (1, "c", 4), (1, "d", 5))
        assert views[1].rows == bag((1, "c"), (1, "c"), (1, "c"))


def test_12_a_change_elsewhere_costs_nothing() -> None:
    """Inputs that did not change ask for no rule, and nothing is computed."""
    query: Node = join(group(T, "k", call(SUM, "v")), scan("t", "j w"), "k=j")

    class Idle(PlanEvaluator):
        def materialize(self, plan: Node, *, may_be_large: bool = False) -> Materialized:
            raise AssertionError(f"{type(plan).__name__} was computed")

    view = View(query, {"t": [(1, 1)], "other": [(1,)]})
    new = {**view.tables, "other": [(2,)]}
    engine = Idle(before=view.tables, after=new, states=view.states, rules=view.rules)
    at = view.differentiator(engine)
    assert not at.materialized_change(query, consolidated=True)
    assert not at.state_updates
    assert not at.nodes


def test_17_a_change_holds_no_state_in_between() -> None:
    """Rows that go and come again within a step are not in its change, whatever happens below."""
    one, two = group(T, "k", call(COUNT)), group(scan("t", "k v"), "k", call(COUNT))
    two = group(two, "k", call(MAX, two.columns[1]))
    both = Union(columns=cols("k n"), inputs=tuple(renamed(each) for each in (one, two)))
    view = View(both, {"t": [(1, 1), (2, 2)]})
    follow(view, [((1, 1), -1), ((1, 5), 1), ((2, 3), 1)])
    assert view.changes[-1] == {(2, 1): -2, (2, 2): 2}


def renamed(node: Node) -> Node:
    return Rename(columns=cols("k n"), child=node, sources=node.columns)


def test_22_decimals_are_the_same_by_every_way() -> None:
    """Sums that were merged, taken out of and looked up have the digits and the scale of one pass."""
    view = View(group(T, "", call(SUM, "v"), call(AVERAGE, "v")), {"t": [(0, Decimal("0.10"))]})
    for cents in range(1, 40):
        large = Decimal(10) ** 20 + Decimal(cents) / 100
        follow(view, [((0, large), 1), ((0, Decimal(cents) / 100), 1)])
        follow(view, [((0, large), -1)])
    assert [row[0] for row in view.rows] == [Decimal("7.90")]
    follow(view, [((0, Decimal("0.10")), -1)])
    assert [row[0] for row in view.rows] == [Decimal("7.80")]

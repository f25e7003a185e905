"""Bug classes of other systems, 3 to 6, 8 to 10, 12, 17, 22: groups and orders. `README.md` has all."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest
from tests.support.plan_evaluator import PlanEvaluator

from tautochrone.algebra.nodes import AggregateFunction, Materialized, Node, Rename, Union

from .incremental_view import View
from .query_builders import bag, call, columns_of, first, group, join, row_number, scan

COUNT, SUM, AVERAGE, VARIANCE, MIN, MAX, BIT_AND, BIT_OR, BIT_XOR, OTHER = AggregateFunction
T = scan("t", "k v")

STATE = pytest.mark.parametrize("state", [True, False], ids=["from state", "from inputs"])


def refresh_and_check(view: View, change: list[tuple[tuple[object, ...], int]], state: bool = True) -> None:
    numbers = () if state else list(view.states)
    view.refresh({"t": change}, without=numbers)


@STATE
def test_03_scalar_aggregate_keeps_its_row_over_no_input(state: bool) -> None:
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
    refresh_and_check(view, [((1, 6), -1), ((1, 12), -1)], state)
    assert view.rows == bag((0, 0, *[None] * 8))
    refresh_and_check(view, [((1, 7), 1)], state)
    assert view.rows == bag((1, 1, *[7] * 7, 0))


@STATE
def test_03_scalar_aggregate_has_a_row_before_any_input(state: bool) -> None:
    """Also below a join, which reads its rows before."""
    total = group(T, "", call(COUNT), call(SUM, "v"))
    view = View(join(scan("l", "a"), total), {"t": [], "l": [(1,)]})
    assert view.rows == bag((1, 0, None))
    view.refresh({"l": [((2,), 1)], "t": [((1, 0), 1)]}, without=[] if state else [total.number])
    assert view.rows == bag((1, 1, 0), (2, 1, 0))


@STATE
def test_04_group_of_nulls_exists_and_its_sum_is_null(state: bool) -> None:
    calls = [call(COUNT), call(COUNT, "v"), call(SUM, "v"), call(AVERAGE, "v"), call(MIN, "v")]
    view = View(group(T, "k", *calls), {"t": [(1, None), (1, 0)]})
    assert view.rows == bag((1, 2, 1, 0, 0, 0))
    refresh_and_check(view, [((1, 0), -1)], state)
    assert view.rows == bag((1, 1, 0, None, None, None))
    refresh_and_check(view, [((1, None), 1)], state)
    assert view.rows == bag((1, 2, 0, None, None, None))
    refresh_and_check(view, [((1, None), -1), ((1, None), -1)], state)
    assert view.rows == bag()
    refresh_and_check(view, [((1, None), 1)], state)
    assert view.rows == bag((1, 1, 0, None, None, None))


@STATE
@pytest.mark.parametrize(("kind", "best", "next_best"), [(MIN, 1, 2), (MAX, 3, 2)])
def test_05_one_of_two_equal_extrema_is_deleted(
    kind: AggregateFunction, best: int, next_best: int, state: bool
) -> None:
    view = View(group(T, "k", call(kind, "v")), {"t": [(0, best), (0, best), (0, 2), (9, best)]})
    refresh_and_check(view, [((0, best), -1)], state)
    assert view.rows == bag((0, best), (9, best))
    refresh_and_check(view, [((0, best), -1)], state)
    assert view.rows == bag((0, next_best), (9, best))
    refresh_and_check(view, [((0, next_best), -1), ((0, best), 1)], state)
    assert view.rows == bag((0, best), (9, best))


@STATE
def test_05_bits_of_a_deleted_value_are_cleared(state: bool) -> None:
    calls = [call(BIT_AND, "v"), call(BIT_OR, "v"), call(BIT_XOR, "v")]
    view = View(group(T, "k", *calls), {"t": [(0, 6), (0, 12), (0, 4), (9, 5)]})
    assert view.rows == bag((0, 4, 14, 14), (9, 5, 5, 5))
    refresh_and_check(view, [((0, 12), -1)], state)
    assert view.rows == bag((0, 4, 6, 2), (9, 5, 5, 5))
    refresh_and_check(view, [((0, 6), -1), ((0, 1), 1), ((0, None), 1), ((9, 5), -1)], state)
    assert view.rows == bag((0, 0, 5, 5))


def test_05_extremum_is_replaced_by_a_better_one() -> None:
    view = View(group(T, "k", call(MIN, "v"), call(MAX, "v")), {"t": [(0, 2), (0, 5)]})
    refresh_and_check(view, [((0, 2), -1), ((0, 1), 1), ((0, 5), -1), ((0, 4), 1)])
    assert view.rows == bag((0, 1, 4))


@STATE
def test_05_group_that_returns_has_no_old_values(state: bool) -> None:
    """Its state row has a count of 0: no old extremum, and no remainder of an inexact sum."""
    calls = [call(MIN, "v"), call(MAX, "v"), call(SUM, "v", exact=False), call(AVERAGE, "v", exact=False)]
    view = View(group(T, "k", *calls), {"t": [(0, 0.1), (0, 1e16)]})
    refresh_and_check(view, [((0, 0.1), -1), ((0, 1e16), -1)], state)
    assert view.rows == bag()
    refresh_and_check(view, [((0, 5.0), 1)], state)
    assert view.rows == bag((0, 5.0, 5.0, 5.0, 5.0))


@STATE
def test_06_null_is_a_key_of_groups_and_partitions(state: bool) -> None:
    start = {"t": [(None, 1), (None, 2), (None, None), (1, 1)]}
    change = [((None, 2), -1), ((None, 1), 1), ((None, None), -1)]
    groups = View(group(T, "k", call(SUM, "v"), call(MAX, "v"), call(OTHER, "v")), start)
    refresh_and_check(groups, change, state)
    assert groups.rows == bag((None, 2, 1, (1, 1)), (1, 1, 1, (1,)))
    merged = View(group(T, "k", call(SUM, "v"), call(MAX, "v")), start)
    refresh_and_check(merged, change, state)
    assert merged.rows == bag((None, 2, 1), (1, 1, 1))
    distinct = View(group(T, "k v"), start)
    refresh_and_check(distinct, change, state)
    assert distinct.rows == bag((None, 1), (1, 1))
    partitions = View(row_number(T, "k", "v"), start)
    refresh_and_check(partitions, change, state)
    assert partitions.rows == bag((None, 1, 1), (None, 1, 2), (1, 1, 1))
    meeting = View(join(T, scan("t", "j w"), "k==j v==w"), start)
    refresh_and_check(meeting, change, state)
    assert meeting.rows == bag(*[(None, 1, None, 1)] * 4, (1, 1, 1, 1))


def test_08_full_and_incremental_refreshes_agree() -> None:
    """Rows have no identity but their values: a rebuilt view and a refreshed one are equal bags."""
    query = join(group(T, "k", call(COUNT)), scan("t", "j w"), "k=j")
    view = View(query, {"t": [(1, 1), (1, 1), (2, 2)]})
    refresh_and_check(view, [((1, 1), -1), ((2, 2), 1)])
    rebuilt = View(query, view.tables)
    assert rebuilt.rows == view.rows
    for refreshed in (view, rebuilt):
        refresh_and_check(refreshed, [((2, 2), -1), ((1, 3), 1)])
    assert rebuilt.rows == view.rows
    assert rebuilt.changes[-1] == view.changes[-1]


def test_09_float_sums_are_recomputed_after_deletes() -> None:
    """1e16 + 0.1 - 1e16 is 0, so a group that loses a float is recomputed."""
    sums = group(T, "k", call(SUM, "v", exact=False), call(AVERAGE, "v", exact=False))
    view = View(sums, {"t": [(1, 0.1), (1, 1e16)]})
    refresh_and_check(view, [((1, 1e16), -1)])
    assert view.rows == bag((1, 0.1, 0.1))
    refresh_and_check(view, [((1, 0.1), -1), ((1, 0.2), 1)])
    assert view.rows == bag((1, 0.2, 0.2))
    for _ in range(10):
        refresh_and_check(view, [((1, 1e16), 1)])
        refresh_and_check(view, [((1, 1e16), -1)])
    assert view.rows == bag((1, 0.2, 0.2))


def test_09_nan_and_negative_zero_as_keys() -> None:
    start = {"t": [(math.nan, 1), (-0.0, 2), (0.0, 3)]}
    view = View(group(T, "k", call(SUM, "v")), start)
    assert view.rows == bag(("NaN", 1), (0.0, 5))
    refresh_and_check(view, [((-0.0, 2), -1), ((math.nan, 4), 1)])
    assert view.rows == bag(("NaN", 5), (0.0, 3))
    refresh_and_check(view, [((math.nan, 1), -1), ((math.nan, 4), -1)])
    assert view.rows == bag((0.0, 3))


def test_10_ties_are_broken_by_all_columns() -> None:
    """Whatever order rows are read in, those of equal rank keep their numbers and a limit cuts at the same
    row."""
    start = {"t": [(1, "a"), (1, "b"), (1, "c"), (1, "c"), (1, "d")]}
    ranked, limited = row_number(T, "", "k"), first(T, "k", 3, offset=1)
    for seed in range(20):
        views = View(ranked, start), View(limited, start)
        for view in views:
            view.refresh({"t": [((1, "a"), -1), ((1, "c"), 1)]}, seed=seed)
        assert views[0].rows == bag((1, "b", 1), (1, "c", 2), (1, "c", 3), (1, "c", 4), (1, "d", 5))
        assert views[1].rows == bag((1, "c"), (1, "c"), (1, "c"))


def test_12_change_of_another_table_computes_nothing() -> None:
    """Without a change of an input no rule is applied, and nothing is computed."""
    query: Node = join(group(T, "k", call(SUM, "v")), scan("t", "j w"), "k=j")

    class FailingEngine(PlanEvaluator):
        def materialize(self, plan: Node, *, may_be_large: bool = False) -> Materialized:
            raise AssertionError(f"{type(plan).__name__} was computed")

    view = View(query, {"t": [(1, 1)], "other": [(1,)]})
    after = {**view.tables, "other": [(2,)]}
    engine = FailingEngine(before=view.tables, after=after, states=view.states, rules=view.rules)
    context = view.differentiator(engine)
    assert not context.materialized_change(query, consolidated=True)
    assert not context.state_updates
    assert not context.nodes


def test_17_change_has_no_intermediate_rows() -> None:
    """Rows that are deleted and inserted again in a step are not in the change, whatever happens below."""
    counts, counts_again = group(T, "k", call(COUNT)), group(scan("t", "k v"), "k", call(COUNT))
    largest = group(counts_again, "k", call(MAX, counts_again.columns[1]))
    both = Union(columns=columns_of("k n"), inputs=(renamed(counts), renamed(largest)))
    view = View(both, {"t": [(1, 1), (2, 2)]})
    refresh_and_check(view, [((1, 1), -1), ((1, 5), 1), ((2, 3), 1)])
    assert view.changes[-1] == {(2, 1): -2, (2, 2): 2}


def renamed(node: Node) -> Node:
    return Rename(columns=columns_of("k n"), child=node, sources=node.columns)


def test_22_decimal_sums_do_not_depend_on_history() -> None:
    """Sums after merges, subtractions and recomputation have the digits and the scale of a single pass."""
    view = View(group(T, "", call(SUM, "v"), call(AVERAGE, "v")), {"t": [(0, Decimal("0.10"))]})
    for cents in range(1, 40):
        large = Decimal(10) ** 20 + Decimal(cents) / 100
        refresh_and_check(view, [((0, large), 1), ((0, Decimal(cents) / 100), 1)])
        refresh_and_check(view, [((0, large), -1)])
    assert [row[0] for row in view.rows] == [Decimal("7.90")]
    refresh_and_check(view, [((0, Decimal("0.10")), -1)])
    assert [row[0] for row in view.rows] == [Decimal("7.80")]

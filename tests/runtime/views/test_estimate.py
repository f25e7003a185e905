"""What is expected to be cheapest: the static model, then what was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tautochrone.model.checkpoint import NodeRefresh, Refresh, RefreshMode, RefreshPolicy
from tautochrone.model.reason import unclassified
from tautochrone.runtime.views.choose_mode import RECENT_RUNS, Facts, InputFacts, decide, estimate

AUTO = RefreshPolicy.AUTO
INCREMENTAL, FULL, DIFF = RefreshMode.INCREMENTAL, RefreshMode.FULL, RefreshMode.DIFF


def facts(
    changed: int | None, rows: int | None, *history: Refresh, view_rows: int = 1_000, unchanged: int = 0
) -> Facts:
    part = InputFacts(name="orders", changed_rows=changed, rows=rows)
    return Facts(changed=(part,), view_rows=view_rows, unchanged_rows=unchanged, history=history)


def ran(mode: RefreshMode, duration_ms: int, delta_rows: int = 0, node: str = "aggregate") -> Refresh:
    """One refresh; one of `FULL` is of the whole query."""
    node = "query" if mode is FULL else node
    return Refresh(
        mode=mode,
        reason=unclassified(""),
        duration_ms=duration_ms,
        delta_rows=delta_rows,
        nodes=(NodeRefresh(node=node, mode=mode, reason=unclassified("")),),
    )


@pytest.mark.parametrize(
    ("changed", "rows", "mode"),
    [
        (1, 10_000_000, INCREMENTAL),
        (1_000_000, 10_000_000, INCREMENTAL),
        (1_900_000, 10_000_000, INCREMENTAL),
        (3_000_000, 10_000_000, FULL),
        (10_000_000, 10_000_000, FULL),
        (20_000_000, 10_000_000, FULL),
        # So little that both cost the same: the change is followed.
        (10, 10, INCREMENTAL),
        (0, 0, INCREMENTAL),
        # Nobody knows: no reason to compute everything.
        (None, None, INCREMENTAL),
        (None, 10_000_000, INCREMENTAL),
        (5, None, INCREMENTAL),
    ],
)
def test_without_measurements_a_fifth_is_the_limit(
    changed: int | None, rows: int | None, mode: RefreshMode
) -> None:
    assert decide(AUTO, facts(changed, rows)).mode is mode


@pytest.mark.parametrize(
    ("changed", "readers", "view_rows", "mode"),
    [
        (400, 0, 1_000, FULL),
        (400, 1, 1_000, DIFF),
        (400, 3, 1_000, DIFF),
        (3_000, 3, 1_000, FULL),
        (10, 3, 1_000, DIFF),
        # To compare that many rows takes longer than to compute them.
        (400, 3, 1_000_000, FULL),
    ],
)
def test_what_others_read_is_compared(changed: int, readers: int, view_rows: int, mode: RefreshMode) -> None:
    past = [ran(INCREMENTAL, 9_000, changed), ran(FULL, 1_000)] * 3
    known = facts(changed, 10_000, *past, view_rows=view_rows)
    decision = decide(AUTO, replace(known, readers=readers))
    assert decision.mode is mode
    assert decision.is_full_despite_small_change is (changed <= 500)


def test_half_of_a_small_input_may_meet_half_of_a_large_one() -> None:
    small = InputFacts(name="nations", changed_rows=12, rows=25)
    large = InputFacts(name="orders", changed_rows=10, rows=10_000_000)
    assert decide(AUTO, Facts(changed=(large,), unchanged_rows=25)).mode is INCREMENTAL
    decision = decide(AUTO, Facts(changed=(small,), unchanged_rows=10_000_000))
    assert decision.mode is FULL
    both = estimate(Facts(changed=(small, large)))
    assert both.share == pytest.approx(0.480, abs=0.001)


@pytest.mark.parametrize(
    ("inputs", "steps", "rows", "mode"),
    [
        (1, 2, 10_000, INCREMENTAL),
        (2, 1, 10_000, INCREMENTAL),
        # Many steps are many small jobs, or one that reads little.
        (1, 8, 10_000, FULL),
        (8, 8, 10_000, FULL),
        (8, 8, 10_000_000, INCREMENTAL),
    ],
)
def test_many_changed_inputs_of_many_joins_cost_more_than_small_tables(
    inputs: int, steps: int, rows: int, mode: RefreshMode
) -> None:
    changed = tuple(InputFacts(name=f"t{n}", changed_rows=rows // 1000, rows=rows) for n in range(inputs))
    assert decide(AUTO, Facts(changed=changed, steps=steps)).mode is mode


@pytest.mark.parametrize(
    ("changed", "is_full_despite_small_change"), [(10, True), (400, True), (3_000, False), (None, False)]
)
def test_only_a_small_change_tells_that_the_next_one_will_not_be_followed(
    changed: int | None, is_full_despite_small_change: bool
) -> None:
    """After a large one a state is of use again."""
    slow = [ran(INCREMENTAL, 3_000, 10)] * 3
    decision = decide(AUTO, facts(changed, 10_000, *slow))
    assert (decision.mode, decision.is_full_despite_small_change) == (FULL, is_full_despite_small_change)


def test_the_reason_says_what_it_rests_on() -> None:
    decision = decide(AUTO, facts(30_000, 10_000_000, *[ran(FULL, 2_100)] * 3))
    assert decision.mode is INCREMENTAL
    assert str(decision.reason) == "0.3 % of orders changed; incremental 0.3 s expected, full 2.1 s measured"
    assert decision.estimate is not None
    assert decision.expected_ms == decision.estimate.incremental_ms
    assert "less than 0.01 % of orders" in str(decide(AUTO, facts(1, 10_000_000)).reason)
    assert str(decide(AUTO, facts(9, 10)).reason).startswith("90 % of orders changed; ")
    assert str(decide(AUTO, facts(None, 10)).reason).startswith("orders changed; ")


@pytest.mark.parametrize(("incremental_ms", "mode"), [(400, INCREMENTAL), (540, INCREMENTAL), (700, FULL)])
def test_measured_durations_decide_for_small_views(incremental_ms: int, mode: RefreshMode) -> None:
    past = [ran(INCREMENTAL, incremental_ms, 1)] * 3 + [ran(FULL, 500)] * 3
    decision = decide(AUTO, facts(1, 100, *past))
    assert decision.mode is mode
    assert decision.estimate is not None
    assert (decision.estimate.incremental_ms, decision.estimate.full_ms) == (incremental_ms, 500)
    assert (decision.estimate.incremental_runs, decision.estimate.full_runs) == (3, 3)


def test_one_cold_first_build_does_not_hide_that_computing_all_is_cheap() -> None:
    """The build took 4 s, most of it to start. The change is followed, until that proves to be slow."""
    build = ran(FULL, 4_000)
    assert decide(AUTO, facts(1, 100, ran(INCREMENTAL, 700, 1), build)).mode is INCREMENTAL
    slow = [ran(INCREMENTAL, 3_000, 1)] * 3
    assert decide(AUTO, facts(1, 100, *slow, build)).mode is FULL


def test_a_query_that_proved_to_be_dear_is_not_computed_again_to_see() -> None:
    dear = ran(FULL, 100_000)
    recent = [ran(INCREMENTAL, 1_000, 1)] * 90
    assert decide(AUTO, facts(1, 100, *recent, dear)).mode is INCREMENTAL


def test_the_way_not_taken_is_tried_again() -> None:
    """Slow three times in a cold JVM; meanwhile everything is faster."""
    slow = [ran(INCREMENTAL, 1_200, 1)] * 3
    computed = ran(FULL, 900)
    assert decide(AUTO, facts(1, 100, *[computed] * 5, *slow)).mode is FULL
    assert decide(AUTO, facts(1, 100, *[computed] * RECENT_RUNS, *slow)).mode is INCREMENTAL


def test_a_larger_change_than_those_measured_costs_more() -> None:
    past = [ran(INCREMENTAL, 700, 100)] * 3 + [ran(FULL, 5_000)] * 3
    assert decide(AUTO, facts(100, 10_000_000, *past)).mode is INCREMENTAL
    assert decide(AUTO, facts(9_000_000, 10_000_000, *past)).mode is FULL


def test_diff_of_the_whole_query_counts_as_full() -> None:
    whole = estimate(facts(1, 100, *[ran(DIFF, 900, node="query")] * 3))
    assert (whole.full_runs, whole.incremental_runs) == (3, 0)
    node = estimate(facts(1, 100, *[ran(DIFF, 900, node="window")] * 3))
    assert (node.full_runs, node.incremental_runs) == (0, 3)
    without_diff = estimate(facts(1, 100, ran(RefreshMode.APPEND, 1), ran(RefreshMode.NO_DATA, 1)))
    assert (without_diff.full_runs, without_diff.incremental_runs) == (0, 0)


@pytest.mark.parametrize("policy", [RefreshPolicy.INCREMENTAL, RefreshPolicy.INCREMENTAL_STRICT])
def test_a_policy_outweighs_the_costs(policy: RefreshPolicy) -> None:
    everything = facts(10_000_000, 10_000_000)
    assert decide(AUTO, everything).mode is FULL
    decision = decide(policy, everything)
    assert decision.mode is INCREMENTAL
    assert str(decision.reason).startswith(f"its refresh policy is {policy}; 100 % of orders changed")
    decision = decide(RefreshPolicy.FULL, facts(1, 10_000_000))
    assert (decision.mode, str(decision.reason)) == (FULL, "its refresh policy is full")


@pytest.mark.parametrize("policy", [AUTO, RefreshPolicy.INCREMENTAL, RefreshPolicy.INCREMENTAL_STRICT])
def test_obstacles_mean_comparing(policy: RefreshPolicy) -> None:
    part = InputFacts(name="orders", changed_rows=1, rows=1_000)
    decision = decide(
        policy, Facts(changed=(part,), obstacles=tuple(map(unclassified, ("recursive query", "rand()"))))
    )
    assert (decision.mode, str(decision.reason)) == (DIFF, "recursive query; rand()")
    assert decision.estimate is not None
    assert decision.expected_ms == decision.estimate.full_ms


counts = st.none() | st.integers(0, 10**12)
runs = st.builds(ran, st.sampled_from(RefreshMode), st.integers(0, 10**7), st.integers(0, 10**9))


@given(
    st.lists(st.builds(InputFacts, name=st.just("t"), changed_rows=counts, rows=counts), max_size=4),
    counts,
    counts,
    st.lists(runs, max_size=30),
)
def test_no_numbers_break_it(
    changed: list[InputFacts], unchanged: int | None, view: int | None, history: list[Refresh]
) -> None:
    decision = estimate(
        Facts(changed=tuple(changed), unchanged_rows=unchanged, view_rows=view, history=tuple(history))
    )
    assert decision.incremental_ms > 0
    assert decision.full_ms > 0
    assert decision.share is None or 0 <= decision.share <= 1


@given(st.integers(1, 10**8), st.integers(0, 10**8), st.lists(runs, max_size=30))
def test_more_change_never_makes_following_it_cheaper(
    rows: int, changed: int, history: list[Refresh]
) -> None:
    less = estimate(facts(changed // 2, rows, *history))
    more = estimate(facts(changed, rows, *history))
    assert less.incremental_ms <= more.incremental_ms

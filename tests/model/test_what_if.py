"""What refreshes would have taken otherwise, from histories whose costs are known."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tautochrone.model.checkpoint import NodeRefresh, Refresh, RefreshMode
from tautochrone.model.names import CheckpointNumber
from tautochrone.model.reason import Reason, ReasonCode, unclassified
from tautochrone.model.what_if import what_if

FIRST = Refresh(
    mode=RefreshMode.FULL,
    reason=unclassified("first build"),
    duration_ms=9_000,
    delta_rows=50,
    nodes=(NodeRefresh(node="query", mode=RefreshMode.FULL, reason=unclassified("first build")),),
)


def followed(rows: int, duration_ms: int) -> Refresh:
    mode = RefreshMode.INCREMENTAL
    return Refresh(mode=mode, reason=unclassified("changed"), duration_ms=duration_ms, delta_rows=rows)


def test_fixed_and_per_row_costs_are_told_apart() -> None:
    past = [followed(rows, 200 + 3 * rows) for rows in (10, 20, 40, 80)]
    estimated = what_if(past)
    assert estimated is not None
    assert estimated.took_ms == 4 * 200 + 3 * 150
    assert estimated.longer_ms == {2: 2 * 200 + 3 * 150, 10: 200 + 3 * 150}
    assert (estimated.followed_ms, estimated.full_ms) == (estimated.took_ms, None)
    assert (estimated.followed, estimated.computed) == (4, 0)


def test_one_slow_refresh_moves_little() -> None:
    past = [followed(10 * n, 200 + 30 * n) for n in range(1, 10)]
    slow = what_if([*past, followed(50, 60_000)])
    assert slow is not None
    assert slow.followed_ms is not None
    assert abs(slow.followed_ms - (10 * 200 + 3 * 500)) < 200


def test_what_computed_all_rows_still_does() -> None:
    estimated = what_if([FIRST, *(followed(5, 100) for _ in range(3))])
    assert estimated is not None
    assert estimated.longer_ms == {2: 9_000 + 100, 10: 9_000}
    assert (estimated.full_ms, estimated.followed_ms) == (4 * 9_000, 400)


def test_too_few_refreshes_estimate_nothing() -> None:
    assert what_if([]) is None
    assert what_if([Refresh(mode=RefreshMode.NO_DATA, reason=unclassified("no news"))]) is None
    applied = Reason.of(ReasonCode.BUILD_APPLIED, plan="3f2a91c0", checkpoint=CheckpointNumber(1))
    assert what_if([Refresh(mode=RefreshMode.FULL, reason=applied, duration_ms=3)]) is None
    two = what_if([followed(1, 10), followed(2, 20)])
    assert two is not None
    assert (two.followed_ms, two.longer_ms) == (None, {2: None, 10: None})


@given(st.lists(st.builds(followed, st.integers(0, 10**6), st.integers(0, 10**6)), min_size=3, max_size=30))
def test_a_longer_interval_never_costs_more(past: list[Refresh]) -> None:
    estimated = what_if(past)
    assert estimated is not None
    assert estimated.followed_ms is not None
    costs = [estimated.followed_ms, estimated.longer_ms[2], estimated.longer_ms[10]]
    assert all(cost is not None and cost >= 0 for cost in costs)
    assert costs == sorted(costs, key=lambda cost: -(cost or 0))

"""Aligned cuts: which versions are taken when the sources of roots are apart, alone and in the store."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tautochrone.meta import DatasetEntry, Store
from tautochrone.model.alignment import SourceTime, align
from tautochrone.model.names import Fence, TableName, Version
from tautochrone.testing.stores import Backing

FAST, SLOW, PLAIN, BOTH = (TableName("lake", ("db",), name) for name in ("fast", "slow", "plain", "both"))
HOUR = 3_600_000


def times(*hours: float) -> tuple[SourceTime, ...]:
    """Versions v0, v1, … with their source times."""
    return tuple(
        SourceTime(version=Version(f"v{at}"), at_ms=round(hour * HOUR)) for at, hour in enumerate(hours)
    )


def test_who_runs_ahead_waits_within_the_bound() -> None:
    told = {"fast": times(1, 2, 3, 4), "slow": times(1, 2)}
    newest = {"fast": "v3", "slow": "v1", "plain": "p9"}
    found = align(newest, told, {"fast": "v0", "slow": "v0"}, HOUR)
    assert found.roots == {"fast": "v2", "slow": "v1", "plain": "p9"}
    held = found.held_back["fast"]
    assert (held.ahead_ms, held.taken_ms, held.behind) == (2 * HOUR, 3 * HOUR, "slow")
    assert align(newest, told, {}, 2 * HOUR).roots == newest
    assert not align(newest, told, {}, 2 * HOUR).held_back


def test_nothing_goes_back_behind_the_last_cut() -> None:
    told = {"fast": times(5, 6, 7), "slow": times(1)}
    assert align({"fast": "v2", "slow": "v0"}, told, {"fast": "v1"}, 0).roots["fast"] == "v1"
    # What was told is older than the last cut.
    assert align({"fast": "v2", "slow": "v0"}, told, {"fast": "newer"}, 0).roots["fast"] == "newer"
    # It takes part, and nothing is known of it yet.
    assert align({"fast": "v2"}, {"fast": ()}, {"fast": "v1"}, 0).roots == {"fast": "v1"}
    assert align({"fast": "v2"}, {"fast": ()}, {}, 0).roots == {"fast": "v2"}


def test_nobody_runs_ahead_of_what_is_not_known() -> None:
    told = {"fast": times(5, 6, 7), "slow": ()}
    found = align({"fast": "v2", "slow": "v9"}, told, {"fast": "v1", "slow": "v3"}, HOUR)
    assert found.roots == {"fast": "v1", "slow": "v3"}
    assert (found.held_back["fast"].ahead_ms, found.held_back["fast"].behind) == (None, "slow")
    assert align({"fast": "v1", "slow": "v9"}, told, {"fast": "v1", "slow": "v3"}, HOUR).roots["fast"] == "v1"
    assert not align({"fast": "v2", "slow": "v9"}, {"fast": times(5, 6, 7)[2:], "slow": ()}, {}, 0).held_back


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from("abcd"), st.lists(st.integers(0, 50), min_size=1, max_size=5), min_size=1
    ),
    st.integers(0, 20),
)
def test_the_skew_of_a_cut_is_bounded(sources: dict[str, list[int]], bound: int) -> None:
    """Cut after cut while sources go on: none is wider than the bound, none goes back, and there is no newer
    one that would do."""
    told = {
        name: tuple(
            SourceTime(version=Version(f"v{at}"), at_ms=ms) for at, ms in enumerate([0, *sorted(came)])
        )
        for name, came in sources.items()
    }
    last = dict.fromkeys(told, "v0")
    for upto in range(max(map(len, told.values())) + 1):
        seen = {name: found[: upto + 1] for name, found in told.items()}
        newest = {name: found[-1].version for name, found in seen.items()}
        found = align(newest, seen, last, bound)
        taken = {
            name: next(one.at_ms for one in seen[name] if one.version == version)
            for name, version in found.roots.items()
        }
        assert max(taken.values()) - min(taken.values()) <= bound
        assert all(int(found.roots[name][1:]) >= int(last[name][1:]) for name in told)
        assert found.held_back.keys() == {name for name in told if found.roots[name] != newest[name]}
        best = max(
            (choice for choice in product(*seen.values()) if _fits(choice, last, bound)),
            key=lambda choice: sum(one.at_ms for one in choice),
        )
        assert sum(taken.values()) == sum(one.at_ms for one in best)
        last = dict(found.roots)


def _fits(choice: tuple[SourceTime, ...], last: dict[str, str], bound: int) -> bool:
    at = [one.at_ms for one in choice]
    back = any(
        int(one.version[1:]) < int(before[1:]) for one, before in zip(choice, last.values(), strict=True)
    )
    return not back and max(at) - min(at) <= bound


class Jobs:
    """`fast` and `slow` are brought in by jobs of their own; `views` joins them."""

    def __init__(self, store: Store) -> None:
        self.store, self.fences = store, dict[str, Fence]()
        for job, entry in {
            "fast": DatasetEntry(FAST, "streaming table", "f", is_root=True),
            "slow": DatasetEntry(SLOW, "streaming table", "s", is_root=True),
            "views": DatasetEntry(BOTH, "materialized view", "b", frozenset({FAST, SLOW})),
        }.items():
            store.jobs.start_run(f"p-{job}", job, [entry])
            self.fences[job] = store.jobs.take_over(job)

    def came(self, job: str, table: TableName, *hours: float) -> None:
        found = times(*hours)
        self.store.roots.report(job, self.fences[job], {table: found[-1].version})
        self.store.roots.report_source_times(job, self.fences[job], {table: found})

    def cut(self, at: int) -> dict[TableName, str]:
        """Open the next checkpoint from the views' job, and let it be given up again by all."""
        opened = self.store.checkpoints.open("views", self.fences["views"], {}, at, align_ms=HOUR)
        assert self.store.checkpoints.get(opened.number).roots == opened.roots
        return dict(opened.roots)


@pytest.fixture
def jobs(backing: Backing) -> Jobs:
    return Jobs(backing.open())


def test_roots_of_other_jobs_are_held_back_too(jobs: Jobs) -> None:
    jobs.came("fast", FAST, 1, 2, 3, 4)
    jobs.came("slow", SLOW, 1)
    assert jobs.store.roots.aligned_cut("views", {}, HOUR).held_back.keys() == {str(FAST)}
    assert jobs.cut(1) == {FAST: "v1", SLOW: "v0"}


def test_a_new_owner_tells_anew(jobs: Jobs) -> None:
    jobs.came("fast", FAST, 1, 2, 3, 4)
    jobs.came("slow", SLOW, 1)
    assert jobs.cut(1) == {FAST: "v1", SLOW: "v0"}
    jobs.fences["slow"] = jobs.store.jobs.take_over("slow")
    # Until the owner of the slow one has looked, both stay where they are, or the fast one would run away.
    assert jobs.store.roots.aligned_cut("views", {}, HOUR).roots[str(SLOW)] == "v0"
    jobs.came("slow", SLOW, 1, 2.5)
    found = jobs.store.roots.aligned_cut("views", {}, HOUR)
    assert found.roots == {str(FAST): "v2", str(SLOW): "v1"}


def test_who_takes_no_part_any_more_is_taken_as_it_is(jobs: Jobs) -> None:
    jobs.came("fast", FAST, 1, 2, 3, 4)
    jobs.came("slow", SLOW, 1)
    jobs.store.roots.report_source_times("slow", jobs.fences["slow"], {})
    assert jobs.store.roots.aligned_cut("views", {}, HOUR).roots == {str(FAST): "v3", str(SLOW): "v0"}

"""Aligned cuts: which versions are taken when the sources of roots are apart, alone and in the store."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.stores import Backing

from tautochrone.meta import DatasetEntry, Store
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.model.checkpoint import SourceTime, align
from tautochrone.model.names import Fence, TableName, Version

FAST, SLOW, PLAIN, BOTH = (TableName("lake", ("db",), name) for name in ("fast", "slow", "plain", "both"))
HOUR = 3_600_000


def times(*hours: float) -> tuple[SourceTime, ...]:
    """Versions v0, v1, … with their source times."""
    return tuple(
        SourceTime(version=Version(f"v{index}"), at_ms=round(hour * HOUR)) for index, hour in enumerate(hours)
    )


def test_root_ahead_of_the_bound_is_held_back() -> None:
    source_times = {"fast": times(1, 2, 3, 4), "slow": times(1, 2)}
    newest = {"fast": "v3", "slow": "v1", "plain": "p9"}
    aligned = align(newest, source_times, {"fast": "v0", "slow": "v0"}, HOUR)
    assert aligned.roots == {"fast": "v2", "slow": "v1", "plain": "p9"}
    held_back = aligned.held_back["fast"]
    assert (held_back.ahead_ms, held_back.behind) == (2 * HOUR, "slow")
    assert align(newest, source_times, {}, 2 * HOUR).roots == newest
    assert not align(newest, source_times, {}, 2 * HOUR).held_back


def test_complete_root_holds_nobody_back() -> None:
    """An idle database: all of its log was read at 5 o'clock, and its last transaction was at 1."""
    (idle,) = times(1)
    newest = {"busy": "v3", "idle": "v0"}
    for until, busy in ((None, "v1"), (3, "v2"), (0, "v1"), (5, "v3")):
        complete_until_ms = None if until is None else until * HOUR
        complete = SourceTime(version=idle.version, at_ms=idle.at_ms, complete_until_ms=complete_until_ms)
        aligned = align(newest, {"busy": times(1, 2, 4, 5), "idle": (complete,)}, {}, HOUR)
        assert aligned.roots == {"busy": busy, "idle": "v0"}
    late = {"busy": times(1, 2), "idle": (*times(1), SourceTime(version=Version("v1"), at_ms=9 * HOUR))}
    aligned = align({"busy": "v1", "idle": "v1"}, late, {}, HOUR)
    assert aligned.roots == {"busy": "v1", "idle": "v0"}


def test_no_root_moves_behind_the_last_cut() -> None:
    source_times = {"fast": times(5, 6, 7), "slow": times(1)}
    assert align({"fast": "v2", "slow": "v0"}, source_times, {"fast": "v1"}, 0).roots["fast"] == "v1"
    # What was told is older than the last cut.
    assert align({"fast": "v2", "slow": "v0"}, source_times, {"fast": "newer"}, 0).roots["fast"] == "newer"
    # It takes part, and nothing is known of it yet.
    assert align({"fast": "v2"}, {"fast": ()}, {"fast": "v1"}, 0).roots == {"fast": "v1"}
    assert align({"fast": "v2"}, {"fast": ()}, {}, 0).roots == {"fast": "v2"}


def test_unknown_source_time_holds_others_back() -> None:
    source_times = {"fast": times(5, 6, 7), "slow": ()}
    aligned = align({"fast": "v2", "slow": "v9"}, source_times, {"fast": "v1", "slow": "v3"}, HOUR)
    assert aligned.roots == {"fast": "v1", "slow": "v3"}
    assert (aligned.held_back["fast"].ahead_ms, aligned.held_back["fast"].behind) == (None, "slow")
    assert (
        align({"fast": "v1", "slow": "v9"}, source_times, {"fast": "v1", "slow": "v3"}, HOUR).roots["fast"]
        == "v1"
    )
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
    all_times = {
        name: tuple(
            SourceTime(version=Version(f"v{index}"), at_ms=ms)
            for index, ms in enumerate([0, *sorted(event_times)])
        )
        for name, event_times in sources.items()
    }
    last = dict.fromkeys(all_times, "v0")
    for upto in range(max(map(len, all_times.values())) + 1):
        seen = {name: known[: upto + 1] for name, known in all_times.items()}
        newest = {name: known[-1].version for name, known in seen.items()}
        aligned = align(newest, seen, last, bound)
        taken = {
            name: next(time.at_ms for time in seen[name] if time.version == version)
            for name, version in aligned.roots.items()
        }
        assert max(taken.values()) - min(taken.values()) <= bound
        assert all(int(aligned.roots[name][1:]) >= int(last[name][1:]) for name in all_times)
        assert aligned.held_back.keys() == {name for name in newest if aligned.roots[name] != newest[name]}
        best = max(
            (choice for choice in product(*seen.values()) if _fits(choice, last, bound)),
            key=lambda choice: sum(time.at_ms for time in choice),
        )
        assert sum(taken.values()) == sum(time.at_ms for time in best)
        last = dict(aligned.roots)


def _fits(choice: tuple[SourceTime, ...], last: dict[str, str], bound: int) -> bool:
    times_ms = [time.at_ms for time in choice]
    back = any(
        int(time.version[1:]) < int(before[1:]) for time, before in zip(choice, last.values(), strict=True)
    )
    return not back and max(times_ms) - min(times_ms) <= bound


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
        reported = times(*hours)
        self.store.roots.report(job, self.fences[job], {table: reported[-1].version})
        self.store.roots.report_source_times(job, self.fences[job], {table: reported})

    def cut(self, now_ms: int) -> dict[TableName, str]:
        """Open the next checkpoint from the views' job, and let it be given up again by all."""
        opened = self.store.checkpoints.open(
            "views", self.fences["views"], NewCheckpoint({}, now_ms, align_ms=HOUR)
        )
        assert self.store.checkpoints.get(opened.number).roots == opened.roots
        return dict(opened.roots)


@pytest.fixture
def jobs(backing: Backing) -> Jobs:
    return Jobs(backing.open())


def test_roots_of_other_jobs_are_held_back_too(jobs: Jobs) -> None:
    jobs.came("fast", FAST, 1, 2, 3, 4)
    jobs.came("slow", SLOW, 1)
    assert jobs.store.roots.aligned_cut("views", {}, HOUR).held_back.keys() == {str(FAST)}
    (slow,) = times(1)
    complete = SourceTime(version=slow.version, at_ms=slow.at_ms, complete_until_ms=2 * HOUR)
    jobs.store.roots.report_source_times("slow", jobs.fences["slow"], {SLOW: (complete,)})
    assert jobs.cut(1) == {FAST: "v2", SLOW: "v0"}


def test_new_owner_reports_source_times_again(jobs: Jobs) -> None:
    jobs.came("fast", FAST, 1, 2, 3, 4)
    jobs.came("slow", SLOW, 1)
    assert jobs.cut(1) == {FAST: "v1", SLOW: "v0"}
    jobs.fences["slow"] = jobs.store.jobs.take_over("slow")
    # Until the owner of the slow one has looked, both stay where they are, or the fast one would run away.
    assert jobs.store.roots.aligned_cut("views", {}, HOUR).roots[str(SLOW)] == "v0"
    jobs.came("slow", SLOW, 1, 2.5)
    aligned = jobs.store.roots.aligned_cut("views", {}, HOUR)
    assert aligned.roots == {str(FAST): "v2", str(SLOW): "v1"}


def test_unaligned_roots_are_cut_at_their_newest(jobs: Jobs) -> None:
    jobs.came("fast", FAST, 1, 2, 3, 4)
    jobs.came("slow", SLOW, 1)
    jobs.store.roots.report_source_times("slow", jobs.fences["slow"], {})
    assert jobs.store.roots.aligned_cut("views", {}, HOUR).roots == {str(FAST): "v3", str(SLOW): "v0"}

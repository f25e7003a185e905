"""Several jobs share their checkpoints: who does which, who waits for whom, what readers see."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.stores import Backing

from tautochrone.errors import CheckpointUnavailableError, MetaError
from tautochrone.meta import DatasetEntry
from tautochrone.meta.protocols.checkpoints import PATIENCE_MS, NewCheckpoint
from tautochrone.model.checkpoint import CheckpointState, Refresh, RefreshMode
from tautochrone.model.jobs import JOB_LEASE_MS, JobState, Part
from tautochrone.model.names import NOW, Fence, TableName, Version
from tautochrone.model.reason import unclassified

WORDS, COUNT, SUM, BOTH, ALONE, OUTSIDER = (
    TableName("lake", ("db",), name) for name in ("words", "count", "sum", "both", "alone", "dim")
)
FULL = Refresh(mode=RefreshMode.FULL, reason=unclassified("x"))
VIEW = "materialized view"
JOBS = {
    "in": [DatasetEntry(WORDS, "streaming table", "w", is_root=True)],
    "counts": [DatasetEntry(COUNT, VIEW, "c", frozenset({WORDS}))],
    "sums": [DatasetEntry(SUM, VIEW, "s", frozenset({WORDS, OUTSIDER}))],
    "joins": [DatasetEntry(BOTH, VIEW, "b", frozenset({COUNT, SUM}))],
}


def v(text: object) -> Version:
    return Version(str(text))


class World:
    def __init__(self, backing: Backing) -> None:
        self.now = 1_000_000
        self.store = backing.open(lambda: self.now)
        self.fences: dict[str, Fence] = {}

    def start(self, *jobs: str) -> None:
        for job in jobs:
            self.store.jobs.start_run(f"p-{job}", job, JOBS[job])
            self.fences[job] = self.store.jobs.take_over(job)

    def report(self, version: object) -> None:
        self.store.roots.report("in", self.fences["in"], {WORDS: v(version)})

    def open(self, job: str, **roots: str) -> int:
        return self.store.checkpoints.open(job, self.fences[job], NewCheckpoint({}, self.now)).number

    def do(self, job: str) -> int | None:
        """Do the job's target completely; the tables' versions tell the root's."""
        target = self.store.checkpoints.begin_next(job, self.fences[job])
        if target is None:
            return None
        for entry in JOBS[job]:
            if not entry.is_root:
                version = v(f"{entry.name.table}@{target.roots.get(WORDS)}")
                self.store.checkpoints.record_version(
                    job, self.fences[job], target.number, entry.name, version, FULL
                )
        self.store.checkpoints.publish(job, self.fences[job], target.number, self.now)
        return target.number

    def part(self, number: int, job: str) -> Part:
        return {p.job: p.part for p in self.store.checkpoints.progress(number)}[job]


@pytest.fixture
def world(backing: Backing) -> Iterator[World]:
    world = World(backing)
    world.start(*JOBS)
    world.report(1)
    yield world
    world.store.close()


def test_checkpoint_is_published_when_all_jobs_did_their_part(world: World) -> None:
    store = world.store
    first = world.open("in")
    assert [world.do(job) for job in JOBS] == [first] * 4
    world.report(2)
    n = world.open("in")
    assert [world.do(job) for job in ("in", "counts")] == [n, n]
    assert store.checkpoints.get(n).state is CheckpointState.OPEN
    waiting = store.reads.resolve(tables=[COUNT])
    assert waiting.versions == {COUNT: v("count@1")}
    assert waiting.behind[SUM] == "its job sums is at work on checkpoint 2"
    # Those that are complete can be read together by who asks for only them.
    assert store.reads.resolve(tables=[COUNT, WORDS], only_named=True).versions == {
        COUNT: v("count@2"),
        WORDS: v(2),
    }
    assert [world.do(job) for job in ("sums", "joins")] == [n, n]
    assert store.checkpoints.get(n).state is CheckpointState.PUBLISHED
    assert store.reads.resolve(tables=[BOTH]).versions == {BOTH: v("both@2")}
    assert store.reads.resolve(tables=[BOTH]).behind == {}


def test_connected_jobs_share_one_open_checkpoint(world: World) -> None:
    n = world.open("in")
    assert world.do("in") == n
    with pytest.raises(MetaError, match="CHECKPOINT_HELD_BACK"):
        world.open("in")
    assert {h.job for h in world.store.checkpoints.busy_jobs("in")} == {"counts", "sums", "joins"}
    for job in ("counts", "sums", "joins"):
        assert world.do(job) == n
    assert world.store.checkpoints.busy_jobs("in") == ()
    assert world.open("joins") == n + 1


def test_who_has_no_news_has_nothing_to_do(world: World) -> None:
    store, fence = world.store, world.fences
    first = world.open("in")
    for job in JOBS:
        world.do(job)
    store.roots.observe_external_table("sums", fence["sums"], OUTSIDER, None, v("d1"))
    second = world.open("sums")
    # Only what reads the external table, and what reads that, has work.
    assert {p.job: p.part for p in store.checkpoints.progress(second)} == {
        "in": Part.DONE,
        "counts": Part.DONE,
        "sums": Part.PENDING,
        "joins": Part.PENDING,
    }
    assert [world.do(job) for job in ("counts", "sums", "joins")] == [None, second, second]
    assert store.checkpoints.versions_at(second)[COUNT] == "count@1"
    assert store.checkpoints.versions_at(second)[OUTSIDER] == "d1"
    assert OUTSIDER not in store.checkpoints.versions_at(first)


def test_clock_dependent_views_are_never_skipped(world: World) -> None:
    world.store.jobs.start_run("p-sums", "sums", [DatasetEntry(SUM, VIEW, "s", frozenset({WORDS, NOW}))])
    assert world.store.roots.shared_clocks("counts") == {NOW}
    for round_ in (1, 2):
        fence = world.fences["counts"]
        n = world.store.checkpoints.open("counts", fence, NewCheckpoint({NOW: v(round_)}, 0)).number
        assert world.part(n, "sums") is Part.PENDING
        for job in JOBS:
            world.do(job)
        assert world.store.checkpoints.versions_at(n)[NOW] == v(round_)


def test_dead_job_is_skipped_and_returns_at_the_newest(world: World) -> None:
    store = world.store
    full = world.open("in")
    for job in JOBS:
        world.do(job)
    world.now += JOB_LEASE_MS + 1
    alive = ("in", "counts", "joins")
    numbers = []
    for version in (2, 3, 4):
        for job in alive:
            store.jobs.heartbeat(job, world.fences[job])
        world.report(version)
        numbers.append(world.open("in"))
        assert [world.do("in"), world.do("counts")] == [numbers[-1]] * 2
        # What reads a dead job's table cannot go on; it is at work, and holds back until patience ends.
        world.now += PATIENCE_MS + 1
    assert store.reads.resolve(tables=[COUNT]).checkpoint == full
    assert "job sums" in store.reads.resolve(tables=[COUNT]).behind[SUM]
    assert store.reads.resolve(tables=[COUNT, WORDS], only_named=True).checkpoint == numbers[-1]
    assert world.part(numbers[0], "sums") is Part.SKIPPED
    world.start("sums")
    assert world.do("sums") == numbers[-1]
    assert world.do("joins") == numbers[-1]
    assert store.reads.resolve(tables=[COUNT]).checkpoint == numbers[-1]
    assert store.reads.resolve(tables=[BOTH]).versions == {BOTH: v("both@4")}
    assert store.checkpoints.get(numbers[0]).state is CheckpointState.PARTIAL
    with pytest.raises(CheckpointUnavailableError, match=r"sums skipped checkpoint"):
        store.reads.resolve(tables=[SUM], checkpoint=numbers[0])


def test_slow_jobs_meet_at_the_rendezvous(world: World) -> None:
    """Two jobs that are always late must not pass each other for ever."""
    store = world.store
    first = world.open("in")
    slow, slower = "counts", "sums"
    store.checkpoints.begin_next(slow, world.fences[slow])
    store.checkpoints.begin_next(slower, world.fences[slower])
    opened = [first]
    for version in range(2, 8):
        world.do("in")
        world.now += PATIENCE_MS + 1
        for job in JOBS:
            store.jobs.heartbeat(job, world.fences[job])
        world.report(version)
        opened.append(world.open("in"))
        if version == 3:
            assert world.do(slow) == first
            assert store.checkpoints.begin_next(slow, world.fences[slow]) is not None
        if version == 5:
            assert world.do(slower) == first
    world.do("joins")
    assert store.reads.resolve(tables=[COUNT]).checkpoint == first
    done = {job: {world.do(job) for _ in range(4)} for job in (slow, slower, "joins", "in")}
    assert opened[-1] in done[slow] & done[slower] & done["joins"]
    assert store.reads.resolve(tables=[BOTH]).versions == {BOTH: v("both@7")}


def test_abandoned_checkpoint_leaves_later_ones_complete(world: World) -> None:
    """Both were cut with the same version of the root: it is one interval of checkpoints."""
    store, reading_jobs = world.store, ("counts", "sums", "joins")
    first = world.open("in")
    for job in reading_jobs:
        store.checkpoints.begin_next(job, world.fences[job])
    store.checkpoints.abort("in", world.fences["in"], first)
    world.now += PATIENCE_MS + 1
    for job in reading_jobs:
        store.jobs.heartbeat(job, world.fences[job])
    second = world.open("in")
    for job in reading_jobs:
        target = store.checkpoints.begin_next(job, world.fences[job])
        assert target is not None
        assert target.number == second
    assert store.checkpoints.get(first).state is CheckpointState.ABORTED
    assert store.checkpoints.versions_at(first) == {}
    assert store.checkpoints.get(second).roots == {WORDS: "1"}
    assert [world.do(job) for job in ("in", *reading_jobs)] == [second] * 4
    assert store.checkpoints.get(second).state is CheckpointState.PUBLISHED


def test_unrelated_jobs_do_not_wait_for_each_other(world: World) -> None:
    store = world.store
    JOBS["alone"] = [DatasetEntry(ALONE, VIEW, "a", frozenset({TableName("lake", ("db",), "other")}))]
    try:
        world.start("alone")
        world.open("in")
        n = world.open("alone")
        assert world.do("alone") == n
        assert [p.job for p in store.checkpoints.progress(n)] == ["alone"]
        assert store.reads.resolve(tables=[ALONE]).checkpoint == n
        for job in ("in", "counts", "sums", "joins"):
            world.do(job)
        later = store.checkpoints.open("alone", world.fences["alone"], NewCheckpoint({}, 0)).number
        world.do("alone")
        # At a checkpoint of others a table is what it was at its newest one before.
        assert store.reads.resolve(tables=[BOTH], checkpoint=later).versions == {BOTH: v("both@1")}
    finally:
        del JOBS["alone"]


def test_an_older_look_does_not_turn_a_table_back(world: World) -> None:
    store, fence = world.store, world.fences["sums"]
    assert store.roots.observe_external_table("sums", fence, OUTSIDER, None, v(4)) == "4"
    assert store.roots.observe_external_table("sums", fence, OUTSIDER, v(4), v(5)) == "5"
    assert store.roots.observe_external_table("sums", fence, OUTSIDER, v(3), v(4)) == "5"
    assert store.roots.external_versions() == {OUTSIDER: v(5)}


def test_tables_move_to_another_job_with_their_checkpoints(world: World) -> None:
    store = world.store
    n = world.open("in")
    for job in JOBS:
        world.do(job)
    store.jobs.start_run("p-counts", "counts", [], fence=world.fences["counts"])
    store.jobs.start_run("p-heir", "heir", JOBS["counts"])
    fence = store.jobs.take_over("heir")
    assert store.checkpoints.versions_at(n)[COUNT] == "count@1"
    assert {s.dataset: s.checkpoint for s in store.datasets.statuses()}[COUNT] == n
    world.fences["heir"] = fence
    JOBS["heir"] = JOBS["counts"]
    try:
        world.report(2)
        second = world.open("in")
        for job in ("in", "heir", "sums", "joins"):
            assert world.do(job) == second
    finally:
        del JOBS["heir"]
    assert store.reads.resolve(tables=[COUNT]).versions == {COUNT: v("count@2")}


def test_job_states_tell_who_runs_and_what_is_next(world: World) -> None:
    n = world.open("in")
    states = {s.name: s for s in world.store.jobs.states()}
    assert states["counts"].alive
    assert states["counts"].target == n
    assert states["counts"].newest_done is None
    world.store.jobs.end_run("counts", world.fences["counts"])
    state = {s.name: s for s in world.store.jobs.states()}["counts"]
    assert (state.state, state.alive) == (JobState.ENDED, False)
    assert "counts" not in {h.job for h in world.store.checkpoints.busy_jobs("in")}

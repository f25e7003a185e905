"""Invariants in the store: who must look at a checkpoint, what readers see of a broken one, and hear."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.stores import Backing

from tautochrone.meta import DatasetEntry, Store
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.model.checkpoint import (
    BrokenInvariant,
    CheckpointState,
    Consistency,
    InvariantEntry,
    Refresh,
    RefreshMode,
)
from tautochrone.model.jobs import Part
from tautochrone.model.names import Fence, TableName, Version
from tautochrone.model.reason import unclassified

WORDS, COUNT, OTHERS, SUM, FAR = (
    TableName("lake", ("db",), name) for name in ("words", "count", "others", "sum", "far")
)
FULL = Refresh(mode=RefreshMode.FULL, reason=unclassified("x"))
BROKEN = BrokenInvariant(
    name="same", location="invariants/same.sql:1", rows=2, at_least=True, sample=('a="1"', 'a="2"')
)
JOBS = {
    "counts": [
        DatasetEntry(WORDS, "streaming table", "w", is_root=True),
        DatasetEntry(COUNT, "materialized view", "c", frozenset({WORDS})),
    ],
    "sums": [
        DatasetEntry(OTHERS, "streaming table", "o", is_root=True),
        DatasetEntry(SUM, "materialized view", "s", frozenset({OTHERS})),
    ],
    "far": [DatasetEntry(FAR, "streaming table", "f", is_root=True)],
}
CHECKS = {"sums": [InvariantEntry(name="same", location="x", definition="d", tables=frozenset({COUNT, SUM}))]}


class World:
    """Two jobs without a common root, of which one checks a table of the other; and one that is alone."""

    def __init__(self, backing: Backing) -> None:
        self.now = 1_000_000
        self.store: Store = backing.open(lambda: self.now)
        self.fences: dict[str, Fence] = {}
        for job in JOBS:
            self.start(job, CHECKS.get(job, []))
        self.report(1)

    def start(self, job: str, checks: list[InvariantEntry]) -> None:
        self.store.jobs.start_run("shop", job, JOBS[job], invariants=checks)
        self.fences[job] = self.store.jobs.take_over(job)

    def report(self, version: int) -> None:
        for job, table in (("counts", WORDS), ("sums", OTHERS), ("far", FAR)):
            self.store.roots.report(job, self.fences[job], {table: Version(str(version))})

    def open(self, job: str) -> int:
        self.now += 1
        return int(self.store.checkpoints.open(job, self.fences[job], NewCheckpoint({}, self.now)).number)

    def do(self, job: str, broken: tuple[BrokenInvariant, ...] = ()) -> None:
        store, fence = self.store, self.fences[job]
        target = store.checkpoints.begin_next(job, fence)
        assert target is not None
        table, root = {"counts": (COUNT, WORDS), "sums": (SUM, OTHERS)}[job]
        version = Version(f"{table.table}@{target.roots[root]}")
        store.checkpoints.record_version(job, fence, target.number, table, version, FULL)
        if broken:
            # An answer may get lost.
            for _ in range(2):
                store.checkpoints.abort(job, fence, target.number, broken=broken)
        else:
            passed = {"same": "d"} if job == "sums" else {}
            store.checkpoints.publish(job, fence, target.number, self.now, passed_invariants=passed)

    def weak(self) -> dict[str, str]:
        versions = self.store.reads.resolve(Consistency.WEAK, lease_ms=0).versions
        return {name.table: str(version) for name, version in versions.items()}


@pytest.fixture
def world(backing: Backing) -> Iterator[World]:
    new_world = World(backing)
    yield new_world
    new_world.store.close()


def test_a_broken_invariant_over_tables_of_two_jobs(world: World) -> None:
    store = world.store
    # Nothing was checked: nothing is shown of what the invariant covers.
    assert world.weak() == {"words": "1", "far": "1"}
    first = world.open("counts")
    # They are joined by the invariant alone.
    assert {p.job: p.part for p in store.checkpoints.progress(first)} == {
        "counts": Part.PENDING,
        "sums": Part.PENDING,
    }
    world.do("counts")
    assert "count" not in world.weak()
    world.do("sums")
    last_check = store.invariants.last_check("sums")
    assert last_check is not None
    assert (last_check.checkpoint, last_check.definitions) == (first, {"same": "d"})

    world.report(2)
    second = world.open("counts")
    world.do("counts")
    world.do("sums", (BROKEN,))
    assert store.checkpoints.get(second).state is CheckpointState.PARTIAL
    assert store.checkpoints.get(second).broken == (BROKEN,)
    assert store.invariants.last_check("sums") == last_check
    assert world.weak() == {"words": "2", "far": "2", "count": "count@1", "others": "1", "sum": "sum@1"}
    for consistency in Consistency:
        resolved = store.reads.resolve(consistency, [COUNT], lease_ms=0)
        assert resolved.versions == {COUNT: Version("count@1")}
        assert "at least 2 rows" in resolved.behind[COUNT]
        assert "a=" not in resolved.behind[COUNT]
    status = {status.dataset: (status.error, status.lag_ms) for status in store.datasets.statuses()}
    late = store.checkpoints.get(second).cut_at_ms - store.checkpoints.get(first).cut_at_ms
    assert late > 0
    assert status[SUM] == status[OTHERS] == status[COUNT] == (BROKEN.error, late)
    assert status[FAR] == (None, None)

    # Others go on; the job looks again at what they open, and what holds is seen and blames nobody.
    world.report(3)
    third = world.open("counts")
    world.do("counts")
    world.do("sums")
    assert store.checkpoints.get(third).state is CheckpointState.PUBLISHED
    resolved = store.reads.resolve(tables=[COUNT, SUM], lease_ms=0)
    assert resolved.versions == {COUNT: Version("count@3"), SUM: Version("sum@3")}
    assert resolved.behind == {}
    assert all(status.error is None and not status.lag_ms for status in store.datasets.statuses())
    assert world.weak() == {"words": "3", "far": "3", "count": "count@3", "others": "3", "sum": "sum@3"}

    # Only the other job's table is new: the invariant is looked at all the same.
    store.roots.report("counts", world.fences["counts"], {WORDS: Version("4")})
    fourth = world.open("counts")
    assert {p.job: p.part for p in store.checkpoints.progress(fourth)}["sums"] is Part.PENDING

    # Without invariants nothing holds back what is newest.
    world.start("sums", [])
    world.do("counts")
    assert world.weak()["count"] == "count@4"


def test_a_job_that_only_ingests_has_to_look_too(world: World) -> None:
    store = world.store
    entry = InvariantEntry(name="one", location="x", definition="d", tables=frozenset({FAR, COUNT}))
    world.start("far", [entry])
    world.start("sums", [])
    assert store.invariants.registered("far") == (entry,)
    number = world.open("counts")
    assert {p.job: p.part for p in store.checkpoints.progress(number)} == {
        "counts": Part.PENDING,
        "far": Part.PENDING,
    }
    store.registrations.unregister("far", world.fences["far"])
    assert store.invariants.registered() == ()

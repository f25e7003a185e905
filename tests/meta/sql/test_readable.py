"""Whether readers see what a job has done: which job keeps them from it, and where status says it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.meta.sql.test_invariants import BROKEN
from tests.meta.sql.test_invariants import World as Checked
from tests.meta.sql.test_shared_checkpoints import BOTH, COUNT, JOBS, SUM, WORDS, World
from tests.support.stores import Backing

from tautochrone.model.checkpoint import CheckpointState
from tautochrone.model.jobs import JOB_LEASE_MS, BlockerKind
from tautochrone.model.names import TableName


@pytest.fixture
def world(backing: Backing) -> Iterator[World]:
    new_world = World(backing)
    new_world.start(*JOBS)
    new_world.report(1)
    yield new_world
    new_world.store.close()


def whole(world: World) -> int:
    number = world.open("in")
    assert [world.do(job) for job in JOBS] == [number] * 4
    return number


def seen(world: World | Checked) -> dict[TableName, tuple[int | None, int | None, bool]]:
    """By table what readers see, how far its job is, and whether that of readers lags."""
    return {
        status.dataset: (status.readable, status.checkpoint, bool(status.readable_lag_ms))
        for status in world.store.datasets.statuses()
    }


def test_parts_that_are_missing(world: World) -> None:
    first = whole(world)
    assert [world.store.reads.publication_blockers(job) for job in JOBS] == [()] * 4
    assert set(seen(world).values()) == {(first, first, False)}
    world.report(2)
    world.now += 10
    second = world.open("in")
    for job in ("in", "counts"):
        world.do(job)
    world.now += 10
    blockers = {blocker.job: blocker for blocker in world.store.reads.publication_blockers("counts")}
    assert blockers.keys() == {"sums", "joins"}
    assert {blocker.checkpoint for blocker in blockers.values()} == {second}
    assert {blocker.kind for blocker in blockers.values()} == {BlockerKind.PENDING}
    # Readers stay with all of them where all are, whatever some have done.
    assert seen(world) == {
        WORDS: (first, second, True),
        COUNT: (first, second, True),
        SUM: (first, first, True),
        BOTH: (first, first, True),
    }
    world.store.jobs.end_run("sums", world.fences["sums"])
    world.now += JOB_LEASE_MS + 1
    assert {blocker.kind for blocker in world.store.reads.publication_blockers("counts")} == {
        BlockerKind.AWAY
    }
    for job in ("sums", "joins"):
        world.do(job)
    assert world.store.reads.publication_blockers("counts") == ()
    # The job `sums` said that it ended, the others are silent: nobody knows what came since.
    assert seen(world) == dict.fromkeys((WORDS, COUNT, SUM, BOTH), (second, second, True))


def test_new_job_has_no_missing_parts(world: World) -> None:
    assert world.store.reads.publication_blockers("counts") == ()
    assert world.store.reads.publication_blockers("nobody") == ()
    assert set(seen(world).values()) == {(None, None, False)}


def test_root_not_observed_by_its_live_job_is_missing(world: World) -> None:
    store, fence = world.store, world.fences["in"]
    number = whole(world)
    store.jobs.heartbeat(
        "in", fence, observed_ms=world.now, observations={WORDS: world.now}, checkpoint=number
    )
    begun = world.now
    world.now += 5
    (blocker,) = store.reads.publication_blockers("counts", begun)
    assert (blocker.job, blocker.kind, blocker.checkpoint) == ("in", BlockerKind.SOURCE, number)
    assert WORDS.table in str(blocker.reason)
    assert store.reads.publication_blockers("in", begun) == (), "its own source is what it did"
    store.jobs.heartbeat(
        "in", fence, observed_ms=world.now, observations={WORDS: world.now}, checkpoint=number
    )
    assert store.reads.publication_blockers("counts", begun) == ()
    # Nobody brings in what is there while the job is away.
    store.jobs.end_run("in", fence)
    assert store.reads.publication_blockers("counts", world.now) == ()


def test_an_invariant_holds_back_what_others_did(backing: Backing) -> None:
    world = Checked(backing)
    first = world.open("counts")
    for job in ("counts", "sums"):
        world.do(job)
    world.report(2)
    second = world.open("counts")
    world.do("counts")
    world.do("sums", (BROKEN,))
    assert world.store.checkpoints.get(second).state is CheckpointState.PARTIAL
    (blocker,) = world.store.reads.publication_blockers("counts")
    assert (blocker.job, blocker.kind, blocker.invariants) == ("sums", BlockerKind.INVARIANT, ("same",))
    assert BROKEN.error in str(blocker.reason)
    stands = {name.table: where for name, where in seen(world).items()}
    assert stands["count"] == (first, second, True)
    assert stands["sum"] == (first, first, True)
    world.store.close()

"""A dataset that moves from one job to another: what published checkpoints show stays as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.stores import Backing

from tautochrone.errors import CheckpointUnavailableError, MetaError
from tautochrone.meta import DatasetEntry
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.model.checkpoint import Refresh, RefreshMode
from tautochrone.model.names import Fence, TableName, Version
from tautochrone.model.reason import unclassified

NAMES = ("words", "x", "y", "numbers", "total")
WORDS, X, Y, NUMBERS, TOTAL = (TableName("lake", ("db",), name) for name in NAMES)
FULL = Refresh(mode=RefreshMode.FULL, reason=unclassified("x"))
STREAM, VIEW = "streaming table", "materialized view"
MOVED = DatasetEntry(X, VIEW, "x", frozenset({WORDS}))
A = [DatasetEntry(WORDS, STREAM, "w", is_root=True), DatasetEntry(Y, VIEW, "y", frozenset({WORDS}))]
B = [DatasetEntry(NUMBERS, STREAM, "n", is_root=True), DatasetEntry(TOTAL, VIEW, "t", frozenset({NUMBERS}))]


class World:
    def __init__(self, backing: Backing) -> None:
        self.store = backing.open(lambda: 1_000_000)
        self.jobs = {"a": [*A, MOVED], "b": B}
        self.fences: dict[str, Fence] = {}

    def start(self, job: str) -> None:
        self.store.jobs.start_run("p", job, self.jobs[job], fence=self.fences.get(job))
        self.fences[job] = self.store.jobs.take_over(job)

    def move(self, old: str, new: str) -> None:
        self.jobs[old] = [entry for entry in self.jobs[old] if entry.name != X]
        self.jobs[new] = [*self.jobs[new], MOVED]
        self.start(old)
        self.start(new)

    def checkpoint(self, *jobs: str, failing: TableName | None = None) -> int:
        """A checkpoint of these jobs, with new versions of their tables."""
        store, tag = self.store, self.store.checkpoints.highest_used_number() + 1
        for job in jobs:
            roots = [each.name for each in self.jobs[job] if each.is_root]
            store.roots.report(
                job, self.fences[job], {name: Version(f"{name.table}-{tag}") for name in roots}
            )
        opener = self.fences[jobs[0]]
        number = store.checkpoints.open(jobs[0], opener, NewCheckpoint({}, 1_000_000)).number
        for job in jobs:
            fence = self.fences[job]
            for entry in self.jobs[job]:
                if entry.name == failing:
                    store.checkpoints.record_failure(job, fence, number, entry.name, unclassified("broken"))
                elif not entry.is_root:
                    version = Version(f"{entry.name.table}-{number}")
                    store.checkpoints.record_version(job, fence, number, entry.name, version, FULL)
            store.checkpoints.publish(job, fence, number, 1_000_000)
        return number

    def history(self, last: int) -> dict[int, dict[TableName, Version]]:
        return {number: self.store.checkpoints.versions_at(number) for number in range(1, last + 1)}

    def complete(self, number: int) -> object:
        return self.store.revisions.last_complete(number, [X, Y, TOTAL])

    def x_at(self, number: int) -> Version | None:
        return self.store.checkpoints.versions_at(number).get(X)


@pytest.fixture
def world(backing: Backing) -> Iterator[World]:
    world = World(backing)
    world.start("a")
    world.start("b")
    yield world
    world.store.close()


def _published(world: World, *, heir_has_parts: bool) -> int:
    for job in ("a", "b", "a", "a") if heir_has_parts else ("a", "a", "a"):
        last = world.checkpoint(job)
    return last


@pytest.mark.parametrize("heir_has_parts", [True, False])
def test_published_checkpoints_keep_the_versions_of_a_moved_dataset(
    world: World, heir_has_parts: bool
) -> None:
    last = _published(world, heir_has_parts=heir_has_parts)
    before, complete = world.history(last), [world.complete(number) for number in range(1, last + 1)]
    world.move("a", "b")
    assert world.history(last) == before
    assert [world.complete(number) for number in range(1, last + 1)] == complete
    assert world.store.reads.resolve(tables=[X, Y], checkpoint=1).versions == {X: "x-1", Y: "y-1"}
    assert world.store.reads.resolve(tables=[X, Y]).versions == {X: f"x-{last}", Y: f"y-{last}"}
    # The heir has to write it, though nothing new came.
    done = world.store.checkpoints.last_done("b")
    assert done is None or X not in done.versions
    number = world.checkpoint("b", "a")
    assert world.x_at(number) == f"x-{number}"
    assert world.history(last) == before
    # Back again.
    world.move("b", "a")
    following = world.checkpoint("a")
    assert [world.x_at(each) for each in (1, last, number, following)] == [
        "x-1",
        f"x-{last}",
        f"x-{number}",
        f"x-{following}",
    ]
    assert world.history(last) == before


def test_old_version_is_not_shown_where_the_heir_failed(world: World) -> None:
    world.jobs["a"] = [MOVED]
    world.start("a")
    last = world.checkpoint("a")
    world.move("a", "b")
    failed = world.checkpoint("b", failing=X)
    assert [world.x_at(last), world.x_at(failed)] == [f"x-{last}", None]
    done = world.checkpoint("b")
    again = world.checkpoint("b", failing=X)
    assert [world.x_at(number) for number in (last, failed, done, again)] == [
        f"x-{last}",
        None,
        f"x-{done}",
        None,
    ]


def test_newest_checkpoint_stays_until_the_heir_wrote(world: World) -> None:
    _published(world, heir_has_parts=True)
    world.move("a", "b")
    for number in (1, 3):
        world.store.checkpoints.expire(number)
    newest = world.store.reads.resolve(tables=[X], lease_ms=0).checkpoint
    with pytest.raises(MetaError, match="CHECKPOINT_NEEDED"):
        world.store.checkpoints.expire(newest or 0)
    world.checkpoint("b", "a")
    world.store.checkpoints.expire(newest or 0)
    with pytest.raises(CheckpointUnavailableError):
        world.store.reads.resolve(tables=[X], checkpoint=newest)
    assert Version(f"x-{newest}") not in world.store.pins.retained_versions().get(X, set())

"""Which checkpoints are after a token: one that misses a write is never taken for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.stores import Backing

from tautochrone.errors import CheckpointUnavailableError, QueryError
from tautochrone.meta import DatasetEntry
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.model.checkpoint import Consistency, Refresh, RefreshMode
from tautochrone.model.names import NOW, Fence, TableName, Version
from tautochrone.model.reason import unclassified

WORDS, NAMES, VIEW, APART, EXTERNAL = (
    TableName("lake", ("db",), name) for name in ("words", "names", "view", "apart", "dim")
)
FULL = Refresh(mode=RefreshMode.FULL, reason=unclassified("x"))
JOBS = {
    "in": [DatasetEntry(WORDS, "streaming table", "w", is_root=True)],
    "too": [DatasetEntry(NAMES, "streaming table", "n", is_root=True)],
    "views": [
        DatasetEntry(VIEW, "materialized view", "v", frozenset({WORDS, NAMES, EXTERNAL, NOW})),
        DatasetEntry(APART, "materialized view", "a", frozenset({NAMES})),
    ],
}


class World:
    """Two jobs ingest, a third one has views over both and over an external table."""

    def __init__(self, backing: Backing) -> None:
        self.now = 1_000
        self.store = backing.open(lambda: self.now)
        self.fences: dict[str, Fence] = {}
        self.why = ""
        for job in JOBS:
            self.store.jobs.start_run(f"p-{job}", job, JOBS[job])
            self.take_over(job)
        self.report("in", WORDS, 1)
        self.report("too", NAMES, 1)

    def take_over(self, job: str) -> None:
        ingests = [entry.name for entry in JOBS[job] if entry.is_root]
        self.fences[job] = self.store.jobs.take_over(job, ingests=ingests)

    def report(self, job: str, table: TableName, version: int) -> None:
        self.store.roots.report(job, self.fences[job], {table: Version(str(version))})

    def look(self, job: str, checkpoint: int | None = None, **observed_ms: int) -> None:
        observations = {TableName("lake", ("db",), name): ms for name, ms in observed_ms.items()}
        self.store.jobs.heartbeat(job, self.fences[job], observations=observations, checkpoint=checkpoint)

    def publish(self, external: int = 1, **observations: int) -> int:
        """The views' job takes a cut, after its look at the external table, and everybody does it."""
        store, fence = self.store, self.fences["views"]
        roots = {EXTERNAL: Version(str(external))}
        by_table = {TableName("lake", ("db",), name): ms for name, ms in observations.items()}
        number = store.checkpoints.open(
            "views", fence, NewCheckpoint(roots, self.now, observations=by_table)
        ).number
        for table in (VIEW, APART):
            store.checkpoints.record_version(
                "views", fence, number, table, Version(f"{table.table}@{number}"), FULL
            )
        store.checkpoints.publish("views", fence, number, self.now)
        return number

    def sees(self, after_ms: int, *tables: TableName, checkpoint: int | None = None) -> bool:
        """`why` tells what is missing."""
        try:
            self.store.reads.resolve(
                tables=tables or None, checkpoint=checkpoint, lease_ms=0, after_ms=after_ms
            )
        except CheckpointUnavailableError as error:
            if error.error_class != "READ_NOT_YET" or not error.retryable:
                raise
            self.why = error.message
            return False
        return True


@pytest.fixture
def world(backing: Backing) -> Iterator[World]:
    world = World(backing)
    yield world
    world.store.close()


def test_checkpoint_satisfies_token_when_all_roots_were_observed_since(world: World) -> None:
    world.look("in", words=100)
    world.look("too", names=200)
    world.publish(dim=150)
    assert world.sees(99, VIEW)
    # A look in the token's own millisecond may have come before the write.
    assert not world.sees(100, VIEW)
    assert "written to lake.db.words before the token: job in has not looked" in world.why
    assert world.sees(199, APART)
    assert not world.sees(200, APART)
    assert not world.sees(100)
    world.store.jobs.end_run("in", world.fences["in"])
    assert not world.sees(100, VIEW)
    assert "job in isn't running" in world.why


def test_later_observation_does_not_count_for_older_cut(world: World) -> None:
    world.look("in", words=100)
    world.look("too", names=100)
    first = world.publish(dim=100)
    # A write at 150: its version is reported and looked for, but no checkpoint has it.
    world.report("in", WORDS, 2)
    world.look("in", words=200)
    world.look("too", first, names=200)
    assert not world.sees(150, WORDS)
    second = world.publish(dim=200)
    assert world.sees(150, VIEW)
    assert not world.sees(150, VIEW, checkpoint=first)
    assert world.sees(150, VIEW, checkpoint=second)


def test_observations_without_news_advance_newest_checkpoint(world: World) -> None:
    for job, table in (("in", "words"), ("too", "names")):
        world.look(job, **{table: 100})
    number = world.publish(dim=100)
    for job, table in (("in", "words"), ("too", "names"), ("views", "dim")):
        assert not world.sees(100, VIEW)
        world.look(job, number, **{table: 200})
    assert world.sees(199, VIEW)
    # What is told late takes nothing back.
    world.look("in", number, words=150)
    assert world.sees(199, VIEW)


def test_unrelated_jobs_do_not_reset_observations(world: World) -> None:
    for job, table in (("in", "words"), ("too", "names")):
        world.look(job, **{table: 100})
    first = world.publish(dim=100)
    other = TableName("lake", ("db",), "other")
    world.store.jobs.start_run("p", "other", [DatasetEntry(other, "streaming table", "o", is_root=True)])
    fence = world.store.jobs.take_over("other", ingests=[other])
    number = world.store.checkpoints.open(
        "other", fence, NewCheckpoint({other: Version("1")}, 1, observations={other: 50})
    ).number
    world.store.checkpoints.publish("other", fence, number, 1)
    assert world.store.reads.resolve(tables=[VIEW], lease_ms=0).checkpoint == number > first
    assert world.sees(99, VIEW)
    assert not world.sees(100, VIEW)
    # What was found without news since is told of the checkpoint that the jobs themselves know.
    for job, table in (("in", "words"), ("too", "names"), ("views", "dim")):
        world.look(job, first, **{table: 200})
    assert world.sees(199, VIEW)
    assert not world.sees(50, other)


def test_external_table_is_observed_by_the_job_that_cuts_it(world: World) -> None:
    for job, table in (("in", "words"), ("too", "names")):
        world.look(job, **{table: 500})
    # Another job has seen a newer version of it already; this cut names the older one.
    world.look("in", dim=400)
    world.publish(dim=100)
    assert not world.sees(200, VIEW)


def test_a_new_owner_knows_nothing_of_older_looks(world: World) -> None:
    world.look("in", words=100)
    world.look("too", names=100)
    first = world.publish(dim=100)
    world.take_over("in")
    assert world.sees(50, VIEW)
    # Its table may have been emptied by a full refresh.
    world.publish(dim=100)
    assert not world.sees(50, VIEW)
    assert world.sees(50, VIEW, checkpoint=first)
    world.look("in", words=300)
    world.publish(dim=100)
    assert world.sees(99, VIEW)


def test_weak_reads_have_no_after(world: World) -> None:
    world.publish()
    with pytest.raises(QueryError, match="TOKEN_NEEDS_CHECKPOINT"):
        world.store.reads.resolve(Consistency.WEAK, after_ms=1)

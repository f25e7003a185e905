"""The store is lost, swapped or an older copy: numbers, fences and checkpoints come back from the lake, above
all that was seen, and every published checkpoint shows what its views say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tautochrone.meta import MetaStore
from tautochrone.model.effects import Step
from tautochrone.model.names import TableName

from .checks import check, check_tables, published, verify_all
from .faults import Strike
from .world import World

pytestmark = [pytest.mark.crash, pytest.mark.spark]

TABLES = ("clean", "totals", "big")


def _fence(world: World) -> int:
    with world.table("events") as table:
        return int(table.fork().fence)


@pytest.mark.slow
def test_store_deleted_between_runs(world: World) -> None:
    world.sources.add()
    world.run().require_completed()
    world.sources.add()
    world.run().require_completed()
    before = _fence(world)
    world.sources.delete_store()
    world.sources.add()
    world.run().require_completed()
    check(world)
    with MetaStore.open(f"sqlite:///{world.sources.storage}/meta.db") as store:
        rebuilt = published(store)
    assert len(rebuilt) > 1, "no checkpoint came back"
    assert _fence(world) > before


@pytest.mark.parametrize(
    "table", ["big", *(pytest.param(t, marks=pytest.mark.slow) for t in ("clean", "totals"))]
)
def test_store_deleted_while_a_target_was_half_done(world: World, table: str) -> None:
    """The lake holds a refresh for a number that the new store never hears of again."""
    world.sources.define_only(table)
    world.sources.add()
    world.run().require_completed()
    world.sources.add()
    world.run(Strike(Step.META_VERSION, "before", "crash", on=table))
    world.sources.delete_store()
    world.sources.add()
    world.run().require_completed()
    check(world)


def _follow(world: World) -> None:
    world.sources.define_only("totals")
    world.sources.follow()


def _two_more_runs(world: World) -> None:
    for _ in range(2):
        world.sources.add()
        world.run().require_completed()
    verify_all(world, check_tables(world.sources))


def test_a_store_that_another_pipeline_uses_already(world: World) -> None:
    """Its numbers are lower than those of the lake: no state takes an older run for the newest."""
    _follow(world)
    for _ in range(2):
        world.sources.add()
        world.run().require_completed()
    world.sources.swap_store()
    _two_more_runs(world)
    with MetaStore.open(f"sqlite:///{world.sources.storage}/meta.db") as store:
        theirs = TableName("lake", ("other",), "theirs")
        assert store.checkpoints.versions_at(1) == {theirs: "1"}
        assert store.jobs.newest_fence("other") == 1


@pytest.mark.parametrize("later", [2, *(pytest.param(later, marks=pytest.mark.slow) for later in (1, 3))])
def test_a_store_put_back_after_more_checkpoints(world: World, tmp_path: Path, later: int) -> None:
    _follow(world)
    world.sources.add()
    world.run().require_completed()
    world.sources.copy_store(tmp_path / "backup")
    for _ in range(later):
        world.sources.add()
        world.run().require_completed()
    world.sources.restore_store(tmp_path / "backup")
    _two_more_runs(world)


@pytest.mark.slow
def test_every_copy_of_a_store_put_back(world: World, tmp_path: Path) -> None:
    """Copies of before, from one to three checkpoints ago, again and again."""
    world.sources.follow()
    for turn in range(9):
        world.sources.add()
        world.run().require_completed()
        world.sources.copy_store(tmp_path / f"{turn}")
        if turn >= 2:
            world.sources.restore_store(tmp_path / f"{turn - turn % 3}")
            world.sources.add()
            world.run().require_completed()
            verify_all(world, check_tables(world.sources))

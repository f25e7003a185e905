"""The store is lost: numbers, fences and checkpoints come back from the lake, above all that was seen."""

from __future__ import annotations

import pytest

from tautochrone.meta import MetaStore
from tautochrone.model.effects import Step

from .checks import check, published
from .faults import Strike
from .world import World

pytestmark = [pytest.mark.crash, pytest.mark.spark]


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
    world.sources.add()
    world.run().require_completed()
    world.sources.add()
    world.run(Strike(Step.META_VERSION, "before", "crash", on=table))
    world.sources.delete_store()
    world.sources.add()
    world.run().require_completed()
    check(world)

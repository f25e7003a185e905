"""Crashes between a view's state and the view itself: the state is rolled back to what the view names."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tautochrone.model.effects import Step

from .checks import check
from .faults import Strike
from .world import World

pytestmark = [pytest.mark.crash, pytest.mark.spark]

STATE = "default__totals__1"


@pytest.fixture(scope="module")
def shared(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    """A project whose views follow changes whatever they cost, after one change."""
    world = World.make(spark, tmp_path_factory.mktemp("shared") / "project")
    world.sources.define_only("totals")
    settings = world.sources.folder / "tautochrone.toml"
    settings.write_text(settings.read_text() + '\n[refresh]\npolicy = "incremental"\n')
    for _ in range(2):
        world.sources.add()
        world.run().require_completed()
    return world


@pytest.fixture
def following(shared: World, quiet: object) -> World:
    """The tests share the project: each ends with a checkpoint that is whole."""
    return shared


def modes(world: World) -> set[str]:
    """Another change, and how the view of the state took it."""
    world.sources.add()
    happened = world.run()
    happened.require_completed()
    return {event["mode"] for event in happened.named("refresh") if event["dataset"].endswith(".totals")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "on"),
    [(Step.LAKE_STAGE, STATE), (Step.LAKE_COMMIT_STAGED, STATE), (Step.LAKE_COMMIT_STAGED, "totals")],
)
def test_crash_around_a_state(following: World, step: Step, on: str) -> None:
    for when in ("before", "after"):
        following.sources.add()
        following.run(Strike(step, when, "crash", on=on))
    assert modes(following) == {"incremental"}
    check(following)


def test_crash_while_a_state_is_rolled_back(following: World) -> None:
    following.sources.add()
    following.run(Strike(Step.LAKE_COMMIT_STAGED, "after", "crash", on=STATE))
    for when in ("before", "after"):
        following.run(Strike(Step.LAKE_ROLL_BACK, when, "crash", on=STATE))
    assert modes(following) == {"incremental"}
    check(following)


def test_lost_answers_of_a_state(following: World) -> None:
    following.sources.add()
    following.run(Strike(Step.LAKE_COMMIT_STAGED, "after", "lose", on=STATE)).require_completed()
    assert modes(following) == {"incremental"}
    check(following)

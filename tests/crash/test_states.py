"""Crashes between a view's state and the view itself: the state is rolled back to what the view names."""

from __future__ import annotations

import pytest

from tautochrone.model.effects import Step

from .checks import check
from .faults import Strike
from .world import World

pytestmark = [pytest.mark.crash, pytest.mark.spark]

TABLES = ("totals",)
STATE = "default__totals__1"


@pytest.fixture
def following(world: World) -> World:
    """A project whose views follow changes whatever they cost, after one change."""
    settings = world.sources.folder / "tautochrone.toml"
    settings.write_text(settings.read_text() + '\n[refresh]\npolicy = "incremental"\n')
    for _ in range(2):
        world.sources.add()
        world.run().require_completed()
    return world


def modes(world: World) -> set[str]:
    """Another change, and how the view of the state took it."""
    world.sources.add()
    happened = world.run()
    happened.require_completed()
    return {event["mode"] for event in happened.named("refresh") if event["dataset"].endswith(".totals")}


@pytest.mark.parametrize(
    ("step", "on"),
    [
        pytest.param(Step.LAKE_STAGE, STATE, marks=pytest.mark.slow),
        (Step.LAKE_COMMIT_STAGED, STATE),
        pytest.param(Step.LAKE_COMMIT_STAGED, "totals", marks=pytest.mark.slow),
    ],
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

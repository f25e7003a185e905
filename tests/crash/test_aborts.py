"""Batches that may not be committed any more, and commits that meet somebody else's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from tautochrone.model.effects import Step

from .checks import check, pyiceberg
from .faults import Strike, StrikingEffects
from .world import World

pytestmark = [pytest.mark.crash, pytest.mark.spark]
T = TypeVar("T")


TABLES = ("clean", "totals")


@pytest.mark.parametrize(
    ("step", "when"),
    [
        (Step.LAKE_ABORT, "after"),
        pytest.param(Step.LAKE_ABORT, "before", marks=pytest.mark.slow),
        pytest.param(Step.LAKE_DISCARD, "before", marks=pytest.mark.slow),
        pytest.param(Step.LAKE_DISCARD, "after", marks=pytest.mark.slow),
    ],
)
def test_crash_while_a_refused_batch_is_cleaned_away(world: World, step: Step, when: str) -> None:
    _prepare_and_move(world)
    world.run(Strike(step, when, "crash"))
    _prepare_and_move(world)
    world.run().require_completed()
    check(world)


@pytest.mark.slow
@pytest.mark.parametrize("step", [Step.LAKE_ABORT, Step.LAKE_DISCARD])
def test_lost_answer_while_a_refused_batch_is_cleaned_away(world: World, step: Step) -> None:
    _prepare_and_move(world)
    world.run(Strike(step, "after", "lose"))
    world.run().require_completed()
    check(world)


class _Interfering(StrikingEffects):
    """Somebody commits to the table right before we do."""

    def __init__(self, step: Step, table: str, act: Callable[[], None]) -> None:
        super().__init__()
        self._at, self._table, self._act = step, table, act
        self.met = 0

    def perform(self, step: Step, subject: str, action: Callable[[], T]) -> T:
        if step is self._at and subject.endswith(f".{self._table}") and not self.met:
            self.met += 1
            self._act()
        return super().perform(step, subject, action)


@pytest.mark.parametrize(
    ("step", "table"),
    [
        pytest.param(Step.LAKE_PREPARE, "events", marks=pytest.mark.slow),
        (Step.LAKE_COMMIT, "events"),
        pytest.param(Step.LAKE_COMMIT_STAGED, "totals", marks=pytest.mark.slow),
        pytest.param(Step.LAKE_FENCE, "clean", marks=pytest.mark.slow),
    ],
)
def test_unrelated_metadata_commit_is_no_conflict(world: World, step: Step, table: str) -> None:
    world.sources.add()
    world.run().require_completed()
    world.sources.add()
    effects = _Interfering(step, table, lambda: _set_property(world, table))
    world.run(effects=effects).require_completed()
    assert effects.met
    catalog = pyiceberg(world.sources)
    assert catalog.load_table(f"default.{table}").properties["somebody"] == "was here"
    catalog.close()
    check(world)


def _set_property(world: World, table: str) -> None:
    # By Spark: PyIceberg does not write format version 3 yet.
    world.spark.sql(f"ALTER TABLE lake.default.{table} SET TBLPROPERTIES ('somebody' = 'was here')")


def _prepare_and_move(world: World) -> None:
    """A prepared batch of `events` whose parent is main no longer."""
    world.sources.add()
    world.run(Strike(Step.LAKE_PREPARE, "after", "crash", on="events"))
    with world.table("events") as table:
        fork = table.fork()
        assert fork.commit_metadata is not None
        assert table.prepared()
        table.raise_fence(fork, fork.commit_metadata)

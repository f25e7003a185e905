"""Deliveries to a sink: whatever fails, it shows published checkpoints only, and no row twice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tautochrone.errors import SinkError
from tautochrone.model.effects import Step
from tautochrone.model.names import TableName
from tautochrone.testing.sqlite_sink import Mishap, SqliteSink

from .checks import check, check_mirror
from .faults import Strike
from .world import World

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.timeout(900)]

EVENTS = TableName("lake", ("default",), "events")
LOSABLE = (Step.SINK_BEGIN, Step.SINK_WRITE, Step.SINK_PREPARE, Step.SINK_COMMIT)
HANDLING = (Step.SINK_ABORT, Step.META_DELIVERY_FAILED, Step.META_DELIVERY_ABORT)
"""Steps of a delivery that failed."""


def mishap(world: World, *kinds: Mishap) -> None:
    SqliteSink.mishaps[str(world.sources.mirror_file)] = list(kinds)


@pytest.fixture(scope="module")
def shared(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    return _make(spark, tmp_path_factory.mktemp("shared") / "project")


@pytest.fixture
def world(shared: World, quiet: object) -> World:
    """The newest checkpoint is delivered. The tests share the project: each ends as the next one begins."""
    shared.sources.mirror()
    mishap(shared)
    if not shared.published:
        shared.sources.add()
        shared.run().require_completed()
    return shared


def _make(spark: SparkSession, folder: Path) -> World:
    # What is delivered does not depend on other tables.
    world = World.make(spark, folder)
    world.sources.define_only()
    return world


@pytest.mark.slow
def test_each_published_checkpoint_is_delivered(world: World) -> None:
    for _ in range(3):
        world.sources.add()
        attempt = world.run()
        attempt.require_completed()
        (delivered,) = attempt.named("sink_delivered")
        assert delivered["checkpoint"] == world.published[-1]
        check_mirror(world)
    assert not delivered["replaced"]
    check(world)


def test_one_delivery_catches_up_after_an_outage(world: World) -> None:
    world.sources.mirror("skip_with_alarm")
    first = world.published[-1]
    world.sources.add()
    mishap(world, *[Mishap.HALF_WRITTEN] * 20)
    down = world.run()
    down.require_completed()
    assert down.named("sink_failed")
    assert down.named("sink_skipped")
    mishap(world)
    world.sources.add()
    attempt = world.run()
    attempt.require_completed()
    delivered = attempt.named("sink_delivered")
    assert delivered[0]["since"] == first
    assert not any(event["replaced"] for event in delivered)
    check(world)


@pytest.mark.slow
def test_a_failing_sink_fails_the_run_but_no_checkpoint(world: World) -> None:
    world.sources.add()
    mishap(world, *[Mishap.HALF_WRITTEN] * 20)
    attempt = world.run()
    assert not attempt.completed
    assert attempt.named("checkpoint"), attempt.describe()
    assert {event["failures"] for event in attempt.named("sink_failed")} >= {1, 2, 3}
    mishap(world)
    world.run().require_completed()
    check(world)


def test_a_sink_that_holds_back_keeps_the_next_checkpoint_unpublished(world: World) -> None:
    world.sources.mirror("hold_back")
    mishap(world, *[Mishap.HALF_WRITTEN] * 50)
    world.sources.add()
    assert not world.run().completed
    behind = world.published[-1]
    world.sources.add()
    # A run waits as long as its patience for what holds it back.
    world.sources.mirror("hold_back", patience="1s")
    waiting = world.run()
    assert not waiting.completed
    assert waiting.named("held_back"), waiting.describe()
    assert world.published[-1] == behind
    world.sources.mirror("hold_back")
    mishap(world)
    world.run().require_completed()
    assert world.published[-1] > behind
    check(world)


@pytest.mark.parametrize(
    "steps",
    [pytest.param(LOSABLE[-1:], id="commit"), pytest.param(LOSABLE, id="all", marks=pytest.mark.slow)],
)
def test_a_lost_answer_is_recovered_in_the_same_run(world: World, steps: Sequence[Step]) -> None:
    for step in steps:
        world.sources.add()
        attempt = world.run(Strike(step, "after", "lose"))
        attempt.require_completed()
        (recovered,) = attempt.named("sink_recovered")
        assert recovered["state"] == ("committed" if step is Step.SINK_COMMIT else "aborted"), step
        check_mirror(world)
    check(world)


@pytest.mark.slow
def test_a_lost_row_is_sent_again(world: World) -> None:
    world.sources.add()
    mishap(world, Mishap.ROW_LOST)
    attempt = world.run()
    attempt.require_completed()
    assert attempt.effects.seen[Step.SINK_ABORT] == 1
    check(world)


@pytest.mark.parametrize(
    ("steps", "when"),
    [
        # The last one is in the chain of deliveries of `test_steps` too.
        pytest.param(HANDLING[:-1], "before", id="before"),
        pytest.param(HANDLING[-1:], "before", id="abort-before", marks=pytest.mark.slow),
        pytest.param(HANDLING, "after", id="after", marks=pytest.mark.slow),
    ],
)
def test_crash_while_a_failure_is_handled(world: World, steps: Sequence[Step], when: str) -> None:
    for step in steps:
        world.sources.add()
        mishap(world, Mishap.ROW_LOST)
        assert not world.run(Strike(step, when, "crash")).completed, step
        mishap(world)
        world.run().require_completed()
        check_mirror(world)
    check(world)


@pytest.mark.slow
def test_an_old_owner_cannot_commit_to_the_sink(world: World) -> None:
    path = str(world.sources.mirror_file)
    zombie = SqliteSink("mirror", path)
    world.sources.add()
    world.run(Strike(Step.SINK_COMMIT, "before", "crash"))
    with world.open() as project:
        (status,) = project.store().deliveries.sinks()
    assert status.intent is not None
    world.run().require_completed()
    rows = sorted(zombie.rows(EVENTS))
    with pytest.raises(SinkError):
        zombie.commit(status.intent.transaction, status.fence)
    assert sorted(zombie.rows(EVENTS)) == rows
    check(world)


def test_a_sink_goes_on_with_a_rebuilt_store(world: World) -> None:
    world.sources.delete_store()
    world.sources.add()
    attempt = world.run()
    attempt.require_completed()
    delivered = attempt.named("sink_delivered")
    assert delivered
    assert not any(event["replaced"] for event in delivered), "the lake knows what the sink shows"
    check(world)


def test_a_restored_store_does_not_deliver_twice(world: World, tmp_path: Path) -> None:
    world.sources.copy_store(tmp_path / "copy")
    world.sources.add()
    world.run().require_completed()
    world.sources.restore_store(tmp_path / "copy")
    world.sources.add()
    world.run().require_completed()
    check(world)


@pytest.mark.slow
def test_a_sink_of_another_lake_is_refused(world: World, tmp_path: Path) -> None:
    other = _make(world.spark, tmp_path / "other")
    other.sources.mirror()
    text = (other.sources.folder / "transformations" / "mirror.py").read_text()
    text = text.replace(str(other.sources.mirror_file), str(world.sources.mirror_file))
    (other.sources.folder / "transformations" / "mirror.py").write_text(text)
    other.sources.add()
    refused = other.run()
    assert not refused.completed
    assert [event["error_class"] for event in refused.named("sink_failed")] == ["SINK_DATABASE_TAKEN"]
    assert refused.named("checkpoint"), refused.describe()
    check(world)


@pytest.mark.slow
def test_a_sink_that_was_emptied_is_filled_again(world: World) -> None:
    for file in world.sources.mirror_file.parent.glob("*"):
        file.unlink()
    world.sources.add()
    attempt = world.run()
    attempt.require_completed()
    first, *later = attempt.named("sink_delivered")
    assert len(first["replaced"]) == 2
    assert not any(event["replaced"] for event in later)
    check(world)

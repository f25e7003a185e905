"""A process that stands still while another takes over, and then wakes: it must end, and change nothing.

In CI a run of this process loses its job, and a real one at the folder of its flow (`test_folder_zombies`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import TypeVar
from unittest.mock import patch

import pytest
from tests.support.crash import Running, Taut, fault

from tautochrone.errors import FencedError, MetaError
from tautochrone.iceberg.commits.metadata import carry_forward
from tautochrone.meta import MetaStore
from tautochrone.model.effects import Step
from tautochrone.model.names import Fence, Version

from .checks import check
from .faults import StrikingEffects
from .world import World

pytestmark = [pytest.mark.crash, pytest.mark.spark]

T = TypeVar("T")
TABLES = ("totals",)
SLEEPS_BEFORE = [
    (Step.LAKE_PREPARE, "events"),
    (Step.LAKE_COMMIT, "events"),
    (Step.LAKE_COMMIT_STAGED, "totals"),
    (Step.META_PUBLISH, None),
]


class Overtaken(StrikingEffects):
    """Another owner takes the job over right before the first checkpoint is published."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._store = f"sqlite:///{world.sources.storage}/meta.db"

    def perform(self, step: Step, subject: str, action: Callable[[], T]) -> T:
        if step is Step.META_PUBLISH:
            with MetaStore.open(self._store) as store:
                store.jobs.take_over("crash", lease_ms=0)
        return super().perform(step, subject, action)


def test_run_that_loses_its_job_publishes_nothing(world: World) -> None:
    world.sources.add()
    attempt = world.run(effects=Overtaken(world))
    assert isinstance(attempt.error, FencedError), attempt.describe()
    assert not attempt.named("checkpoint")
    world.run(takeover=True).require_completed()
    check(world)


@pytest.mark.slow
@pytest.mark.parametrize(("step", "on"), SLEEPS_BEFORE, ids=lambda value: str(value or "job"))
def test_zombie_after_a_takeover(world: World, tmp_path: Path, step: Step, on: str | None) -> None:
    with _asleep(world, tmp_path, step, on) as zombie:
        world.sources.add()
        refused = world.run()
        assert isinstance(refused.error, MetaError), refused.describe()
        assert refused.error.error_class == "JOB_RUNNING", refused.describe()
        assert not refused.effects.seen, "it wrote beside a run that is alive"
        world.run(takeover=True).require_completed()
        _wakes(world, zombie)
    world.sources.add()
    world.run().require_completed()
    check(world)


@pytest.mark.slow
def test_zombie_after_a_roll_back(world: World, tmp_path: Path) -> None:
    """Its batch forked from a version that main stands at again, as if nothing had happened."""
    with _asleep(world, tmp_path, Step.LAKE_COMMIT, "events") as zombie:
        with world.table("events") as table:
            before = table.current_version()
        world.run(takeover=True).require_completed()
        roll_back(world, "events", before)
        _wakes(world, zombie)
    world.run().require_completed()
    check(world)


def roll_back(world: World, name: str, version: Version) -> None:
    """What an operator does: main to an older version with the positions it had, and a higher fence."""
    with world.table(name) as table:
        newest = table.fork()
        history = table.versions()
        upto = [v for v, _, _ in history].index(version)
        metadata = [
            commit_metadata for _, commit_metadata, _ in history[: upto + 1] if commit_metadata is not None
        ]
        then = reduce(carry_forward, metadata[1:], metadata[0])
        commit_metadata = replace(then, fence=Fence(newest.fence + 1))
        table.roll_back(version, commit_metadata)
        table.raise_fence(table.fork(), replace(commit_metadata, positions={}))


@contextmanager
def _asleep(world: World, logs: Path, step: Step, on: str | None) -> Iterator[Running]:
    world.sources.add()
    world.run().require_completed()
    world.sources.add()
    taut = Taut(world.sources.folder, logs)
    subject = None if on is None else f"lake.default.{on}"
    # It sleeps while nothing of it writes the store: neither another step nor a heartbeat.
    with (
        patch.dict(os.environ, TAUTOCHRONE_LEASE="1h"),
        taut.start(fault=fault(step, "before", "pause", on=subject)) as zombie,
    ):
        zombie.wait_until_stopped()
        yield zombie


def _wakes(world: World, zombie: Running) -> None:
    zombie.resume()
    ended = zombie.wait()
    assert ended.status == 1, ended.describe()
    output = ended.stderr + ended.describe()
    assert "JOB_FENCED" in output or "TABLE_MOVED" in output, output
    assert not ended.named("checkpoint"), output

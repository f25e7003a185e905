"""Killed at any moment, again and again, while rows keep coming."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.support.crash import Taut

from .checks import check
from .world import World

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.slow]

ROUNDS = 20


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [1])
def test_random_kills(world: World, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    taut = Taut(world.sources.folder, tmp_path)
    for _ in range(ROUNDS):
        world.sources.add()
        with taut.start("--continuous", "--interval", "500ms") as running:
            # Up to here is Spark's start; the rest is where the durable steps are.
            assert running.lives_for(chance.uniform(6, 12)), running.wait().describe()
            world.sources.add()
            assert running.lives_for(chance.uniform(1, 8)), running.wait().describe()
            running.kill()
            world.commit_metadata(running.wait().events)
    world.sources.add()
    world.run().require_completed()
    check(world)

"""A second `taut run` of a job that runs: refused without Spark, or it waits; a dead owner is replaced."""

from __future__ import annotations

import os
import time
from pathlib import Path
from unittest.mock import patch

import pytest
from tests.support.crash import Running, Taut, fault

from tautochrone.model.effects import Step

from .checks import check
from .world import World

pytestmark = [pytest.mark.crash, pytest.mark.spark]


TABLES = ("totals",)


def wait_for(running: Running, event: str) -> None:
    deadline = time.monotonic() + 60
    while not any(f'"{event}"' in line for line in running.lines()):
        assert running.lives_for(0.05), running.wait().describe()
        assert time.monotonic() < deadline


def test_a_second_run_beside_a_live_one(world: World, tmp_path: Path) -> None:
    world.sources.add()
    taut = Taut(world.sources.folder, tmp_path)
    # The lease is longer than the test: only what is seen of the process itself can free the job.
    with (
        patch.dict(os.environ, TAUTOCHRONE_LEASE="1h"),
        taut.start(fault=fault(Step.META_PUBLISH, "before", "pause")) as first,
    ):
        first.wait_until_stopped()
        for flags in ((), ("--continuous",)):
            second = taut.run(*flags)
            assert second.status == 1, second.describe()
            assert "[JOB_RUNNING]" in second.stderr
            assert f"process {first.pid} on host" in second.stderr
            assert "checkpoint 1 is open" in second.stderr
            # It was asked before Spark: nothing but the first word was said.
            assert [event["event"] for event in second.events] == ["starting"], second.describe()
        with taut.start("--wait") as waiting:
            wait_for(waiting, "waiting_for_run")
            assert waiting.lives_for(1), "it waits for one that stands still and is there"
            first.kill()
            ended = waiting.wait()
    ended.require_ok()
    (event,) = ended.named("waiting_for_run")
    assert event["pid"] == first.pid
    assert event["checkpoint"] == 1
    assert [event["checkpoint"] for event in ended.named("checkpoint")] == [1], ended.describe()
    check(world)

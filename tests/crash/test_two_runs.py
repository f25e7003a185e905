"""A second `taut run` of a job that runs: refused without Spark, or it waits; a dead owner is replaced."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from tests.support.crash import Running, Taut, fault

from tautochrone.model.effects import Step
from tautochrone.model.jobs import Claim
from tautochrone.runtime.job.ownership import process_of

from .checks import check
from .faults import Strike
from .world import World

pytestmark = [pytest.mark.crash, pytest.mark.spark]


TABLES = ("totals",)
LEASE_MS = 3_600_000
"""Longer than the tests: only what is seen of the process itself can free the job."""


def wait_for(running: Running, event: str) -> None:
    deadline = time.monotonic() + 60
    while not any(f'"{event}"' in line for line in running.lines()):
        assert running.lives_for(0.05), running.wait().describe()
        assert time.monotonic() < deadline


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    """A process that waits. In place of a run it starts sooner than Spark."""
    started = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, text=True)
    yield started
    started.kill()
    started.communicate()


def refuse(taut: Taut, pid: int, *flags: str) -> None:
    second = taut.run(*flags)
    assert second.status == 1, second.describe()
    assert "[JOB_RUNNING]" in second.stderr
    assert f"process {pid} on host" in second.stderr
    assert "checkpoint 1 is open" in second.stderr
    # It was asked before Spark: nothing but the first word was said.
    assert [event["event"] for event in second.events] == ["starting"], second.describe()


@pytest.mark.parametrize("waits", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_second_run_beside_a_live_one(
    world: World, tmp_path: Path, child: subprocess.Popen[str], waits: bool
) -> None:
    world.sources.add()
    world.run(Strike(Step.META_PUBLISH, "before", "crash"))
    started = int(Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19])
    with world.open() as project:
        owner = replace(process_of("first"), pid=child.pid, started=started)
        project.store().jobs.take_over("crash", lease_ms=LEASE_MS, claim=Claim(process=owner))
    taut = Taut(world.sources.folder, tmp_path)
    refuse(taut, child.pid)
    if not waits:
        return
    with taut.start("--wait") as waiting:
        wait_for(waiting, "waiting_for_run")
        assert waiting.lives_for(0.5), "it waits for one that is there"
        child.kill()
        child.wait()
        ended = waiting.wait()
    ended.require_ok()
    (event,) = ended.named("waiting_for_run")
    assert event["pid"] == child.pid
    assert event["checkpoint"] == 1
    assert [event["checkpoint"] for event in ended.named("checkpoint")] == [1], ended.describe()
    check(world)


@pytest.mark.slow
def test_a_second_run_beside_one_that_stands_still(world: World, tmp_path: Path) -> None:
    world.sources.add()
    taut = Taut(world.sources.folder, tmp_path)
    with (
        patch.dict(os.environ, TAUTOCHRONE_LEASE=f"{LEASE_MS}ms"),
        taut.start(fault=fault(Step.META_PUBLISH, "before", "pause")) as first,
    ):
        first.wait_until_stopped()
        for flags in ((), ("--continuous",)):
            refuse(taut, first.pid, *flags)
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

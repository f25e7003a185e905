"""`taut revise`: what it lists, that it asks, and what a process that dies leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.crash.faults import Strike, StrikingEffects
from tests.runtime.commands import taut_in_process
from tests.support.crash import fault

from tautochrone.cli.main import main
from tautochrone.model.effects import Step
from tautochrone.runtime.job.effects import FAULT_VARIABLE
from tautochrone.runtime.maintenance.maintain import Maintenance

from .world import GOOD, LATER, RIGHT, World

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

Taut = Callable[..., "subprocess.CompletedProcess[str]"]


def as_process(
    world: World, *arguments: str, strike: Strike | None = None
) -> subprocess.CompletedProcess[str]:
    """It is killed at the strike."""
    text = "" if strike is None else fault(strike.step, strike.when, "kill", nth=strike.nth)
    done = subprocess.run(
        [sys.executable, "-m", "tautochrone.cli.main", *arguments],
        cwd=world.folder, env={**os.environ, FAULT_VARIABLE: text}, capture_output=True, text=True,
        check=False, timeout=600,
    )  # fmt: skip
    assert strike is None or done.returncode == -signal.SIGKILL, done.stderr
    return done


def in_process(
    world: World, *arguments: str, strike: Strike | None = None
) -> subprocess.CompletedProcess[str]:
    """From the strike on it takes no step."""
    effects = StrikingEffects(strike)
    done = taut_in_process(world.folder, world.pipeline.session, *arguments, effects=effects)
    assert strike is None or effects.struck, done.stderr
    return done


def told(done: subprocess.CompletedProcess[str], event: str) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    return [fields for fields in events if fields["event"] == event]


@pytest.mark.parametrize(
    "taut",
    [
        pytest.param(in_process, id="in process"),
        pytest.param(as_process, id="as processes", marks=[pytest.mark.slow, pytest.mark.crash]),
    ],
)
def test_listed_accepted_killed_finished_confirmed(wronged: World, taut: Taut) -> None:
    world = wronged
    with world.pipeline.opened() as (job, _):
        # Hours later: of the versions between, and of the states, only what checkpoints need is left.
        Maintenance(job, now_ms=lambda: time.time_ns() // 1_000_000 + 36_000_000).run(orphans=False)
    pointers = world.pipeline.pointers()
    listed = taut(world, "revise", "events", "--to", "1", "--read-again")
    assert listed.returncode == 0, listed.stderr
    assert "lake.default.sizes     roll back" in listed.stdout
    assert "nothing was changed; --accept" in listed.stderr
    assert "checkpoints that are revoked: 2, 3" in listed.stderr
    assert world.pipeline.pointers() == pointers

    command = ("revise", "events", "--to", "1", "--read-again", "--accept")
    taut(world, *command, strike=Strike(Step.LAKE_REVERT, "after", "crash", nth=2))
    assert world.rows("clean") == GOOD

    finished = taut(world, "revise", "--json")
    (revision,) = told(finished, "revision")
    assert len(told(finished, "revised")) == 5
    assert [event["state"] for event in told(finished, "revision_waiting")] == ["done"]
    happened = world.run()
    assert happened.checkpoints == [4]
    # Followed from checkpoint 1, with the states of then.
    assert happened.mode("clean")[0] == "append"
    assert {happened.mode(view)[0] for view in ("totals", "sizes", "labelled")} == {"incremental"}
    world.check(*GOOD, *RIGHT, *LATER)
    assert told(taut(world, "revise", "--confirm", revision["revision"], "--json"), "revision_confirmed")
    assert told(taut(world, "revise", "--json"), "revision_waiting") == []


@pytest.mark.parametrize(
    ("arguments", "error_class"),
    [
        (["events"], "REVISION_WITHOUT_CHECKPOINT"),
        (["--to", "1"], "CONFLICTING_OPTIONS"),
        (["events", "--confirm", "x"], "CONFLICTING_OPTIONS"),
        (["events", "--to", "1", "--dry-run", "--accept"], "CONFLICTING_OPTIONS"),
    ],
)
def test_wrong_use_is_said_before_spark_starts(
    world: World,
    arguments: list[str],
    error_class: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(world.folder)
    assert main(["revise", *arguments]) == 1
    assert capsys.readouterr().err.startswith(f"[{error_class}]")

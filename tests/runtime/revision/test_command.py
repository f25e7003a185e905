"""`taut revise` as a process: what it lists, that it asks, and what a SIGKILL leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from tests.support.crash import fault

from tautochrone.cli.main import main
from tautochrone.model.effects import Step
from tautochrone.runtime.job.effects import FAULT_VARIABLE

from .world import GOOD, LATER, RIGHT, World

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.timeout(1800)]


def taut(world: World, *arguments: str, fault: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, FAULT_VARIABLE: fault}
    return subprocess.run(
        [sys.executable, "-m", "tautochrone.cli.main", *arguments],
        cwd=world.folder, env=environment, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip


def told(done: subprocess.CompletedProcess[str], event: str) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    return [fields for fields in events if fields["event"] == event]


def test_listed_accepted_killed_finished_confirmed(wronged: World) -> None:
    world = wronged
    pointers = world.pipeline.pointers()
    listed = taut(world, "revise", "events", "--to", "1", "--read-again")
    assert listed.returncode == 0, listed.stderr
    assert "lake.default.sizes     roll back" in listed.stdout
    assert "nothing was changed; --accept" in listed.stderr
    assert "checkpoints that are revoked: 2, 3" in listed.stderr
    assert world.pipeline.pointers() == pointers

    command = ("revise", "events", "--to", "1", "--read-again", "--accept")
    killed = taut(world, *command, fault=fault(Step.LAKE_REVERT, "after", "kill", nth=2))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert world.rows("clean") == GOOD

    finished = taut(world, "revise", "--json")
    (revision,) = told(finished, "revision")
    assert len(told(finished, "revised")) == 5
    assert [event["state"] for event in told(finished, "revision_waiting")] == ["done"]
    world.run()
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

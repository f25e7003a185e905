"""`taut adopt`: what it prints, its exit status, and what a SIGKILL leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from tests.runtime.commands import taut_in_process
from tests.support.crash import fault

from tautochrone.model.effects import Step
from tautochrone.runtime.job.effects import FAULT_VARIABLE

from .world import Built

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]


def taut(built: Built, *arguments: str, fault: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, FAULT_VARIABLE: fault}
    command = [sys.executable, "-m", "tautochrone.cli.main", "adopt", *arguments]
    return subprocess.run(
        command, cwd=built.folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )


@pytest.mark.slow
def test_a_dry_run_tells_what_it_would_do(built: Built) -> None:
    pointers = built.pipeline.pointers()
    survey = taut(built, "--dry-run", "--json")
    assert survey.returncode == 0, survey.stderr
    events = [json.loads(line) for line in survey.stdout.splitlines()]
    surveyed = {e["dataset"]: e["action"] for e in events if e["event"] == "surveyed"}
    assert surveyed == {f"lake.{table}": "adopt" for table in pointers}
    assert built.pipeline.pointers() == pointers


@pytest.mark.slow
@pytest.mark.crash
def test_a_killed_command_is_completed_by_the_next(built: Built) -> None:
    pointers = built.pipeline.pointers()
    killed = taut(built, fault=fault(Step.LAKE_ADOPT, "after", "kill", nth=3))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    moved = [name for name, pointer in built.pipeline.pointers().items() if pointers[name] != pointer]
    assert len(moved) == 3

    done = taut(built)
    assert done.returncode == 0, done.stderr
    assert "lake.default.hourly  adopt" in done.stdout
    assert "checkpoint 1 published" in done.stderr
    built.add()
    built.run()
    built.check()


@pytest.mark.parametrize("as_process", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_refusals_are_listed_with_what_to_do(built: Built, *, as_process: bool) -> None:
    session = built.pipeline.session
    session.sql("INSERT INTO lake.default.sales VALUES ('z', 1, 1.0)")
    done = taut(built) if as_process else taut_in_process(built.folder, session, "adopt")
    assert done.returncode == 1
    assert "[ADOPTION_ROWS_DIFFER] lake.default.sales differs from its query: 0 rows missing, 1 un" in (
        done.stdout
    )
    assert "views.sql:1" in done.stdout
    assert "--rebuild sales" in done.stderr
    assert "[ADOPTION_REFUSED] 1 of 7 datasets" in done.stderr

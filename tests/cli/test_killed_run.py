"""A run that is killed: what `taut` says of it, and of the run that goes on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tautochrone.cli.main import main

pytestmark = [pytest.mark.slow, pytest.mark.spark]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "--name", "demo"]) == 0
    monkeypatch.chdir(tmp_path / "demo")
    (tmp_path / "demo" / "tautochrone.toml").write_text('[run]\nlease = "2s"\n')
    return tmp_path / "demo"


def until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_killed_run_has_last_words_and_the_next_one_ends_its_alarm(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def says(*arguments: str) -> str:
        capsys.readouterr()
        main([*arguments])
        return capsys.readouterr().out

    def jobs() -> list[dict[str, object]]:
        return [json.loads(line) for line in says("jobs", "--json").splitlines()]

    command = [sys.executable, "-m", "tautochrone.cli.main", "run", "--continuous", "--interval", "1s"]
    with (project / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=project, stdout=log, stderr=log, start_new_session=True)
    try:
        until(lambda: "checkpoint 1 published" in (project / "log").read_text(), 120)
        # The store has the last line within a second.
        time.sleep(2)
        process.send_signal(signal.SIGKILL)
        process.wait()
        killed_at = time.monotonic()
        until(lambda: jobs()[0]["liveness"] == "not running", 30)
        assert time.monotonic() - killed_at < 10
        for text in (says("status"), says("jobs")):
            assert f"process {process.pid}" in text
            assert "has ended without saying so" in text
            assert "checkpoint 1 published" in text
            assert "taut run --continuous" in text
        assert main(["alarms"]) == 1
    finally:
        # Spark's Java process is in the session of the run, and has ended if all went well.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    subprocess.run(command[:4], cwd=project, check=True, capture_output=True, timeout=200)
    assert main(["alarms"]) == 0
    assert "nothing came since the last run" in says("status", "--json")
    (project / "orders" / "9.json").write_text('{"id": 9, "product": "tea", "price": 1}\n')
    assert "files came or changed since the last run" in says("status", "--json")

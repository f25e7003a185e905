"""`taut run` prints its first line before slow imports: under one second, of which this checks
the part that does not depend on the load of the machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tautochrone.cli.main import main

FIRST = "pipeline demo: starting Spark on local[*]"
SLOW = {
    "alembic",
    "fastapi",
    "pandas",
    "py4j",
    "pyarrow",
    "pyiceberg",
    "pyspark",
    "rich",
    "sqlalchemy",
    "uvicorn",
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "--name", "demo"]) == 0
    return tmp_path / "demo"


def until_first_line(project: Path, *python: str) -> tuple[list[str], float]:
    """Lines of stderr up to the first line of the run, and the CPU seconds until then."""
    command = [sys.executable, *python, "-m", "tautochrone.cli.main", "run"]
    process = subprocess.Popen(
        command, cwd=project, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith(FIRST):
            break
    process.kill()
    _, _, usage = os.wait4(process.pid, 0)
    process.returncode = -9
    process.stderr.close()
    assert lines[-1:], "it ended without output"
    assert lines[-1].startswith(FIRST), lines
    return lines, usage.ru_utime + usage.ru_stime


def test_no_slow_import_before_the_first_line(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without a seed it starts itself again, and the list is that of two processes.
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    lines, _ = until_first_line(project, "-X", "importtime")
    imported = [match[1] for line in lines if (match := re.match(r"import time:.*\| +([\w.]+)$", line))]
    # The command's own module is imported with importlib, which this list does not show.
    assert {"tautochrone.cli.output", "tautochrone.app.locate"} <= set(imported), "an unexpected list"
    assert not SLOW & set(imported)
    # 230 when this was changed, most of them Python's own.
    assert len(imported) < 240


def test_the_first_line_costs_less_than_a_second(project: Path) -> None:
    lines, cpu_s = until_first_line(project)
    assert len(lines) == 1
    assert cpu_s < 1

"""`taut run` says its first word before it imports what is slow: under one second, of which this checks
the part that does not depend on who else uses the machine."""

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
    """Lines of stderr up to the first words, and the seconds of CPU that they cost."""
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
    assert lines[-1:], "it ended without a word"
    assert lines[-1].startswith(FIRST), lines
    return lines, usage.ru_utime + usage.ru_stime


def test_what_is_imported_before(project: Path) -> None:
    lines, _ = until_first_line(project, "-X", "importtime")
    imported = [found[1] for line in lines if (found := re.match(r"import time:.*\| +([\w.]+)$", line))]
    # The command's own module is imported by its name, which this list never shows.
    assert {"tautochrone.cli.listen", "tautochrone.app.locate"} <= set(imported), "an unexpected list"
    assert not SLOW & set(imported)
    # 175 when this was written, most of them Python's own.
    assert len(imported) < 230


def test_the_first_line_costs_less_than_a_second(project: Path) -> None:
    lines, cpu_s = until_first_line(project)
    assert len(lines) == 1
    assert cpu_s < 1

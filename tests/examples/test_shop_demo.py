"""`make demo-cdc`: a database is captured while it is written to, and the run is killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.crash
@pytest.mark.timeout(900)
def test_demo_ends_without_problems() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.shop.demo", "--seconds", "20"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr

"""`taut` as a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def run_taut(folder: Path, *arguments: str, expect: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder to its end; another exit code than `expect` fails the test."""
    done = subprocess.run(
        [sys.executable, "-m", "tautochrone.cli.main", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == expect, done.stderr[-3000:]
    return done

"""Commands of `taut` in this process, on the Spark of the tests: each saves the start of a process."""

from __future__ import annotations

import contextlib
import io
import subprocess
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tautochrone.app.open
from tautochrone.cli.main import main
from tautochrone.model.effects import Effects

__all__ = ["taut_in_process"]


def taut_in_process(
    folder: Path, session: SparkSession, *arguments: str, effects: Effects | None = None
) -> subprocess.CompletedProcess[str]:
    """What a process of the command in this folder would print and return.

    Args:
        session: one whose catalog is the project's lake.
        effects: those of a process that dies.
    """
    stdout, stderr = io.StringIO(), io.StringIO()
    project = partial(tautochrone.app.open.Project, base=session, effects=effects)
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
    ):
        patch.chdir(folder)
        # Commands import it when they run.
        patch.setattr(tautochrone.app.open, "Project", project)
        status = main(arguments)
    return subprocess.CompletedProcess(arguments, status, stdout.getvalue(), stderr.getvalue())

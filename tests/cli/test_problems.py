"""Errors as people see them: on a terminal, in a pipe, with and without --debug."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from .terminal import on_terminal

ERROR = """
    from tautochrone.cli.problems import report
    from tautochrone.errors import DefinitionError, Excerpt
    report(DefinitionError("A_CLASS", "No [bold]such[/bold] column", location="t/a.sql:4", sqlstate="42703",
        hint="spell it right", excerpt=Excerpt("SELECT nme " + "-- " * 40, 4, 7, 3)))
"""


def test_terminal_gets_colours_and_whole_lines() -> None:
    sent = on_terminal(ERROR, {})
    assert "\x1b[1;31m[A_CLASS]" in sent
    assert re.search(r"\x1b\[1;31m[ |]+\^\^\^", sent)
    plain = re.sub(r"\x1b\[[\d;]*m", "", sent).replace("\r\n", "\n").splitlines()
    assert plain[0] == "[A_CLASS] No [bold]such[/bold] column. SQLSTATE: 42703; t/a.sql:4"
    assert plain[1].startswith("    4 | SELECT nme --")
    assert plain[2:] == ["      |        ^^^", "  hint: spell it right"]


def test_no_color() -> None:
    assert not re.search(r"\x1b\[[\d;]*3\d", on_terminal(ERROR, {"NO_COLOR": "1"}))
    assert "\x1b" not in on_terminal(ERROR, {"TERM": "dumb"})


@pytest.mark.parametrize("debug", [False, True])
def test_a_traceback_only_for_debug(tmp_path: Path, debug: bool) -> None:
    command = [sys.executable, "-m", "tautochrone.cli.main", "run", *(["--debug"] if debug else [])]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "[PIPELINE_SPEC_FILE_NOT_FOUND]" in done.stderr
    assert ("Traceback" in done.stderr) is debug
    assert done.stdout == ""

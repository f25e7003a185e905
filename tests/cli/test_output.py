"""What a command writes: its answer on standard output whatever else writes there, events as text, and errors
as people see them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tautochrone.cli.output import failures, json_events, line_events, show
from tautochrone.model import events
from tautochrone.model.reason import unclassified

from .run_events import BY_KEY, FLOW_FAILED, FLOW_RESTARTED, REFRESH, refresh_failed
from .terminal import on_terminal


def _run(code: str) -> tuple[str, str]:
    """Standard output and standard error of a Python program."""
    program = textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout, done.stderr


def test_only_answers_reach_standard_output() -> None:
    out, err = _run("""
        import logging, os, subprocess, sys, threading
        from tautochrone.cli.output import json_line, stdout_reserved

        with stdout_reserved():
            print("a print")
            logging.basicConfig(stream=sys.stdout)
            logging.warning("a log line")
            os.write(1, b"a library\\n")
            subprocess.run(["echo", "a sub-process"], check=True)
            thread = threading.Thread(target=print, args=("a thread",))
            thread.start()
            thread.join()
            json_line({"event": "run"})
        print("after the command")
    """)
    assert out == '{"event": "run"}\nafter the command\n'
    writers = ("a print", "a log line", "a library", "a sub-process", "a thread")
    assert [writer for writer in writers if writer not in err] == []


def test_new_program_image_gets_standard_output_back() -> None:
    out, _err = _run("""
        import os, sys
        from tautochrone.cli.output import answer, release_stdout, stdout_reserved

        with stdout_reserved():
            answer().write("before\\n")
            release_stdout()
            os.execv(sys.executable, [sys.executable, "-c", "print('after')"])
    """)
    assert out == "before\nafter\n"


def test_command_works_with_standard_output_closed() -> None:
    code = (
        "from tautochrone.cli.main import entry; import sys; sys.argv = ['taut', 'config', '--json']; entry()"
    )
    done = subprocess.run(
        ["sh", "-c", '"$0" -c "$1" >&-', sys.executable, code], capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr


def test_reader_of_a_pipe_may_end_early() -> None:
    command = '"$0" -c "$1" | true'
    code = """
import time
from tautochrone.cli.output import answer, stdout_reserved

with stdout_reserved():
    time.sleep(0.5)
    answer().write("a line\\n")
"""
    done = subprocess.run(
        ["sh", "-c", command, sys.executable, code], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""


def test_texts_of_events(capsys: pytest.CaptureFixture[str]) -> None:
    line_events(REFRESH)
    line_events(events.NoNews(checkpoint=1, duration_ms=3))
    line_events(FLOW_FAILED)
    line_events(FLOW_RESTARTED)
    text = capsys.readouterr()
    assert text.out == ""
    refresh, flow, hint, again, restarted = text.err.splitlines()
    assert refresh.split() == [
        "default.by_key",
        "INCREMENTAL",
        "+1,203",
        "-17",
        "rows",
        "0.8",
        "s",
        "(cheaper)",
    ]
    assert flow.strip() == "flow events FAILED: [X] gone."
    assert hint.strip() == "hint: bring it back"
    assert again.strip() == "it is started again in 4 s"
    assert restarted.strip() == "flow events started again (attempt 2)"


def test_quiet_shows_only_failures(capsys: pytest.CaptureFixture[str]) -> None:
    failures(REFRESH)
    failures(events.Run(state="FAILED", problems=[BY_KEY]))
    failures(refresh_failed("[X] y."))
    text = capsys.readouterr()
    assert text.out == ""
    assert text.err.strip() == f"{BY_KEY} FAILED at checkpoint 2: [X] y."


def test_an_empty_table_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    show([], ("pin", "owner"), as_json=False, empty="no checkpoint is pinned")
    assert capsys.readouterr().out == "no checkpoint is pinned\n"
    show([], ("pin", "owner"), as_json=True, empty="no checkpoint is pinned")
    assert capsys.readouterr().out == ""
    show([], ("pin", "owner"), as_json=False)
    assert capsys.readouterr().out.split() == ["pin", "owner", "---", "-----"]


def test_json_is_one_object_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    json_events(events.CleanupFailed(dataset=BY_KEY, error="two\nlines é"))
    text = capsys.readouterr()
    assert text.err == ""
    assert [json.loads(line) for line in text.out.splitlines()] == [
        {"event": "cleanup_failed", "dataset": BY_KEY, "error": "two\nlines é"}
    ]


def test_unreadable_checkpoint_is_shown_with_failures(capsys: pytest.CaptureFixture[str]) -> None:
    failures(
        events.CheckpointLeft(
            checkpoint=None,
            error_class="CHECKPOINT_NOT_READABLE",
            job="shop",
            jobs=["sums"],
            invariants=[],
            reason=unclassified("job sums isn't running"),
        )
    )
    text = capsys.readouterr().err
    assert "[CHECKPOINT_NOT_READABLE]" in text
    assert "job sums isn't running" in text


ERROR = """
    from tautochrone.cli.output import report
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

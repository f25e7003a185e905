"""Standard output carries a command's answer, whatever else writes to it."""

from __future__ import annotations

import subprocess
import sys
import textwrap


def _run(code: str) -> tuple[str, str]:
    """Standard output and standard error of a Python program."""
    program = textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout, done.stderr


def test_only_answers_reach_standard_output() -> None:
    out, err = _run("""
        import logging, os, subprocess, sys, threading
        from tautochrone.cli import stdout
        from tautochrone.cli.output import json_line

        with stdout.reserved():
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
        from tautochrone.cli import stdout

        with stdout.reserved():
            stdout.answer().write("before\\n")
            stdout.give_back()
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
from tautochrone.cli import stdout

with stdout.reserved():
    time.sleep(0.5)
    stdout.answer().write("a line\\n")
"""
    done = subprocess.run(
        ["sh", "-c", command, sys.executable, code], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""

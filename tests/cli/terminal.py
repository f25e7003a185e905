"""A pseudo-terminal for tests, and a screen that interprets its output."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import textwrap
from collections.abc import Mapping

ROWS, COLUMNS = 12, 90


class Screen:
    """The parts of a terminal that the display needs: printing, line feeds, cursor up, erase line."""

    def __init__(self) -> None:
        self.lines: list[str] = [""]
        self._row = self._column = 0

    def feed(self, text: str) -> None:
        for part in re.findall(r"\x1b\[\??[\d;]*[A-Za-z]|\r|\n|[^\x1b\r\n]+|.", text):
            if part == "\r":
                self._column = 0
            elif part == "\n":
                self._row += 1
                self.lines += [""] * (self._row + 1 - len(self.lines))
            elif part.startswith("\x1b"):
                count = int(re.sub(r"\D", "", part) or 1)
                if part[-1] == "A":
                    self._row = max(0, self._row - count)
                elif part[-1] == "K":
                    self.lines[self._row] = ""
                else:
                    assert part[-1] in "mhl", f"the screen does not know {part!r}"
            else:
                line = self.lines[self._row].ljust(self._column)
                self.lines[self._row] = line[: self._column] + part + line[self._column + len(part) :]
                self._column += len(part)


def on_terminal(code: str, environment: Mapping[str, str]) -> str:
    """Run Python with stderr on a terminal; every byte that reached the terminal."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    # The parent process may have settings of its own terminal.
    terminal_variables = ("NO_COLOR", "FORCE_COLOR", "CI", "LINES", "COLUMNS")
    environment_without = {key: value for key, value in os.environ.items() if key not in terminal_variables}
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.DEVNULL,
        stderr=slave,
        env={**environment_without, "TERM": "xterm-256color", **environment},
    )
    os.close(slave)
    seen = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # Linux: no process has the terminal open any more
            break
        if not part:
            break
        seen += part
    os.close(master)
    text = seen.decode()
    assert process.wait(60) == 0, text
    return text

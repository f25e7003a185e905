"""`taut` as a real process, for tests that kill it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tautochrone.model.closeable import Closeable

__all__ = ["TautProcess"]


class TautProcess(Closeable):
    """`taut run` with `--json`; its events are collected while it runs. A context manager: no process
    outlives the test."""

    def __init__(self, spec: Path, *arguments: str) -> None:
        command = [sys.executable, "-m", "tautochrone.cli.main", "run", "--spec", str(spec), "--json"]
        self.events: list[dict[str, Any]] = []
        self.other_lines: list[str] = []
        """What it wrote to stdout besides; a line may be cut off by a kill."""
        self._errors = (spec.parent / f"taut-{time.monotonic_ns()}.log").open("w+")
        self._process = subprocess.Popen(
            [*command, *arguments], cwd=spec.parent, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def wait_for(self, condition: Callable[[list[dict[str, Any]]], object], timeout_s: float = 400) -> None:
        """Until the events so far fulfil the condition.

        Raises:
            AssertionError: the process ended before, or the time is over.
        """
        deadline = time.monotonic() + timeout_s
        while not condition(list(self.events)):
            assert self._process.poll() is None, self.output()
            assert time.monotonic() < deadline, f"{timeout_s} s are over: {self.output()}"
            time.sleep(0.02)

    def count(self, event: str) -> int:
        return sum(entry["event"] == event for entry in list(self.events))

    def kill(self) -> None:
        """SIGKILL: it gets no chance to finish anything."""
        self._process.kill()
        self._process.wait()

    def stop(self, timeout_s: float = 120) -> int:
        """SIGINT, as Ctrl-C; the exit code."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        return self._process.wait(timeout_s)

    def output(self) -> str:
        """The end of its output, for assertion messages."""
        self._errors.flush()
        text = Path(self._errors.name).read_text(errors="replace")
        counts = Counter(str(entry["event"]) for entry in list(self.events))
        errors = [entry for entry in list(self.events) if "error" in entry][-3:]
        return f"{dict(counts)}\n{errors}\n{self.events[-5:]}\n{text[-3000:]}"

    def close(self) -> None:
        """Kill the process if it still runs."""
        if self._process.poll() is None:
            self.kill()
        self._listener.join(10)
        self._errors.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                self.events.append(json.loads(line))
            except json.JSONDecodeError:
                self.other_lines.append(line)
        self._process.stdout.close()

"""`taut` as a child process: its JSON lines as values and as lines for people."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tautochrone.model.reason import ReasonCode

__all__ = ["Run", "describe", "taut", "verify"]

Event = Mapping[str, Any]


def taut(*arguments: str) -> list[str]:
    """The command line of `taut`, from the environment of this interpreter."""
    script = Path(sys.executable).with_name("taut")
    start = [str(script)] if script.exists() else [sys.executable, "-m", "tautochrone.cli.main"]
    return [*start, *arguments]


def describe(event: Event) -> str | None:
    """A line for people; None for events without interest."""
    kind = event.get("event")
    if kind == "refresh":
        mode = str(event.get("mode"))
        if mode == "no_data":
            return None
        name = str(event.get("dataset")).rsplit(".", 1)[-1]
        rows = f"+{event.get('rows_inserted') or 0:,} -{event.get('rows_deleted') or 0:,}"
        seconds = (event.get("duration_ms") or 0) / 1000
        reason = f"  {event['reason']}" if event.get("reason") and mode in ("diff", "full") else ""
        return f"refresh     {name:<22} {mode:<12} {rows:>18} {seconds:6.1f} s{reason}"
    if kind == "checkpoint":
        return f"checkpoint  {event.get('checkpoint')}"
    if kind == "run":
        return f"run         {event.get('state')}"
    return None


class Run:
    """A `taut run` with what its events have reported so far. Its stderr goes to a log file."""

    def __init__(self, arguments: Sequence[str], log: Path, say: Callable[[str], None] = print) -> None:
        self.modes: Counter[str] = Counter()
        self.fell_back: list[str] = []
        self.checkpoint: int | None = None
        self.state: str | None = None
        self._say = say
        with log.open("ab") as errors:
            # A process session of its own: Ctrl-C reaches only the demo, which then stops the run in order,
            # and one signal can kill Python and the JVM together.
            self._process = subprocess.Popen(
                taut("run", *arguments, "--json"),
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                self._say(line.rstrip())
                continue
            self._take(event)

    def _take(self, event: Event) -> None:
        kind = event.get("event")
        if kind == "refresh":
            self.modes[str(event.get("mode"))] += 1
            if event.get("reason_code") == ReasonCode.INCREMENTAL_FAILED:
                self.fell_back.append(f"{event['dataset']} was compared: {event['reason']}")
        elif kind == "checkpoint":
            self.checkpoint = int(event["checkpoint"])
        elif kind == "run":
            self.state = str(event.get("state"))
        line = describe(event)
        if line:
            self._say(line)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def wait(self, seconds: float) -> int:
        """The exit code; a run that takes longer is killed and counts as failed."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._say(f"run         no end after {seconds:.0f} s, killed")
            self.kill()
            code = 1
        self._reader.join(5)
        return code

    def stop(self, seconds: float = 90) -> int:
        """End it in order, as Ctrl-C does; 0 when it did so."""
        if self.alive:
            self._process.send_signal(signal.SIGINT)
        code = self.wait(seconds)
        # 130 is the exit code of a process that ended by Ctrl-C.
        return 0 if code == 128 + signal.SIGINT else code

    def kill(self) -> None:
        """Kill Python and the JVM at once."""
        if self.alive:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def verify(spec: Path, log: Path, seconds: float = 300) -> tuple[int, list[Event]]:
    """Exit code and findings of `taut verify`, one finding per view.

    Raises:
        subprocess.TimeoutExpired: it took longer than `seconds`.
    """
    command = taut("verify", "--spec", str(spec), "--json")
    with log.open("ab") as errors:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, timeout=seconds, check=False
        )
    findings: list[Event] = []
    for line in done.stdout.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and "equal" in event:
            findings.append(event)
    return done.returncode, findings

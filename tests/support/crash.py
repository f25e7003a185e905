"""Killing, pausing and restarting `taut run` as a real process.

Nothing here waits by the clock: a process is waited for until it ends, or until the kernel says that it
stopped. It must never know what a pipeline computes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from tautochrone.model.effects import Step
from tautochrone.runtime.job.effects import FAULT_VARIABLE

__all__ = ["Ended", "Running", "Taut", "fault"]

# In a run of a few seconds the optimising compiler costs more time than it saves.
_QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"


def fault(step: Step, when: str, action: str, *, on: str | None = None, nth: int = 1) -> str:
    """A fault in the text form of `TAUTOCHRONE_FAULT`."""
    return f"{step}{'' if on is None else f'@{on}'}:{when}:{action}:{nth}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A process that is over. `status` is negative for the signal that killed it."""

    status: int
    events: Sequence[dict[str, Any]]
    stderr: str

    @property
    def killed(self) -> bool:
        return self.status == -signal.SIGKILL

    def require_killed(self, fault: str) -> None:
        """The fault must have struck: one that is never reached proves nothing."""
        assert self.killed, f"{fault} was not reached: exit {self.status}\n{self.describe()}"

    def require_ok(self) -> None:
        assert self.status == 0, f"exit {self.status}\n{self.describe()}"

    def named(self, event: str) -> list[dict[str, Any]]:
        return [entry for entry in self.events if entry["event"] == event]

    def describe(self) -> str:
        event_lines = "\n".join(json.dumps(event) for event in self.events)
        return f"--- events\n{event_lines}\n--- stderr\n{self.stderr[-4000:]}"


class Running:
    """A process that was started and not yet waited for."""

    def __init__(self, process: subprocess.Popen[bytes], stdout: Path, stderr: Path) -> None:
        self._process = process
        self._stdout = stdout
        self._stderr = stderr

    @property
    def pid(self) -> int:
        return self._process.pid

    def count(self, event: str) -> int:
        """How often the process has emitted `event` so far."""
        return sum(entry["event"] == event for entry in self._events())

    def wait_for(self, event: str, times: int = 1) -> None:
        """Until the process has emitted `event` so often; it must not end before."""
        while self.count(event) < times:
            if not self.lives_for(0.05) and self.count(event) < times:
                raise AssertionError(f"{event} was not emitted\n{self.wait().describe()}")

    def _events(self) -> list[dict[str, Any]]:
        # The line that a killed process was about to write may be torn.
        lines = self._stdout.read_text().splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]

    def wait_until_stopped(self) -> None:
        """Until a `pause` fault stopped it. (SIGSTOP reaches Python only; its JVM waits for it.)"""
        _, status = os.waitpid(self._process.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            self._process.returncode = os.waitstatus_to_exitcode(status)
            raise AssertionError(f"the pause was not reached\n{self.wait().describe()}")

    def lines(self) -> list[str]:
        """What it has written to stdout so far."""
        return self._stdout.read_text().splitlines()

    def resume(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def terminate(self) -> None:
        """Ask for an orderly end."""
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def lives_for(self, seconds: float) -> bool:
        """Whether it is still there after that time; the one place where the clock is the point."""
        try:
            self._process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return True
        return False

    def wait(self) -> Ended:
        status = self._process.wait()
        return Ended(status=status, events=self._events(), stderr=self._stderr.read_text())

    def release(self) -> None:
        """End what is left of the process and of the JVM that it started."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        finally:
            self._process.wait()


class Taut:
    """The command line of one project, in processes of its own."""

    def __init__(self, project: Path, logs: Path) -> None:
        self._project = project
        self._logs = logs
        self.starts = 0

    @contextmanager
    def start(self, *arguments: str, fault: str | None = None) -> Iterator[Running]:
        """`taut run --json` in a process group of its own, which is gone when the context ends."""
        self.starts += 1
        name = f"{self.starts:03d}-{uuid4().hex[:6]}"
        stdout, stderr = self._logs / f"{name}.out", self._logs / f"{name}.err"
        environment = {**os.environ, "JAVA_TOOL_OPTIONS": _QUICK_JVM}
        environment.pop(FAULT_VARIABLE, None)
        if fault is not None:
            environment[FAULT_VARIABLE] = fault
        command = [sys.executable, "-m", "tautochrone.cli.main", "run", "--json", *arguments]
        with stdout.open("wb") as out, stderr.open("wb") as err:
            process = subprocess.Popen(
                command,
                cwd=self._project,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        running = Running(process, stdout, stderr)
        try:
            yield running
        finally:
            running.release()

    def run(self, *arguments: str, fault: str | None = None) -> Ended:
        """Start and wait."""
        with self.start(*arguments, fault=fault) as running:
            return running.wait()

    def killed(self, fault: str, *arguments: str) -> Ended:
        """A run that must die by `fault`."""
        ended = self.run(*arguments, fault=fault)
        ended.require_killed(fault)
        return ended

"""Two runs of one job: what this process says of itself, and whether it waits for the other run or ends it.

A machine is told by its boot and its namespace of process ids: two containers may share a host name, and a
process id means nothing in another one's. Where that is not known, nobody is ever taken for gone, and a
dead owner keeps its job until its lease ends.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from tautochrone.errors import MetaError
from tautochrone.meta.store import MetaStore
from tautochrone.model.events import Emit
from tautochrone.model.jobs import Claim, RunProcess

__all__ = ["Ownership", "is_gone", "process_of", "this_machine"]

T = TypeVar("T")

_PROC = Path("/proc")
_POLL_S = 0.25


def this_machine() -> str | None:
    """This boot of this machine and the namespace of its process ids; None where they are not known."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        namespace = str((_PROC / "self/ns/pid").readlink())
    except OSError:
        return None
    # Machines that were copied while they ran share the rest.
    return f"{_machine_id()}/{socket.gethostname()}/{boot}/{namespace}" if boot else None


def _machine_id() -> str:
    try:
        return Path("/etc/machine-id").read_text().strip()
    except OSError:
        # Many containers have none; the boot and the namespace are enough there.
        return ""


def process_of(run: str) -> RunProcess:
    """This process, as the one that carries out `run`."""
    pid = os.getpid()
    known = _stat(pid)
    return RunProcess(
        run=run,
        host=socket.gethostname(),
        pid=pid,
        machine=this_machine(),
        started=None if known is None else known.started,
    )


def is_gone(process: RunProcess) -> bool:
    """Whether the process has ended for certain: it ran here, and nothing here is it any more."""
    if process.pid is None or process.machine is None or process.machine != this_machine():
        return False
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        # It is there and somebody else's: its start says whether it is the same.
        pass
    known = _stat(process.pid)
    if known is None:
        return False
    reused = process.started is not None and known.started != process.started
    return reused or known.over


@dataclass(frozen=True, slots=True)
class _Stat:
    started: int
    over: bool


def _stat(pid: int) -> _Stat | None:
    """What the kernel says of a process; None where it says nothing."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    # The name before may hold anything, blanks and parentheses too.
    fields = text.rpartition(")")[2].split()
    state, threads, started = fields[0], int(fields[17]), int(fields[19])
    # One that nobody has asked for its exit status yet; threads that outlive the first one still work.
    return _Stat(started, over=state in ("Z", "X") and threads <= 1)


@dataclass(slots=True)
class Ownership:
    """How a command becomes the owner of jobs.

    Args:
        takeover: fence off whoever runs a job.
        wait_ms: so long an owner that is alive is waited for; 0: not at all, None: until it has ended.
        gone: whether the process of an owner has ended for certain.
    """

    takeover: bool = False
    wait_ms: int | None = 0
    run: str = field(default_factory=lambda: uuid4().hex)
    cancelled: threading.Event = field(default_factory=threading.Event)
    gone: Callable[[RunProcess], bool] = is_gone
    _until: float | None = None

    def claim(self, store: MetaStore, job: str) -> Claim:
        """The claim to a job, with what can be seen of its owner from here."""
        owner = store.owner_process(job)
        gone = owner.run if owner is not None and self.gone(owner) else None
        return Claim(process=process_of(self.run), takeover=self.takeover, gone=gone)

    def require_free(self, store: MetaStore, job: str, emit: Emit) -> None:
        """Return when nobody else runs the job, or this run may end who does.

        Raises:
            MetaError: `JOB_RUNNING`, another run has it, and the time to wait is over.
        """
        self.claimed(store, job, emit, lambda claim: store.require_free(job, claim))

    def claimed(self, store: MetaStore, job: str, emit: Emit, take: Callable[[Claim], T]) -> T:
        """The answer of `take`, as soon as the job is free for it.

        Raises:
            MetaError: `JOB_RUNNING`, as of `require_free`.
        """
        told: str | None = None
        while True:
            claim = self.claim(store, job)
            try:
                return take(claim)
            except MetaError as error:
                if error.error_class != "JOB_RUNNING" or not self._may_wait():
                    raise
                said = error.parameters
                if said.get("owner") != told:
                    told = said.get("owner")
                    emit(
                        "waiting_for_run",
                        job=job,
                        owner=told,
                        host=said.get("host"),
                        pid=int(said["pid"]) if "pid" in said else None,
                        since_ms=int(said["since_ms"]) if said.get("since_ms") else None,
                        checkpoint=int(said["checkpoint"]) if "checkpoint" in said else None,
                        wait_ms=self.wait_ms,
                        reason=error.message,
                    )
            if self.cancelled.wait(_POLL_S):
                # Asked to end while it waits: the next try is the last.
                self.wait_ms = 0

    def _may_wait(self) -> bool:
        if self.wait_ms is None:
            return True
        if self._until is None:
            self._until = time.monotonic() + self.wait_ms / 1000
        return self.wait_ms > 0 and time.monotonic() < self._until

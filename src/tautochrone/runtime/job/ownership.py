"""Ownership of a job: a run waits for another run of it or ends that run, and then keeps its own lease.

A process is identified by the machine's boot and its namespace of process ids, because two containers may
share a host name and use the same process ids. Where these are unknown, no process is taken for dead, and a
dead owner keeps its job until its lease ends.

The lease only decides how long other jobs wait. A heartbeat that is lost or late changes no data, so it is no
durable step.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from tautochrone.errors import FencedError, MetaError, TautochroneError
from tautochrone.meta import Store
from tautochrone.model import events
from tautochrone.model.closeable import Closeable
from tautochrone.model.jobs import Claim, RunProcess
from tautochrone.model.names import CheckpointNumber, TableName
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.run_report import RunEnd, RunReport
from tautochrone.runtime.job.journal import Journal
from tautochrone.runtime.job.monitor import RunMonitor
from tautochrone.traces import trace_of

__all__ = ["Heartbeat", "Ownership", "has_ended", "process_of", "this_machine"]

T = TypeVar("T")

_PROC = Path("/proc")
_POLL_S = 0.25
_NEWS_S = 1.0
"""How soon the store learns what the run says of itself."""


def this_machine() -> str | None:
    """This boot of this machine and the namespace of its process ids; None where they are not known."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        namespace = str((_PROC / "self/ns/pid").readlink())
    except OSError:
        return None
    # Copies of a running machine share everything but the machine id.
    return f"{_machine_id()}/{socket.gethostname()}/{boot}/{namespace}" if boot else None


def _machine_id() -> str:
    try:
        return Path("/etc/machine-id").read_text().strip()
    except OSError:
        # Many containers have none; there boot and namespace suffice.
        return ""


def process_of(run: str) -> RunProcess:
    """This process as the owner `run`."""
    pid = os.getpid()
    stat = _stat(pid)
    return RunProcess(
        run=run,
        host=socket.gethostname(),
        pid=pid,
        machine=this_machine(),
        started=None if stat is None else stat.started,
    )


def has_ended(process: RunProcess) -> bool:
    """Whether the process certainly ended: it ran on this machine and does not exist any more."""
    if process.pid is None or process.machine is None or process.machine != this_machine():
        return False
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        # A process of another user has this id; its start time tells whether it is the same process.
        pass
    stat = _stat(process.pid)
    if stat is None:
        return False
    reused = process.started is not None and stat.started != process.started
    return reused or stat.has_ended


@dataclass(frozen=True, slots=True)
class _Stat:
    started: int
    has_ended: bool


def _stat(pid: int) -> _Stat | None:
    """The kernel's record of a process; None where there is none."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    # The process name before it may contain blanks and parentheses.
    fields = text.rpartition(")")[2].split()
    state, threads, started = fields[0], int(fields[17]), int(fields[19])
    # A zombie has ended, unless other threads outlive its main thread.
    return _Stat(started, has_ended=state in ("Z", "X") and threads <= 1)


@dataclass(slots=True)
class Ownership:
    """How a command becomes the owner of jobs.

    Args:
        takeover: fence off whoever runs a job.
        wait_ms: how long to wait for a living owner, in milliseconds; 0: not at all; None: until it ends.
        has_ended: whether an owner's process certainly ended.
    """

    takeover: bool = False
    wait_ms: int | None = 0
    run: str = field(default_factory=lambda: uuid4().hex)
    cancelled: threading.Event = field(default_factory=threading.Event)
    has_ended: Callable[[RunProcess], bool] = has_ended
    _until: float | None = None

    def claim(self, store: Store, job: str) -> Claim:
        """A claim to the job, which says whether its owner is known to be dead."""
        owner = store.jobs.owner_process(job)
        dead_run = owner.run if owner is not None and self.has_ended(owner) else None
        return Claim(process=process_of(self.run), takeover=self.takeover, ended_run=dead_run)

    def require_free(self, store: Store, job: str, emit: events.Emit) -> None:
        """Return when no other run has the job, or when this run may fence it off.

        Raises:
            MetaError: `JOB_RUNNING`, another run has it, and the time to wait is over.
        """
        self.claim_when_free(store, job, emit, lambda claim: store.jobs.require_free(job, claim))

    def claim_when_free(self, store: Store, job: str, emit: events.Emit, take: Callable[[Claim], T]) -> T:
        """Call `take` until the job is free, and return its result.

        Raises:
            MetaError: `JOB_RUNNING`, as of `require_free`.
        """
        return self.when_free(emit, lambda: take(self.claim(store, job)))

    def when_free(self, emit: events.Emit, attempt: Callable[[], T]) -> T:
        """Call `attempt` until it raises no `JOB_RUNNING` more, and return its result.

        Raises:
            MetaError: `JOB_RUNNING`, as of `require_free`.
        """
        reported: str | None = None
        while True:
            try:
                return attempt()
            except MetaError as error:
                if error.error_class != "JOB_RUNNING" or not self._may_wait():
                    raise
                details = error.parameters
                if details.get("owner") != reported:
                    reported = details.get("owner")
                    emit(
                        events.WaitingForRun(
                            job=details["job"],
                            owner=reported,
                            host=details.get("host"),
                            pid=int(details["pid"]) if "pid" in details else None,
                            since_ms=int(details["since_ms"]) if details.get("since_ms") else None,
                            checkpoint=int(details["checkpoint"]) if "checkpoint" in details else None,
                            wait_ms=self.wait_ms,
                            reason=Reason.of(
                                ReasonCode.JOB_HAS_RUNNING_OWNER,
                                error_class=error.error_class,
                                text=error.message,
                            ),
                        )
                    )
            if self.cancelled.wait(_POLL_S):
                # The run was stopped while it waits: the next try is the last one.
                self.wait_ms = 0

    def is_over(self, job: str, running: str, process: RunProcess | None) -> bool:
        """Whether the owner of `job` need not wait for a run of the job `running` whose lease lasts."""
        return (self.takeover and running == job) or (process is not None and self.has_ended(process))

    def _may_wait(self) -> bool:
        if self.wait_ms is None:
            return True
        if self._until is None:
            self._until = time.monotonic() + self.wait_ms / 1000
        return self.wait_ms > 0 and time.monotonic() < self._until


class Heartbeat(Closeable):
    """Renews the lease three times per lease period, in its own thread, from `start` until `close`. What the
    run says of itself goes with it, and once per second when it has something new to say.

    Args:
        monitor: collects what the run says of itself; None: it is no run but a command that owns the job.
    """

    def __init__(
        self, journal: Journal, lease_ms: int, emit: events.Emit, monitor: RunMonitor | None = None
    ) -> None:
        self._journal = journal
        self._lease_ms = lease_ms
        self._emit = emit
        self._monitor = monitor
        self._end = None if monitor is None else RunEnd()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tautochrone-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def failed(self, error: BaseException) -> None:
        """The run ends by this error, and leaves work undone. `close` says so."""
        self._end = RunEnd.by(error)

    def close(self) -> None:
        """Return the lease, so that other jobs need not wait for its end. May be called again."""
        if not self._stopping.is_set():
            self._stopping.set()
            if self._thread.is_alive():
                self._thread.join(timeout=30)
            if self._journal.fence == 0:
                # This run never owned the job; the lease belongs to another run.
                return
            journal, report = self._journal, self._new_report()
            self._send(lambda: journal.store.jobs.end_run(journal.name, journal.fence, self._end, report))

    def report_no_news(
        self, observed_ms: int, observations: Mapping[TableName, int], checkpoint: CheckpointNumber | None
    ) -> None:
        """Renew the lease and record that `checkpoint` shows all that was observed; see `Jobs.heartbeat`."""
        journal = self._journal
        self._send(
            lambda: journal.store.jobs.heartbeat(
                journal.name,
                journal.fence,
                self._lease_ms,
                observed_ms=observed_ms,
                observations=observations,
                checkpoint=checkpoint,
            )
        )

    def _run(self) -> None:
        journal, every_s = self._journal, self._lease_ms / 3000
        due = time.monotonic() + every_s
        while not self._stopping.wait(min(_NEWS_S, every_s)):
            report = self._new_report()
            if report is None and time.monotonic() < due:
                continue
            due = time.monotonic() + every_s
            self._send(
                partial(
                    journal.store.jobs.heartbeat, journal.name, journal.fence, self._lease_ms, report=report
                )
            )

    def _new_report(self) -> RunReport | None:
        return None if self._monitor is None else self._monitor.new_report()

    def _send(self, request: Callable[[], None]) -> None:
        try:
            request()
        except FencedError:
            # A newer owner exists. The loop notices at its next durable step, and ends.
            self._stopping.set()
        except TautochroneError as error:
            self._report_missed(error.error_class, str(error))
        except Exception as error:
            # The thread must go on, or other jobs take this one for dead.
            error_class = type(error).__name__
            self._report_missed(error_class, f"{error_class}: {error} ({trace_of(error, 'heartbeat')})")

    def _report_missed(self, error_class: str, text: str) -> None:
        reason = Reason.of(ReasonCode.LEASE_NOT_RENEWED, error_class=error_class, text=text)
        self._emit(events.HeartbeatMissed(job=self._journal.name, reason=reason))

"""Whether the process of a run is gone, and how long another one waits for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tautochrone.errors import MetaError
from tautochrone.meta import DatasetEntry, MetaStore, Store
from tautochrone.model.events import Emit, Event, WaitingForRun
from tautochrone.model.jobs import RunProcess
from tautochrone.model.names import Fence, TableName
from tautochrone.runtime.job.ownership import Ownership, has_ended, process_of, this_machine

pytestmark = pytest.mark.skipif(this_machine() is None, reason="this system does not name its boots")


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, text=True)
    yield started
    started.kill()
    started.wait()
    assert started.stdin is not None
    started.stdin.close()


def ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def of(pid: int) -> RunProcess:
    return replace(process_of("r"), pid=pid, started=ticks(pid))


def test_this_process_is_not_gone() -> None:
    assert not has_ended(process_of("r"))


def test_a_stopped_process_is_there_a_killed_one_is_gone(child: subprocess.Popen[str]) -> None:
    process = of(child.pid)
    os.kill(child.pid, signal.SIGSTOP)
    assert not has_ended(process)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert has_ended(process), "it waits for nobody but whoever asks for its exit status"
    child.wait()
    assert has_ended(process)


def test_another_process_under_the_same_id_is_not_it(child: subprocess.Popen[str]) -> None:
    assert has_ended(replace(of(child.pid), started=ticks(child.pid) - 1))
    assert not has_ended(replace(of(child.pid), started=None)), "nobody knows whether it is the same"


def test_a_process_of_somebody_else_is_there() -> None:
    assert not has_ended(replace(of(1), started=ticks(1)))


def test_process_on_another_machine_never_counts_as_ended(child: subprocess.Popen[str]) -> None:
    """Another machine, a container of the same host name, another boot, or a system that says nothing."""
    process = of(child.pid)
    child.kill()
    child.wait()
    machine = str(this_machine())
    for machine_id in (None, f"{machine}x", machine.rpartition("/")[0] + "/pid:[1]"):
        assert not has_ended(replace(process, machine=machine_id))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with MetaStore.open(f"sqlite:///{tmp_path}/meta.db") as opened:
        yield opened


def ignore(_event: Event) -> None:
    """For events that no test looks at."""


def begin(store: Store, ownership: Ownership, emit: Emit) -> Fence:
    entry = DatasetEntry(TableName("lake", ("db",), "t"), "streaming table", "x", is_root=True)
    ownership.claim_when_free(
        store, "job", emit, lambda claim: store.jobs.start_run("p", "job", [entry], claim=claim)
    )
    return store.jobs.take_over("job", claim=ownership.claim(store, "job"))


def test_a_run_whose_process_is_gone_is_replaced_at_once(
    store: Store, child: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = replace(of(child.pid), run="dead")
    with monkeypatch.context() as patched:
        patched.setattr("tautochrone.runtime.job.ownership.process_of", lambda _run: dead)
        begin(store, Ownership(run="dead"), ignore)
    with pytest.raises(MetaError, match=f"JOB_RUNNING.*process {child.pid}"):
        begin(store, Ownership(), ignore)
    child.kill()
    child.wait()
    assert begin(store, Ownership(), ignore) == 2


def test_waiting_until_the_other_has_ended(store: Store) -> None:
    first = begin(store, Ownership(), ignore)
    events: list[Event] = []
    is_waiting = threading.Event()
    ended = threading.Thread(target=lambda: (is_waiting.wait(30), store.jobs.end_run("job", first)))
    ended.start()

    def emit(event: Event) -> None:
        events.append(event)
        is_waiting.set()

    assert begin(store, Ownership(wait_ms=None), emit) == 2
    ended.join()
    (waited,) = events
    assert isinstance(waited, WaitingForRun)
    assert (waited.job, waited.pid) == ("job", os.getpid())


def test_waiting_has_an_end(store: Store) -> None:
    begin(store, Ownership(), ignore)
    events: list[Event] = []
    with pytest.raises(MetaError, match="JOB_RUNNING"):
        begin(store, Ownership(wait_ms=300), events.append)
    assert [type(event) for event in events] == [WaitingForRun]
    asked_to_end = Ownership(wait_ms=None)
    asked_to_end.cancelled.set()
    with pytest.raises(MetaError, match="JOB_RUNNING"):
        begin(store, asked_to_end, ignore)

"""The process of a service is killed between and inside the steps of transactions: each row is there once."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

import httpx
import pytest
from tests.support.ports import free_ports
from tests.support.stores import fresh_postgres

from tautochrone.metaservice.transactions import TransactionClient
from tautochrone.model.sink import TransactionState
from tautochrone.testing.toy_participant import CRASH_POINTS, ToyTarget

_S = TransactionState


class Supervisor:
    """Starts the service again whenever it dies."""

    def __init__(self, store_url: str, target: Path, crash: str) -> None:
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        module = "tautochrone.testing.toy_participant"
        self._command = [sys.executable, "-m", module, store_url, str(port), str(target), crash]
        self.starts = 0
        self._stopped = Event()
        self._start()
        self._thread = Thread(target=self._watch)
        self._thread.start()

    def wait_until_it_answers(self) -> None:
        while True:
            with suppress(httpx.TransportError):
                httpx.get(f"{self.url}/healthz", timeout=60)
                return
            time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        self.kill()

    def _start(self) -> None:
        self._process = subprocess.Popen(self._command)
        self.starts += 1

    def _watch(self) -> None:
        while not self._stopped.wait(0.02):
            if self._process.poll() is not None:
                self._start()


@contextmanager
def supervised(store_url: str, folder: Path, crash: str = "") -> Iterator[tuple[Supervisor, ToyTarget]]:
    target = folder / "target.db"
    supervisor = Supervisor(store_url, target, crash)
    try:
        yield supervisor, ToyTarget(target)
    finally:
        supervisor.stop()


def steps_of(
    client: TransactionClient, target: ToyTarget, transaction: str, *, commit: bool, participant: str
) -> list[Callable[[], object]]:
    """A program with two chunks, which commits or rolls back."""
    chunks = [target.stage(transaction, chunk, [int(chunk), 9]) for chunk in ("1", "2")]
    steps: list[Callable[[], object]] = [
        lambda: client.begin(transaction, participant=participant),
        lambda: client.write(transaction, chunks[0]),
        lambda: client.write(transaction, chunks[1]),
        lambda: client.prepare(transaction),
        lambda: client.commit(transaction) if commit else client.rollback(transaction),
    ]
    if participant == "client":
        steps += [
            lambda: target.show(transaction) if commit else target.drop(transaction),
            lambda: client.confirm(transaction),
        ]
    return steps


def wait_until_ended(client: TransactionClient, transaction: str) -> TransactionState:
    deadline = time.monotonic() + 60
    while (state := client.get(transaction).state) not in (_S.COMMITTED, _S.ABORTED):
        assert time.monotonic() < deadline, state
        time.sleep(0.05)
    return state


def check_crash_inside(folder: Path, store_url: str, crash: str) -> None:
    with (
        supervised(store_url, folder, crash) as (supervisor, target),
        TransactionClient(supervisor.url, owner="loader", fence=1) as client,
    ):
        commit = "rollback" not in crash
        for step in steps_of(client, target, "t", commit=commit, participant="toy"):
            step()
        assert wait_until_ended(client, "t") is (_S.COMMITTED if commit else _S.ABORTED)
        assert (target.rows(), target.staged()) == ([1, 2, 9, 9] if commit else [], [])
        assert len(client.get("t").chunks) == 2
        assert supervisor.starts == 2


def test_service_killed_after_its_participant_committed(tmp_path: Path) -> None:
    check_crash_inside(tmp_path, f"sqlite:///{tmp_path}/meta.db", "after commit")


@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
@pytest.mark.parametrize("crash", CRASH_POINTS)
def test_service_killed_inside_a_step(tmp_path: Path, crash: str, store: str) -> None:
    url = fresh_postgres() if store == "postgresql" else f"sqlite:///{tmp_path}/meta.db"
    check_crash_inside(tmp_path, url, crash)


@pytest.mark.slow
@pytest.mark.parametrize("participant", ["toy", "client"])
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "rollback"])
def test_service_killed_between_any_two_steps(tmp_path: Path, participant: str, commit: bool) -> None:
    with (
        supervised(f"sqlite:///{tmp_path}/meta.db", tmp_path) as (supervisor, target),
        TransactionClient(supervisor.url, owner="loader", fence=1) as client,
    ):
        count = 7 if participant == "client" else 5
        for killed_before in range(count):
            transaction = f"t{killed_before}"
            steps = steps_of(client, target, transaction, commit=commit, participant=participant)
            assert len(steps) == count
            for number, step in enumerate(steps):
                if number == killed_before:
                    supervisor.kill()
                step()
                step()  # as after a lost answer
            wait_until_ended(client, transaction)
        assert target.rows() == (sorted([1, 2, 9, 9] * count) if commit else [])
        assert target.staged() == []
        assert supervisor.starts >= count


@pytest.mark.slow
def test_service_killed_at_any_time_under_two_programs(tmp_path: Path) -> None:
    with supervised(f"sqlite:///{tmp_path}/meta.db", tmp_path) as (supervisor, target):
        ended = Event()

        def kill_again_and_again() -> None:
            for _ in range(5):
                supervisor.wait_until_it_answers()
                if ended.wait(0.5):
                    return
                supervisor.kill()

        killer = Thread(target=kill_again_and_again)
        killer.start()

        def drive(owner: str) -> None:
            with TransactionClient(supervisor.url, owner=owner, fence=1) as client:
                for number in range(60):
                    transaction = f"{owner}-{number}"
                    for step in steps_of(
                        client, target, transaction, commit=number % 2 == 0, participant="toy"
                    ):
                        step()
                    wait_until_ended(client, transaction)

        programs = [Thread(target=drive, args=(owner,)) for owner in ("one", "two")]
        for program in programs:
            program.start()
        for program in programs:
            program.join()
        ended.set()
        killer.join()
        assert target.rows() == sorted([1, 2, 9, 9] * 60)
        assert target.staged() == []
        assert supervisor.starts > 3

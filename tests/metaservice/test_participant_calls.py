"""A participant that does not answer holds up its own transactions, and nobody else's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import httpx
import pytest
from tests.metaservice.serving import serving

from tautochrone.errors import MetaError
from tautochrone.meta import MetaStore
from tautochrone.metaservice.app import create_app
from tautochrone.metaservice.coordinator import CALLS_AT_ONCE, CoordinatorLoop, TransactionCoordinator
from tautochrone.metaservice.http.access import Access, Role
from tautochrone.model.events import Event, TransactionParticipantSlow
from tautochrone.model.reason import ReasonCode
from tautochrone.model.sink import TransactionState
from tautochrone.model.transactions import CoordinatedTransaction, TransactionChunk, TransactionOperation

_S = TransactionState


class Target:
    """Does nothing, but only while it answers."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.answers.set()
        self.reached = 0
        self.at_once = self.most_at_once = 0
        self._lock = threading.Lock()

    def prepare(self, _transaction: CoordinatedTransaction, _chunks: Sequence[TransactionChunk]) -> None:
        with self._lock:
            self.reached += 1
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        answered = self.answers.wait(60)
        with self._lock:
            self.at_once -= 1
        assert answered

    commit = rollback = prepare


class Service:
    """A store, a coordinator with two participants, and what it told."""

    def __init__(self, folder: Path) -> None:
        self.store = MetaStore.open(f"sqlite:///{folder}/meta.db")
        self.away, self.healthy = Target(), Target()
        self.events: list[Event] = []
        participants = {"away": self.away, "healthy": self.healthy}
        self.coordinator = TransactionCoordinator(
            self.store,
            participants,
            emit=self.events.append,
            slow_s=0.2,
        )

    def decide(self, transaction: str, participant: str) -> None:
        """Commit it, without carrying it out."""
        self.store.transactions.begin(transaction, "loader", 1, 60_000, participant)
        self.store.transactions.commit(transaction, "loader", 1)

    def state(self, transaction: str) -> TransactionState:
        record = self.store.transactions.get(transaction)
        assert record is not None
        return record.state


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path)
    yield service
    service.away.answers.set()
    service.coordinator.join(10)
    service.store.close()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_participant_that_does_not_answer_delays_no_other_transaction(service: Service) -> None:
    service.away.answers.clear()
    service.decide("a-1", "away")
    service.decide("a-2", "away")
    service.decide("b-1", "healthy")
    with CoordinatorLoop(service.coordinator, interval_s=0.01):
        wait_until(lambda: service.state("b-1") is _S.COMMITTED)
        service.store.transactions.begin("c-1", "loader", 1, 1, "client")
        wait_until(lambda: service.state("c-1") is _S.ABORTING)
        service.decide("b-2", "healthy")
        wait_until(lambda: service.state("b-2") is _S.COMMITTED)
        wait_until(lambda: any(isinstance(event, TransactionParticipantSlow) for event in service.events))
        assert [service.state(transaction) for transaction in ("a-1", "a-2")] == [_S.COMMITTING] * 2
        assert service.away.reached == 1, "one thread waits for it"
        service.away.answers.set()
        wait_until(lambda: service.state("a-2") is _S.COMMITTED)
    # On a busy machine the next transaction may be slow too.
    reports = [event for event in service.events if isinstance(event, TransactionParticipantSlow)]
    slow = [event for event in reports if event.transaction == "a-1"]
    assert len(slow) == 1, "a minute has not passed"
    assert (slow[0].participant, slow[0].waiting) == ("away", 2)
    assert slow[0].reason.code is ReasonCode.TRANSACTION_PARTICIPANT_SLOW


def test_a_call_that_runs_does_not_delay_the_sweep(service: Service) -> None:
    service.away.answers.clear()
    service.decide("a-1", "away")
    call = threading.Thread(target=service.coordinator.commit, args=("a-1", "loader", 1))
    call.start()
    wait_until(lambda: service.away.reached == 1)
    service.decide("a-2", "away")
    assert [due.id for due in service.store.transactions.due()] == ["a-1", "a-2"]
    service.coordinator.sweep()
    wait_until(lambda: service.away.reached == 2)
    service.away.answers.set()
    call.join()
    wait_until(lambda: service.state("a-2") is _S.COMMITTED)
    assert service.state("a-1") is _S.COMMITTED


def test_programs_take_few_threads_for_one_participant(service: Service) -> None:
    app = create_app(
        access=Access(anonymous=Role.OPERATE), store=service.store, coordinator=service.coordinator
    )
    service.away.answers.clear()
    count = 42
    for number in range(count):
        service.store.transactions.begin(f"a-{number}", "loader", 1, 60_000, "away")
        service.store.transactions.prepare(f"a-{number}", "loader", 1)
    service.store.transactions.begin("a-new", "loader", 1, 60_000, "away")
    answers: list[str] = []
    run = {"owner": "loader", "fence": 1}
    # Certificates take longer to read than a call takes; each caller waits on a connection of its own.
    limits = httpx.Limits(max_connections=count + 3)
    with (
        serving(app) as url,
        httpx.Client(base_url=url, timeout=60, verify=False, limits=limits) as client,
    ):

        def commit(number: int) -> None:
            answer = client.post(f"/v1/transactions/a-{number}/commit", json=run)
            answers.append(answer.json()["state"])

        callers = [threading.Thread(target=commit, args=(number,)) for number in range(count)]
        for caller in callers:
            caller.start()
        wait_until(lambda: len(answers) == count - CALLS_AT_ONCE)
        assert set(answers) == {"committing"}
        begun = client.post("/v1/transactions/b/begin", json={**run, "participant": "healthy"}, timeout=20)
        assert begun.json()["state"] == "initialized"
        assert client.post("/v1/transactions/b/commit", json=run, timeout=20).json()["state"] == "committed"
        busy = client.post("/v1/transactions/a-new/commit", json=run, timeout=20)
        assert (busy.status_code, busy.json()["error_class"]) == (503, "TRANSACTION_BUSY")
        assert service.state("a-new") is _S.INITIALIZED
        assert service.away.most_at_once == CALLS_AT_ONCE
        service.away.answers.set()
        for caller in callers:
            caller.join()
    assert answers.count("committed") == CALLS_AT_ONCE
    with CoordinatorLoop(service.coordinator, interval_s=0.01):
        wait_until(lambda: all(service.state(f"a-{number}") is _S.COMMITTED for number in range(count)))


def test_calls_of_one_transaction_do_not_pile_up(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tautochrone.metaservice.coordinator._LOCK_WAIT_S", 0.05)
    service.away.answers.clear()
    service.store.transactions.begin("a-1", "loader", 1, 60_000, "away")
    call = threading.Thread(target=service.coordinator.commit, args=("a-1", "loader", 1))
    call.start()
    wait_until(lambda: service.away.reached == 1)
    for operation in (TransactionOperation.COMMIT, TransactionOperation.ROLLBACK):
        with pytest.raises(MetaError, match="TRANSACTION_BUSY") as refused:
            getattr(service.coordinator, operation)("a-1", "loader", 1)
        assert refused.value.retryable
    service.away.answers.set()
    call.join()
    assert service.state("a-1") is _S.COMMITTED

"""What is staged for transactions that have ended goes away, and nothing else does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.support.stores import Clock

from tautochrone.meta import MetaStore
from tautochrone.metaservice.coordinator import TransactionCoordinator
from tautochrone.model.events import Event, TransactionLeftoversDropped, TransactionLeftoversNotDropped
from tautochrone.model.reason import ReasonCode
from tautochrone.model.sink import TransactionState
from tautochrone.model.transactions import (
    CoordinatedTransaction,
    Staged,
    TransactionChunk,
    TransactionOperation,
)

_S = TransactionState
MINUTE_MS, HOUR_MS = 60_000, 3_600_000


class Target:
    """Tables that are named after their transaction, with the time at which they were staged."""

    def __init__(self, clock: Clock) -> None:
        self.tables: dict[str, int] = {}
        self.looked = 0
        self.is_away = False
        self._clock = clock

    def prepare(self, _transaction: CoordinatedTransaction, _chunks: Sequence[TransactionChunk]) -> None: ...

    commit = rollback = prepare

    def key_of(self, transaction: str) -> str:
        return f"key of {transaction}"

    def staged(self) -> list[Staged]:
        self.looked += 1
        if self.is_away:
            raise OSError("no route")
        now_ms = self._clock.now_ms
        return [
            Staged(key=f"key of {name.partition(' ')[0]}", name=name, server="", age_ms=now_ms - at_ms)
            for name, at_ms in self.tables.items()
        ]

    def drop(self, _transaction: CoordinatedTransaction, staged: Sequence[Staged]) -> Sequence[str]:
        for each in staged:
            del self.tables[each.name]
        return [each.name for each in staged]


class Services:
    """A service that can be started anew, and its target."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.store = MetaStore.open(f"sqlite:///{folder}/meta.db", clock=self.clock)
        self.target = Target(self.clock)
        self.events: list[Event] = []
        self.start()

    def start(self) -> None:
        self.coordinator = TransactionCoordinator(
            self.store,
            {"target": self.target},
            emit=self.events.append,
        )

    def pass_ms(self, passed_ms: int) -> None:
        self.clock.now_ms += passed_ms

    def stage(self, *names: str) -> None:
        self.target.tables |= dict.fromkeys(names, self.clock.now_ms)

    def reach(self, transaction: str, state: TransactionState, participant: str = "target") -> None:
        transactions, run = self.store.transactions, (transaction, "loader", 1)
        transactions.begin(*run, 24 * HOUR_MS, participant)
        if state in (_S.PREPARED, _S.COMMITTING, _S.COMMITTED):
            transactions.prepare(*run)
        if state in (_S.COMMITTING, _S.COMMITTED):
            transactions.commit(*run)
        if state in (_S.ABORTING, _S.ABORTED):
            transactions.rollback(*run)
        if state in (_S.COMMITTED, _S.ABORTED):
            transactions.settle(transaction, TransactionOperation.CONFIRM)

    def sweep(self) -> None:
        self.coordinator.sweep()
        self.coordinator.join(10)

    def dropped(self) -> list[list[str]]:
        return [event.tables for event in self.events if isinstance(event, TransactionLeftoversDropped)]


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    services = Services(tmp_path)
    yield services
    services.store.close()


@pytest.mark.parametrize("state", [_S.ABORTED, _S.COMMITTED])
def test_what_is_staged_for_an_ended_transaction_goes_away(
    services: Services, state: TransactionState
) -> None:
    services.stage("load-1 before")
    services.reach("load-1", state)
    services.stage("load-1 after")
    services.sweep()
    assert services.dropped() == []  # running transactions have tables this young
    services.pass_ms(MINUTE_MS)
    services.sweep()
    assert services.dropped() == [["load-1 before", "load-1 after"]]
    assert services.target.tables == {}
    (event,) = (e for e in services.events if isinstance(e, TransactionLeftoversDropped))
    assert (event.participant, event.transaction) == ("target", "load-1")
    assert event.reason.code is ReasonCode.TRANSACTION_HAD_ENDED
    assert state in str(event.reason)


@pytest.mark.parametrize("state", [_S.INITIALIZED, _S.PREPARED])
def test_what_a_live_transaction_staged_stays(services: Services, state: TransactionState) -> None:
    services.reach("load-1", state)
    services.stage("load-1")
    services.pass_ms(HOUR_MS)
    services.sweep()
    assert services.dropped() == []
    assert services.target.tables


def test_what_is_decided_and_not_carried_out_stays(services: Services) -> None:
    """Its participant is another service's turn, or does not answer."""
    for state in (_S.COMMITTING, _S.ABORTING):
        services.reach(state.value, state, participant="elsewhere")
        services.stage(state.value)
    services.pass_ms(MINUTE_MS)
    services.sweep()
    assert services.dropped() == []


def test_what_another_installation_staged_stays(services: Services) -> None:
    services.reach("load-1", _S.ABORTED)
    services.reach("theirs", _S.ABORTED, participant="elsewhere")
    services.stage("theirs", "unknown")
    services.pass_ms(24 * HOUR_MS)
    services.stage("load-1")  # the same id again, long after it ended here
    services.pass_ms(HOUR_MS)
    services.sweep()
    assert services.dropped() == []
    assert len(services.target.tables) == 3


def test_the_store_is_not_searched_each_minute_for_what_nothing_explains(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches: list[str] = []
    ended = services.store.transactions.ended
    monkeypatch.setattr(
        services.store.transactions,
        "ended",
        lambda participant, since_ms: searches.append(participant) or ended(participant, since_ms),
    )
    services.stage("unknown")
    for _ in range(30):
        services.pass_ms(MINUTE_MS)
        services.sweep()
    assert (services.target.looked, searches) == (30, ["target"])
    services.reach("unknown", _S.ABORTED)
    services.pass_ms(HOUR_MS)
    services.sweep()
    assert services.dropped() == [["unknown"]]


def test_a_target_that_does_not_answer_is_asked_again(services: Services) -> None:
    services.stage("load-1")
    services.reach("load-1", _S.ABORTED)
    services.pass_ms(MINUTE_MS)
    services.target.is_away = True
    services.sweep()
    assert services.events == [TransactionLeftoversNotDropped(participant="target", error="no route")]
    services.target.is_away = False
    services.start()
    services.sweep()
    assert services.dropped() == [["load-1"]]

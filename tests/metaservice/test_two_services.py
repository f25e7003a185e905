"""Two services over one store, in any order: what readers see is what participants agreed to, once."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.support.stores import Clock, fresh_postgres

from tautochrone.errors import MetaError, TautochroneError
from tautochrone.meta import MetaStore
from tautochrone.metaservice.coordinator import TransactionCoordinator
from tautochrone.model.sink import TransactionState
from tautochrone.model.transactions import ENDED, CoordinatedTransaction, TransactionChunk

_S = TransactionState
TIMEOUT_MS = 10_000
IDS, CHUNKS = ("a", "b"), ("0", "1")


@cache
def _empty_store() -> Path:
    """A file to copy: its tables take longer than an example."""
    path = Path(tempfile.mkdtemp()) / "meta.db"
    MetaStore.open(f"sqlite:///{path}").close()
    return path


class AwayError(Exception):
    """The target does not answer."""


class Target:
    """What participants of both services write to. It checks what they are allowed to ask.

    Attributes:
        at: what happens when a participant comes to a point, once: by the name of the point.
        wrong: what it was asked and must not be asked. An error would be taken for one of the target.
    """

    def __init__(self) -> None:
        self.staged: set[tuple[str, str]] = set()
        self.agreed: dict[str, frozenset[str]] = {}
        self.shown: dict[str, frozenset[str]] = {}
        self.at: dict[str, Callable[[], None]] = {}
        self.wrong: list[str] = []

    def prepare(self, transaction: CoordinatedTransaction, chunks: Sequence[TransactionChunk]) -> None:
        self._reach("before prepare")
        if any((transaction.id, chunk.id) not in self.staged for chunk in chunks):
            raise ValueError("a chunk is not staged")
        # Of two services the slower one may have asked about fewer chunks.
        ids = frozenset(chunk.id for chunk in chunks)
        self.agreed[transaction.id] = self.agreed.get(transaction.id, frozenset()) | ids
        self._reach("after prepare")

    def commit(self, transaction: CoordinatedTransaction, chunks: Sequence[TransactionChunk]) -> None:
        self._reach("before commit")
        ids = frozenset(chunk.id for chunk in chunks)
        if transaction.state is not _S.COMMITTING or not ids <= self.agreed[transaction.id]:
            self.wrong.append(f"{transaction} was committed with the chunks {ids}")
        if self.shown.setdefault(transaction.id, ids) != ids:
            self.wrong.append(f"{transaction} was committed with other chunks before")
        self._reach("after commit")

    def rollback(self, transaction: CoordinatedTransaction, chunks: Sequence[TransactionChunk]) -> None:
        self._reach("before rollback")
        if transaction.state is not _S.ABORTING or transaction.id in self.shown:
            self.wrong.append(f"{transaction} was rolled back with the chunks {chunks}")
        self.staged = {staged for staged in self.staged if staged[0] != transaction.id}
        self._reach("after rollback")

    def _reach(self, point: str) -> None:
        self.at.pop(point, lambda: None)()


POINTS = [f"{when} {step}" for step in ("prepare", "commit", "rollback") for when in ("before", "after")]
OPERATIONS = ("begin", "write", "prepare", "commit", "rollback", "recover", "sweep", "settle")


class Machine(RuleBasedStateMachine):
    """Calls of two runs reach two services, also while a participant of the other one works."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self._clock, self._target = Clock(), Target()
        self._ends: dict[str, TransactionState] = {}
        self._events: list[str] = []

    def url(self) -> str:
        shutil.copy(_empty_store(), f"{self._folder.name}/meta.db")
        return f"sqlite:///{self._folder.name}/meta.db"

    @initialize()
    def start(self) -> None:
        url = self.url()
        self._stores = [MetaStore.open(url, clock=self._clock) for _ in range(2)]
        self._services = [self._service(number) for number in range(2)]
        self.call(0, "begin", "a", "0", 1)
        for chunk in CHUNKS:
            self.stage("a", chunk)

    def _service(self, number: int) -> TransactionCoordinator:
        participants: Any = {"target": self._target}
        return TransactionCoordinator(
            self._stores[number], participants, emit=lambda event: self._events.append(event.name)
        )

    @rule(number=st.integers(0, 1))
    def restart(self, number: int) -> None:
        self._services[number] = self._service(number)

    @rule(passed_ms=st.sampled_from([1, 1_000, TIMEOUT_MS]))
    def time_passes(self, passed_ms: int) -> None:
        self._clock.now_ms += passed_ms

    @rule(transaction=st.sampled_from(IDS), chunk=st.sampled_from(CHUNKS))
    def stage(self, transaction: str, chunk: str) -> None:
        self._target.staged.add((transaction, chunk))

    @rule(point=st.sampled_from(POINTS))
    def the_target_goes_away(self, point: str) -> None:
        def away() -> None:
            raise AwayError

        self._target.at[point] = away

    @rule(
        step=st.sampled_from(["prepare", "commit", "rollback"]),
        when=st.sampled_from(["before", "after"]),
        number=st.integers(0, 1),
        transaction=st.sampled_from(IDS),
        called=st.sampled_from(["the same", "the other"]),
        between=st.sampled_from(OPERATIONS),
        of=st.sampled_from(IDS),
        chunk=st.sampled_from(CHUNKS),
        fence=st.integers(1, 2),
    )
    def calls_cross(
        self,
        step: str,
        when: str,
        number: int,
        transaction: str,
        called: str,
        between: str,
        of: str,
        chunk: str,
        fence: int,
    ) -> None:
        """A call while the participant is at a point of another one. Within one service a decision about the
        same transaction would wait for the other."""
        other = number if called == "the same" else 1 - number

        def cross() -> None:
            is_locked = self._services[other]._lock_of(of).lock.locked()
            waits = is_locked and between in ("prepare", "commit", "rollback", "settle")
            if not waits and not (between == "sweep" and self._is_swept_by(other)):
                self.call(other, between, of, chunk, fence)

        self._target.at[f"{when} {step}"] = cross
        self.call(number, step if step != "prepare" else "commit", transaction, chunk, fence)
        self._target.at.clear()

    def _is_swept_by(self, number: int) -> bool:
        """Its thread works; a sweep from within it would wait for itself."""
        return any(worker.thread.is_alive() for worker in self._services[number]._calls._workers.values())

    @rule(
        number=st.integers(0, 1),
        operation=st.sampled_from(OPERATIONS),
        transaction=st.sampled_from(IDS),
        chunk=st.sampled_from(CHUNKS),
        fence=st.integers(1, 2),
        times=st.integers(1, 2),
    )
    def operate(
        self, number: int, operation: str, transaction: str, chunk: str, fence: int, times: int
    ) -> None:
        for _ in range(times):
            self.call(number, operation, transaction, chunk, fence)

    def call(self, number: int, operation: str, transaction: str, chunk: str, fence: int) -> None:
        service, store = self._services[number], self._stores[number].transactions
        run: tuple[str, str, int] = (transaction, "loader", fence)
        with contextlib.suppress(TautochroneError):
            if operation == "begin":
                service.begin(*run, TIMEOUT_MS, "target")
            elif operation == "write":
                service.write(*run, TransactionChunk(id=chunk, table="t", rows=1, hash="h"))
            elif operation == "recover":
                store.roll_back_older_runs("loader", fence)
            elif operation == "sweep":
                service.sweep()
                service.join(10)
            elif operation == "settle":
                record = store.get(transaction)
                if record is not None and record.needs_attention:
                    again = "commit" if record.state is _S.COMMITTING else "rollback"
                    getattr(service, again)(*run)
            else:
                getattr(service, operation)(*run)

    @invariant()
    def readers_see_what_was_decided(self) -> None:
        assert not self._target.wrong
        store = self._stores[0].transactions
        for transaction in IDS:
            record = store.get(transaction)
            state = _S.UNKNOWN if record is None else record.state
            shown = self._target.shown.get(transaction)
            if shown is not None:
                assert state in (_S.COMMITTING, _S.COMMITTED)
                assert shown == {chunk.id for chunk in store.chunks(transaction)}
            if state is _S.COMMITTED:
                assert shown is not None
            if transaction in self._ends:
                assert state is self._ends[transaction], "an end is final"
            if state in ENDED:
                self._ends[transaction] = state

    def teardown(self) -> None:
        if not hasattr(self, "_stores"):
            return
        # Whatever happened: what is decided is carried out once the target answers.
        self._target.at.clear()
        store = self._stores[0].transactions
        for _ in range(3):
            self._clock.now_ms += 120_000
            for service in self._services:
                service.sweep()
                service.join(10)
        for transaction in IDS:
            record = store.get(transaction)
            assert record is None or record.needs_attention or record.state in (*ENDED, _S.PREPARED), record
        self.readers_see_what_was_decided()
        for opened in self._stores:
            opened.close()
        self._folder.cleanup()


QUICK = settings(
    max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
Machine.TestCase.settings = QUICK
TestAnyOrder = Machine.TestCase


@pytest.mark.slow
class LongMachine(Machine):
    """Many more orders."""


LongMachine.TestCase.settings = settings(QUICK, max_examples=300, stateful_step_count=40)
TestManyOrders = pytest.mark.slow(LongMachine.TestCase)


class PostgresqlMachine(Machine):
    """The same over PostgreSQL, whose transactions really cross."""

    def url(self) -> str:
        return fresh_postgres()


PostgresqlMachine.TestCase.settings = settings(QUICK, max_examples=5)
TestAnyOrderInPostgresql = PostgresqlMachine.TestCase


@pytest.mark.slow
class LongPostgresqlMachine(PostgresqlMachine):
    """Many more orders."""


LongPostgresqlMachine.TestCase.settings = settings(QUICK, max_examples=100, stateful_step_count=40)
TestManyOrdersInPostgresql = pytest.mark.slow(LongPostgresqlMachine.TestCase)


@pytest.mark.parametrize("step", ["prepare", "commit"])
def test_a_chunk_that_comes_during_the_comparison_is_not_committed(tmp_path: Path, step: str) -> None:
    store = MetaStore.open(f"sqlite:///{tmp_path}/meta.db")
    target = Target()
    participants: Any = {"target": target}
    service = TransactionCoordinator(store, participants)
    operation = getattr(service, step)
    run = ("a", "loader", 1)
    service.begin(*run, TIMEOUT_MS, "target")
    service.write(*run, TransactionChunk(id="0", table="t", rows=1, hash="h"))
    target.staged = {("a", "0")}
    target.at["after prepare"] = lambda: service.write(
        *run, TransactionChunk(id="1", table="t", rows=1, hash="h")
    )
    with pytest.raises(MetaError, match="TRANSACTION_CHUNKS_CHANGED") as refused:
        operation(*run)
    assert refused.value.retryable
    with pytest.raises(MetaError, match="TRANSACTION_NOT_PREPARED"):
        operation(*run)  # the rows of the new chunk are not staged
    target.staged.add(("a", "1"))
    assert operation(*run) is (_S.PREPARED if step == "prepare" else _S.COMMITTED)
    assert service.commit(*run) is _S.COMMITTED
    assert (target.shown, target.wrong) == ({"a": {"0", "1"}}, [])
    store.close()

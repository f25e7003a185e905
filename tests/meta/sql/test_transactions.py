"""Transactions that programs drive: every operation in every state, repeats, two runs, crashes, time-outs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.support.stores import Backing, Clock

from tautochrone.errors import FencedError, MetaError
from tautochrone.meta.database import StoreDatabase
from tautochrone.meta.sql.transactions import SqlTransactions
from tautochrone.model.sink import TransactionState
from tautochrone.model.transactions import ANSWERS, ENDED, TransactionChunk, TransactionOperation

_S, _Operation = TransactionState, TransactionOperation
CHUNK = TransactionChunk(id="1", table="orders", rows=2, hash="ab")
TIMEOUT_MS = 1_000
STEPS_TO: dict[TransactionState, list[TransactionOperation]] = {
    _S.UNKNOWN: [],
    _S.INITIALIZED: [_Operation.BEGIN],
    _S.PREPARED: [_Operation.BEGIN, _Operation.PREPARE],
    _S.COMMITTING: [_Operation.BEGIN, _Operation.PREPARE, _Operation.COMMIT],
    _S.COMMITTED: [_Operation.BEGIN, _Operation.PREPARE, _Operation.COMMIT, _Operation.CONFIRM],
    _S.ABORTING: [_Operation.BEGIN, _Operation.ROLLBACK],
    _S.ABORTED: [_Operation.BEGIN, _Operation.ROLLBACK, _Operation.CONFIRM],
}


def opened(url: str, clock: Callable[[], int]) -> SqlTransactions:
    database = StoreDatabase(url)
    database.migrate()
    return SqlTransactions(database, clock, {})


def call(
    store: SqlTransactions, operation: TransactionOperation, transaction: str, fence: int = 1
) -> TransactionState:
    arguments: tuple[Any, ...] = (transaction, "loader", fence)
    if operation is _Operation.BEGIN:
        return store.begin(*arguments, TIMEOUT_MS)
    if operation is _Operation.WRITE:
        return store.write(*arguments, CHUNK)
    if operation is _Operation.FAIL:
        return store.fail(*arguments, "no route", 1, 10).state
    step: Callable[..., TransactionState] = getattr(store, operation.value)
    return step(*arguments)


def state_of(store: SqlTransactions, transaction: str) -> TransactionState:
    record = store.get(transaction)
    return _S.UNKNOWN if record is None else record.state


@pytest.fixture
def store(database: Backing, clock: Clock) -> SqlTransactions:
    return opened(database.url, clock)


def test_every_operation_in_every_state(store: SqlTransactions) -> None:
    for operation in TransactionOperation:
        for state, steps in STEPS_TO.items():
            transaction = f"{operation}-{state}"
            for step in steps:
                call(store, step, transaction)
            assert state_of(store, transaction) is state
            answer = ANSWERS[operation].get(state)
            for _ in range(2):  # the second time in the state that the first one left
                if answer is None:
                    with pytest.raises(MetaError, match="TRANSACTION_STATE"):
                        call(store, operation, transaction)
                    assert state_of(store, transaction) is state
                else:
                    assert call(store, operation, transaction) is answer
                    assert state_of(store, transaction) is answer


def test_repeated_answers_stay_the_same() -> None:
    for operation, answers in ANSWERS.items():
        for answer in answers.values():
            assert answers[answer] is answer, operation


def test_chunk_is_registered_once_and_never_changes(store: SqlTransactions) -> None:
    call(store, _Operation.BEGIN, "t")
    for _ in range(2):
        call(store, _Operation.WRITE, "t")
    assert store.chunks("t") == (CHUNK,)
    other = TransactionChunk(id="1", table="orders", rows=3, hash="cd")
    with pytest.raises(MetaError, match="TRANSACTION_CHUNK_DIFFERS"):
        store.write("t", "loader", 1, other)
    assert store.chunks("t") == (CHUNK,)


def test_older_run_is_refused_and_newer_run_continues(store: SqlTransactions) -> None:
    call(store, _Operation.BEGIN, "t")
    call(store, _Operation.PREPARE, "t")
    store.fence("loader", 2)
    for operation in TransactionOperation:
        with pytest.raises(FencedError, match="TRANSACTION_FENCED"):
            call(store, operation, "t")
    assert call(store, _Operation.COMMIT, "t", fence=2) is _S.COMMITTING


def test_another_owner_is_refused(store: SqlTransactions) -> None:
    call(store, _Operation.BEGIN, "t")
    with pytest.raises(MetaError, match="TRANSACTION_DIFFERS"):
        store.rollback("t", "stranger", 9)


def test_unprepared_transaction_times_out_and_prepared_one_does_not(
    store: SqlTransactions, clock: Clock
) -> None:
    for transaction in ("unprepared", "prepared"):
        call(store, _Operation.BEGIN, transaction)
    call(store, _Operation.PREPARE, "prepared")
    assert store.roll_back_expired() == ()
    clock.now_ms += TIMEOUT_MS
    for operation in (_Operation.BEGIN, _Operation.WRITE, _Operation.PREPARE):
        with pytest.raises(MetaError, match="TRANSACTION_EXPIRED"):
            call(store, operation, "unprepared")
    assert store.roll_back_expired() == ("unprepared",)
    assert store.roll_back_expired() == ()
    assert state_of(store, "unprepared") is _S.ABORTING
    assert call(store, _Operation.COMMIT, "prepared") is _S.COMMITTING


def test_exhausted_retries_need_attention_until_confirmed(store: SqlTransactions, clock: Clock) -> None:
    for step in STEPS_TO[_S.COMMITTING]:
        call(store, step, "t")
    assert store.due() == ()
    clock.now_ms += TIMEOUT_MS
    assert [t.id for t in store.due()] == ["t"]
    for attempt in (1, 2, 2, 3):
        failed = store.record_failure("t", "no route", attempt, 3, 100)
        assert failed is not None
        assert (failed.failures, failed.needs_attention) == (attempt, attempt == 3)
    clock.now_ms += 100
    assert store.due() == ()
    transaction = store.get("t")
    assert transaction is not None
    assert store.find(attention=True) == (transaction,)
    assert (transaction.needs_attention, transaction.failures, transaction.error) == (True, 3, "no route")
    call(store, _Operation.CONFIRM, "t")
    transaction = store.get("t")
    assert transaction is not None
    assert (transaction.state, transaction.needs_attention) == (_S.COMMITTED, False)
    assert store.record_failure("t", "late", 1, 3, 100) is None


def test_operator_lets_a_decision_be_tried_again(store: SqlTransactions, clock: Clock) -> None:
    for step in STEPS_TO[_S.COMMITTING]:
        call(store, step, "t")
    store.record_failure("t", "no route", 3, 3, 100)
    with pytest.raises(MetaError, match="TRANSACTION_STATE"):
        store.settle("t", _Operation.ROLLBACK)
    assert store.settle("t", _Operation.COMMIT) is _S.COMMITTING
    assert store.find(attention=True) == ()
    clock.now_ms += TIMEOUT_MS
    assert [(t.id, t.failures) for t in store.due()] == [("t", 0)]
    assert store.settle("t", _Operation.CONFIRM) is _S.COMMITTED


def test_operator_does_not_commit_what_may_still_be_written(store: SqlTransactions) -> None:
    call(store, _Operation.BEGIN, "t")
    with pytest.raises(MetaError, match="TRANSACTION_STATE"):
        store.settle("t", _Operation.COMMIT)
    assert store.settle("t", _Operation.ROLLBACK) is _S.ABORTING
    with pytest.raises(MetaError, match="TRANSACTION_NOT_FOUND"):
        store.settle("unknown", _Operation.ROLLBACK)


def test_begin_again_with_another_timeout_or_participant_is_refused(store: SqlTransactions) -> None:
    call(store, _Operation.BEGIN, "t")
    for more in ((TIMEOUT_MS + 1,), (TIMEOUT_MS, "toy")):
        with pytest.raises(MetaError, match="TRANSACTION_DIFFERS"):
            store.begin("t", "loader", 1, *more)


def test_a_newer_run_begins_without_the_chunks_of_older_runs(store: SqlTransactions, clock: Clock) -> None:
    """It may stage the same rows in other chunks: with those of the older run they would be there twice."""
    whole = TransactionChunk(id="whole", table="orders", rows=4, hash="ef")
    call(store, _Operation.BEGIN, "t")
    call(store, _Operation.WRITE, "t")
    clock.now_ms += TIMEOUT_MS - 1
    assert call(store, _Operation.BEGIN, "t", fence=2) is _S.INITIALIZED
    assert store.chunks("t") == ()
    with pytest.raises(FencedError):
        call(store, _Operation.WRITE, "t", fence=1)
    clock.now_ms += TIMEOUT_MS - 1
    store.write("t", "loader", 2, whole)
    serial = store.serial("loader")
    assert call(store, _Operation.BEGIN, "t", fence=2) is _S.INITIALIZED  # its answer was lost
    assert (store.chunks("t"), store.serial("loader")) == ((whole,), serial)
    assert store.commit("t", "loader", 2, 1) is _S.COMMITTING
    assert store.chunks("t") == (whole,)
    clock.now_ms += TIMEOUT_MS
    call(store, _Operation.BEGIN, "expired", fence=2)
    clock.now_ms += TIMEOUT_MS
    with pytest.raises(MetaError, match="TRANSACTION_EXPIRED"):
        call(store, _Operation.BEGIN, "expired", fence=3)


@pytest.mark.parametrize("state", [state for state in STEPS_TO if state is not _S.UNKNOWN])
@pytest.mark.parametrize(("owner", "fence"), [("loader", 1), ("loader", 2), ("stranger", 9)])
def test_only_a_newer_run_of_the_owner_begins_anew(
    store: SqlTransactions, state: TransactionState, owner: str, fence: int
) -> None:
    first, *rest = STEPS_TO[state]
    if _Operation.PREPARE in rest or state is _S.INITIALIZED:
        rest = [_Operation.WRITE, *rest]
    for step in (first, *rest):
        call(store, step, "t")
    chunks = store.chunks("t")
    if owner == "loader" and state is _S.INITIALIZED:
        assert store.begin("t", owner, fence, TIMEOUT_MS) is state
        assert store.chunks("t") == (chunks if fence == 1 else ())
    else:
        refusal = "TRANSACTION_DIFFERS" if owner == "stranger" else "TRANSACTION_STATE"
        with pytest.raises(MetaError, match=refusal):
            store.begin("t", owner, fence, TIMEOUT_MS)
        assert store.chunks("t") == chunks
    assert state_of(store, "t") is state


def test_refused_operation_raises_the_fence(store: SqlTransactions) -> None:
    with pytest.raises(MetaError, match="TRANSACTION_STATE"):
        call(store, _Operation.COMMIT, "unknown", fence=5)
    with pytest.raises(FencedError):
        call(store, _Operation.BEGIN, "t", fence=4)
    call(store, _Operation.BEGIN, "t", fence=5)
    call(store, _Operation.PREPARE, "t", fence=6)
    record = store.get("t")
    assert record is not None
    assert record.fence == 6


def test_newer_run_rolls_back_what_older_runs_had_not_prepared(store: SqlTransactions) -> None:
    for state in (_S.INITIALIZED, _S.PREPARED, _S.COMMITTING, _S.COMMITTED):
        for step in STEPS_TO[state]:
            call(store, step, state.value)
    store.begin("other", "another", 1, TIMEOUT_MS)
    for _ in range(2):
        assert {t.id: t.state for t in store.roll_back_older_runs("loader", 2)} == {
            "initialized": _S.ABORTING,
            "prepared": _S.PREPARED,
            "committing": _S.COMMITTING,
        }
    assert state_of(store, "other") is _S.INITIALIZED
    store.begin("new", "loader", 2, TIMEOUT_MS)
    assert "new" in {t.id for t in store.roll_back_older_runs("loader", 2) if t.state is _S.INITIALIZED}


def test_chunks_of_ended_transactions_are_forgotten_and_ids_stay_used(
    store: SqlTransactions, clock: Clock
) -> None:
    for transaction in ("ended", "open"):
        call(store, _Operation.BEGIN, transaction)
        call(store, _Operation.WRITE, transaction)
    call(store, _Operation.ROLLBACK, "ended")
    call(store, _Operation.CONFIRM, "ended")
    store.delete_chunks_of_ended_transactions(clock.now_ms)
    assert store.chunks("ended") == (CHUNK,)
    store.delete_chunks_of_ended_transactions(clock.now_ms + 1)
    assert (store.chunks("ended"), store.chunks("open")) == ((), (CHUNK,))
    with pytest.raises(MetaError, match="TRANSACTION_STATE"):
        call(store, _Operation.BEGIN, "ended")


def test_two_runs_at_once_agree_on_one_decision(store: SqlTransactions) -> None:
    for number in range(5):
        transaction = f"t{number}"
        for step in STEPS_TO[_S.PREPARED]:
            call(store, step, transaction)

        def decide(operation: TransactionOperation, transaction: str = transaction) -> bool:
            try:
                call(store, operation, transaction)
            except MetaError:
                return False
            return True

        with ThreadPoolExecutor(4) as pool:
            decisions = [_Operation.COMMIT, _Operation.ROLLBACK] * 2
            accepted = list(pool.map(decide, decisions))
        committed = state_of(store, transaction) is _S.COMMITTING
        assert accepted == [committed, not committed] * 2


class Machine(RuleBasedStateMachine):
    """Two runs of one program call in any order, answers get lost, the store is closed and opened."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self._url = f"sqlite:///{Path(self._folder.name)}/meta.db"
        self._clock = Clock()
        self._fence = 0
        self._expected: dict[str, TransactionState] = {}
        self._expires: dict[str, int] = {}
        self._ended: dict[str, TransactionState] = {}
        self._changed_by: dict[str, int] = {}
        self._chunks: dict[str, tuple[TransactionChunk, ...]] = {}

    @initialize()
    def open(self) -> None:
        self._store = opened(self._url, self._clock)

    @rule()
    def crash(self) -> None:
        self._store = opened(self._url, self._clock)

    @rule(
        operation=st.sampled_from(TransactionOperation),
        transaction=st.sampled_from(["a", "b"]),
        fence=st.integers(1, 3),
        times=st.integers(1, 2),
    )
    def operate(self, operation: TransactionOperation, transaction: str, fence: int, times: int) -> None:
        for _ in range(times):
            state = self._expected.get(transaction, _S.UNKNOWN)
            expired = state is _S.INITIALIZED and self._expires[transaction] <= self._clock.now_ms
            answer = ANSWERS[operation].get(state)
            if fence < self._fence:
                with pytest.raises(FencedError):
                    call(self._store, operation, transaction, fence)
            elif answer is None or (expired and operation is not _Operation.ROLLBACK):
                with pytest.raises(MetaError, match=r"TRANSACTION_(STATE|EXPIRED)"):
                    call(self._store, operation, transaction, fence)
                self._fence = fence
            else:
                assert call(self._store, operation, transaction, fence) is answer
                self._fence = fence
                begins = operation is _Operation.BEGIN and self._changed_by.get(transaction, 0) < fence
                if begins or transaction not in self._expected:
                    self._expires[transaction] = self._clock.now_ms + TIMEOUT_MS
                    self._chunks[transaction] = ()
                if operation is _Operation.WRITE:
                    self._chunks[transaction] = (CHUNK,)
                if operation is not _Operation.FAIL:
                    self._changed_by[transaction] = fence
                self._expected[transaction] = answer

    @rule(passed_ms=st.sampled_from([1, TIMEOUT_MS]))
    def time_passes(self, passed_ms: int) -> None:
        self._clock.now_ms += passed_ms

    @rule()
    def sweep(self) -> None:
        expired = {
            transaction
            for transaction, state in self._expected.items()
            if state is _S.INITIALIZED and self._expires[transaction] <= self._clock.now_ms
        }
        assert set(self._store.roll_back_expired()) == expired
        self._expected |= dict.fromkeys(expired, _S.ABORTING)

    @invariant()
    def the_store_agrees_and_ends_are_final(self) -> None:
        for transaction, state in self._expected.items():
            assert state_of(self._store, transaction) is state
            assert self._store.chunks(transaction) == self._chunks[transaction]
            if state in ENDED:
                assert self._ended.setdefault(transaction, state) is state

    def teardown(self) -> None:
        self._folder.cleanup()


Machine.TestCase.settings = settings(
    max_examples=15, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestAnyOrder = Machine.TestCase

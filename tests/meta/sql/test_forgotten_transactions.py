"""Ids of ended transactions that are not kept are never taken for new ones."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.meta.sql.test_transactions import call, opened, state_of
from tests.support.stores import Backing, Clock

from tautochrone.errors import MetaError
from tautochrone.meta.sql.transactions import SqlTransactions
from tautochrone.model.sink import TransactionState
from tautochrone.model.transactions import TransactionOperation, series_of

_S, _Operation = TransactionState, TransactionOperation


@pytest.fixture
def store(database: Backing, clock: Clock) -> SqlTransactions:
    return opened(database.url, clock)


def end(store: SqlTransactions, transaction: str, owner: str = "loader") -> None:
    store.begin(transaction, owner, 1, 1_000)
    store.commit(transaction, owner, 1)
    store.confirm(transaction, owner, 1)


def refusal(store: SqlTransactions, operation: TransactionOperation, transaction: str) -> str:
    with pytest.raises(MetaError) as refused:
        call(store, operation, transaction)
    return refused.value.error_class


def test_a_late_repeat_of_a_forgotten_id_is_refused(store: SqlTransactions, clock: Clock) -> None:
    for transaction in ("load-9", "load-10", "files/a", "b-2026-11-26@1"):
        end(store, transaction)
    call(store, _Operation.ROLLBACK, "load-12")  # of an unknown id, which is used up by that
    store.begin("load-11", "loader", 1, 10**9)
    clock.now_ms += 5_000
    end(store, "load-13")
    store.forget_ended(clock.now_ms - 1_000)
    assert [kept.id for kept in store.find()] == ["load-11", "load-13"]
    for operation in TransactionOperation:
        for used in ("load-9", "load-09", "load-10", "load-12", "load-1", "files/a", "b-2026-11-26@1"):
            assert refusal(store, operation, used) == "TRANSACTION_ID_FORGOTTEN", (operation, used)
            assert store.is_forgotten(used)
            assert state_of(store, used) is _S.UNKNOWN
    # What is kept answers as ever, also below what is used up.
    assert call(store, _Operation.COMMIT, "load-11") is _S.COMMITTING
    assert call(store, _Operation.COMMIT, "load-13") is _S.COMMITTED
    for new in ("load-14", "load-x", "c-2026-11-26@1", "b-2026-11-26@2", "b-2027-01-01@0"):
        assert not store.is_forgotten(new)
        assert call(store, _Operation.BEGIN, new) is _S.INITIALIZED
    # Another program has ids of its own.
    assert store.begin("load-1", "another", 1, 1_000) is _S.INITIALIZED


def test_forgetting_goes_on_where_it_stopped(store: SqlTransactions, clock: Clock) -> None:
    end(store, "load-3")
    clock.now_ms += 1_000
    for _ in range(2):
        store.forget_ended(clock.now_ms)
        assert store.find() == ()
        assert refusal(store, _Operation.BEGIN, "load-3") == "TRANSACTION_ID_FORGOTTEN"
    assert store.begin("load-4", "loader", 1, 10**9) is _S.INITIALIZED
    call(store, _Operation.ROLLBACK, "load-4")
    store.confirm("load-4", "loader", 1)
    # The lower id of another program takes nothing back.
    end(store, "load-1", "another")
    store.forget_ended(clock.now_ms + 1)
    assert store.find() == ()
    for used in ("load-3", "load-4"):
        assert refusal(store, _Operation.BEGIN, used) == "TRANSACTION_ID_FORGOTTEN"


def test_more_ids_than_one_write_forgets(store: SqlTransactions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tautochrone.meta.sql.transactions._FORGOTTEN_AT_ONCE", 2)
    for number in range(5):
        end(store, f"load-{number}")
    store.forget_ended(2**60)
    assert store.find() == ()
    assert refusal(store, _Operation.BEGIN, "load-4") == "TRANSACTION_ID_FORGOTTEN"


def test_changes_of_a_program_are_counted(store: SqlTransactions) -> None:
    assert store.serial("loader") == 0
    serials = count(2)
    for operation in (_Operation.BEGIN, _Operation.WRITE, _Operation.COMMIT, _Operation.CONFIRM):
        call(store, operation, "t")
        serial = next(serials)
        assert store.serial("loader") == serial
        call(store, operation, "t")  # a repeat changes nothing
        assert store.serial("loader") == serial
    store.fence("loader", 2)
    assert store.serial("loader") == next(serials)
    assert store.serial("another") == 0


@given(st.text("a1-0.", max_size=12), st.text("a1-0.", max_size=12))
def test_two_ids_of_one_series_and_position_differ_in_zeros_only(first: str, second: str) -> None:
    def without_zeros(text: str) -> str:
        parts = "".join(letter if letter.isdigit() else f" {letter} " for letter in text).split()
        return " ".join(str(int(part)) if part.isdigit() else part for part in parts)

    assert (series_of(first) == series_of(second)) == (without_zeros(first) == without_zeros(second))

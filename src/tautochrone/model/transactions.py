"""Transactions that the MetaService coordinates: their states, and what each operation answers in each state.

The client chooses the id, so that it can name the transaction after a crash. Every operation may be repeated
in every state: `ANSWERS` says what it does there. The states are those of deliveries (`model.sink`).

`commit` and `rollback` only record the decision. A participant, which knows the target, carries it out, and
`confirm` records that. A decision is never changed.

Ids that differ in their numbers only, such as `load-16` and `load-17`, have an order.
The store can stop keeping ids of ended transactions: of each series it remembers the highest position. An
unknown id that is not above it counts as used, so a late repeat is never taken for a new transaction.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol, runtime_checkable

from tautochrone.model.sink import TransactionState

__all__ = [
    "ANSWERS",
    "CLIENT",
    "DECIDED",
    "ENDED",
    "LONGEST_TIMEOUT_MS",
    "CoordinatedTransaction",
    "Participant",
    "ShardedParticipant",
    "Staged",
    "TidyParticipant",
    "TransactionChunk",
    "TransactionOperation",
    "series_of",
]


CLIENT = "client"
"""The name of the participant that is the program itself."""


LONGEST_TIMEOUT_MS = 24 * 3_600_000
"""Of a transaction, and of a client's repeated call. Ids of ended transactions are kept at least as long: a
program that repeats a call whose answer was lost must learn what was decided."""


class TransactionOperation(StrEnum):
    """What can be asked of a coordinated transaction."""

    BEGIN = "begin"
    WRITE = "write"
    PREPARE = "prepare"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    CONFIRM = "confirm"
    FAIL = "fail"


_S = TransactionState

DECIDED = frozenset({_S.COMMITTING, _S.ABORTING})
"""The result is decided, and the participant has not confirmed it."""

ENDED = frozenset({_S.COMMITTED, _S.ABORTED})
"""Nothing is left to do."""

ANSWERS: Mapping[TransactionOperation, Mapping[TransactionState, TransactionState]] = MappingProxyType(
    {
        TransactionOperation.BEGIN: {_S.UNKNOWN: _S.INITIALIZED, _S.INITIALIZED: _S.INITIALIZED},
        TransactionOperation.WRITE: {_S.INITIALIZED: _S.INITIALIZED},
        TransactionOperation.PREPARE: {_S.INITIALIZED: _S.PREPARED, _S.PREPARED: _S.PREPARED},
        TransactionOperation.COMMIT: {
            # It prepares too, so that a program needs no more than begin, write and commit.
            _S.INITIALIZED: _S.COMMITTING,
            _S.PREPARED: _S.COMMITTING,
            _S.COMMITTING: _S.COMMITTING,
            _S.COMMITTED: _S.COMMITTED,
        },
        TransactionOperation.ROLLBACK: {
            # An unknown id is used up, so that a late `begin` cannot open it.
            _S.UNKNOWN: _S.ABORTED,
            _S.INITIALIZED: _S.ABORTING,
            _S.PREPARED: _S.ABORTING,
            _S.ABORTING: _S.ABORTING,
            _S.ABORTED: _S.ABORTED,
        },
        TransactionOperation.CONFIRM: {
            _S.COMMITTING: _S.COMMITTED,
            _S.COMMITTED: _S.COMMITTED,
            _S.ABORTING: _S.ABORTED,
            _S.ABORTED: _S.ABORTED,
        },
        # The participant could not carry the decision out.
        TransactionOperation.FAIL: {_S.COMMITTING: _S.COMMITTING, _S.ABORTING: _S.ABORTING},
    }
)
"""For each operation and each state the state that it answers; what is missing is a conflict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionChunk:
    """Rows that the client wrote to the target.

    Attributes:
        id: chosen by the client; a chunk that is registered twice counts once.
        table: in the target's spelling.
        partition: of that table, in the target's spelling.
        hash: of the content, as the participant computes it.
        server: which of several servers took it.
    """

    id: str
    table: str
    rows: int
    hash: str
    partition: str = ""
    server: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatedTransaction:
    """A transaction as the store has it.

    Attributes:
        owner: the program that drives it. A later run of the program has a higher `fence`.
        fence: of the run that last changed it; 0 after an operator or the service did.
        participant: who carries the decision out; `client` is the program itself.
        timeout_ms: how long the program has to prepare it, and afterwards to confirm a decision.
        due_at_ms: when an initialized one is rolled back, and when a decided one is tried again; in epoch
            milliseconds.
        changed_at_ms: when it came into its state, in epoch milliseconds.
        failures: how often the participant failed to carry the decision out.
        needs_attention: all retries failed; a person has to settle it.
        error: of the last failure.
        failed_at_ms: when that was, in epoch milliseconds.
    """

    id: str
    owner: str
    fence: int
    participant: str
    state: TransactionState
    timeout_ms: int
    due_at_ms: int
    changed_at_ms: int
    failures: int = 0
    needs_attention: bool = False
    error: str | None = None
    failed_at_ms: int | None = None


class Participant(Protocol):
    """Carries decisions out in a target. Registered with the coordinator of a service under a name.

    Every call may be repeated, also after it succeeded, by another process, and after a crash. An error of
    any kind means that the outcome is unknown: `commit` and `rollback` are called again.
    """

    def prepare(self, transaction: CoordinatedTransaction, chunks: Sequence[TransactionChunk]) -> None:
        """Make sure that `commit` will succeed: compare what is staged in the target with the chunks.

        Raises:
            Exception: it will not. The transaction stays initialized.
        """

    def commit(self, transaction: CoordinatedTransaction, chunks: Sequence[TransactionChunk]) -> None:
        """Show what is staged to readers."""

    def rollback(self, transaction: CoordinatedTransaction, chunks: Sequence[TransactionChunk]) -> None:
        """Drop what is staged, also chunks that were never registered."""


@runtime_checkable
class ShardedParticipant(Protocol):
    """What a participant with several servers offers too, each with its own part of the rows."""

    def server_of(self, transaction: CoordinatedTransaction, chunk: TransactionChunk) -> str | None:
        """The server that has to take the chunk; None: any of them. The answer never changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """Something in a target that was staged for a transaction.

    Attributes:
        key: of the transaction, as `TidyParticipant.key_of` computes it.
        name: in the target's spelling.
        server: that has it.
        age_ms: for how long it has been there, by the target's clock.
    """

    key: str
    name: str
    server: str
    age_ms: int


@runtime_checkable
class TidyParticipant(Protocol):
    """What a participant offers too that can tell what is staged in its target, by whomever."""

    def key_of(self, transaction: str) -> str:
        """What the names of everything that is staged for a transaction have in common."""

    def staged(self) -> Sequence[Staged]:
        """Everything that is staged in the target, also by programs of other services."""

    def drop(self, transaction: CoordinatedTransaction, staged: Sequence[Staged]) -> Sequence[str]:
        """Drop what an ended transaction left, if its rows are not needed. Repeatable.

        Returns:
            The names of what was dropped.
        """


_DIGITS = re.compile("[0-9]+")


def series_of(transaction: str) -> tuple[str, tuple[int, ...]]:
    """The id with `#` for each of its numbers, and these numbers.

    >>> series_of("orders-2026-11-26@3")
    ('orders-#-#-#@#', (2026, 11, 26, 3))
    >>> series_of("load")
    ('load', ())
    """
    numbers = tuple(map(int, _DIGITS.findall(transaction)))
    return _DIGITS.sub("#", transaction), numbers

"""`store.transactions`. Transactions that programs drive: what they wrote, and what was decided of them.

The coordinator of the MetaService (`metaservice.coordinator`) lets participants carry the decisions out.
"""

from __future__ import annotations

from typing import Protocol

from tautochrone.meta.protocols.marks import reads, writes
from tautochrone.model.sink import TransactionState
from tautochrone.model.transactions import (
    CLIENT,
    CoordinatedTransaction,
    TransactionChunk,
    TransactionOperation,
)

__all__ = ["Transactions"]


class Transactions(Protocol):
    """The coordinator's records. `model.transactions.ANSWERS` says what each operation does in each state.

    Every method that has a fence remembers it, also when it refuses, and raises:

    - `FencedError` (`TRANSACTION_FENCED`): a newer run of the owner was seen.
    - `MetaError` `TRANSACTION_STATE`: the state refuses the operation.
    - `MetaError` `TRANSACTION_EXPIRED`: it was not prepared in time; only `rollback` is answered.
    - `MetaError` `TRANSACTION_DIFFERS`: it was begun by another owner, or in another way.
    """

    @writes
    def fence(self, owner: str, fence: int) -> None:
        """Refuse every lower fence of this owner from now on. Repeatable."""

    @writes
    def roll_back_older_runs(self, owner: str, fence: int) -> tuple[CoordinatedTransaction, ...]:
        """What a new run calls first: refuse older runs, and roll back what they had not prepared.

        Returns:
            The owner's transactions that have not ended. The run decides about the prepared ones and carries
            decisions out.
        """

    @writes
    def begin(
        self, transaction: str, owner: str, fence: int, timeout_ms: int, participant: str = CLIENT
    ) -> TransactionState:
        """Open the transaction. On an open one of the same owner it answers `INITIALIZED` again.

        A newer run than the one that last changed it begins anew: without the chunks of older runs, and with
        the whole time-out. A repeat by the same run changes nothing.
        """

    @writes
    def write(self, transaction: str, owner: str, fence: int, chunk: TransactionChunk) -> TransactionState:
        """Register a chunk. Registering the same chunk again changes nothing.

        Raises:
            MetaError: `TRANSACTION_CHUNK_DIFFERS`, the id of the chunk has another content.
        """

    @writes
    def prepare(
        self, transaction: str, owner: str, fence: int, chunks: int | None = None
    ) -> TransactionState:
        """All chunks are written: from now on the transaction does not time out.

        Args:
            chunks: how many the participant has compared; None: nobody has.

        Raises:
            MetaError: `TRANSACTION_CHUNKS_CHANGED`, meanwhile there are more.
        """

    @writes
    def commit(self, transaction: str, owner: str, fence: int, chunks: int | None = None) -> TransactionState:
        """Decide that it is committed. `COMMITTING` means that the participant has to do it.

        `chunks` as in `prepare`; it counts when the transaction was not prepared.
        """

    @writes
    def rollback(self, transaction: str, owner: str, fence: int) -> TransactionState:
        """Decide that it is rolled back. An unknown id cannot be begun afterwards."""

    @writes
    def confirm(self, transaction: str, owner: str, fence: int) -> TransactionState:
        """The participant carried the decision out."""

    @writes
    def fail(
        self, transaction: str, owner: str, fence: int, error: str, attempt: int, max_failures: int
    ) -> CoordinatedTransaction:
        """The program, which is the participant, could not carry the decision out.

        Args:
            attempt: which attempt failed, from 1: a repeated report counts once.
            max_failures: with this many failures the transaction needs attention.
        """

    @writes
    def record_failure(
        self, transaction: str, error: str, attempt: int, max_failures: int, retry_ms: int
    ) -> CoordinatedTransaction | None:
        """As `fail`, by the coordinator, which tries again after `retry_ms`. None when nothing is decided
        that is not carried out."""

    @writes
    def settle(self, transaction: str, operation: TransactionOperation) -> TransactionState:
        """Commit, roll back or confirm for an operator or the coordinator, without a fence.

        A decision that needed attention is tried again. An unprepared transaction cannot be committed so: its
        program may still write.

        Raises:
            MetaError: `TRANSACTION_NOT_FOUND`, `TRANSACTION_STATE`.
        """

    @writes
    def roll_back_expired(self) -> tuple[str, ...]:
        """Decide to roll back what was not prepared within its time-out; answers the ids."""

    @writes
    def delete_chunks_of_ended_transactions(self, ended_before_ms: int) -> None:
        """Drop the chunks of transactions that ended before this time. Their ids stay used."""

    @writes
    def forget_ended(self, ended_before_ms: int) -> None:
        """Drop transactions that ended before this time. Their ids stay used up: of each owner and series of
        ids (`model.transactions`) the highest position is remembered, and every operation on an unknown id
        that is not above it raises `MetaError` `TRANSACTION_ID_FORGOTTEN`."""

    @reads
    def is_forgotten(self, transaction: str) -> bool:
        """Whether an id that is not kept may have been used by some owner."""

    @reads
    def serial(self, owner: str) -> int:
        """How many changes of this program's transactions the store has seen. It never goes down."""

    @reads
    def get(self, transaction: str) -> CoordinatedTransaction | None:
        """The transaction; None for an id that was never used."""

    @reads
    def chunks(self, transaction: str) -> tuple[TransactionChunk, ...]:
        """The registered chunks, by their ids."""

    @reads
    def find(
        self,
        owner: str | None = None,
        state: TransactionState | None = None,
        *,
        attention: bool = False,
        after: str = "",
        limit: int = 100,
    ) -> tuple[CoordinatedTransaction, ...]:
        """Transactions by their ids, `limit` at most, those with an id above `after`.

        Args:
            owner: only of this program.
            state: only in this state.
            attention: only those that need attention.
        """

    @reads
    def ended(self, participant: str, since_ms: int) -> tuple[CoordinatedTransaction, ...]:
        """A participant's transactions that ended since this time and are kept, by their ids."""

    @reads
    def due(self) -> tuple[CoordinatedTransaction, ...]:
        """Decided transactions that were not carried out by now, without those that need attention."""

"""What one object knows of the transactions that it began, so that it need not ask the server again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tautochrone.model.names import Fence
from tautochrone.model.sink import Operation, TransactionId, TransactionState, next_state
from tautochrone.sinks.clickhouse.ledger import Entry, Ledger
from tautochrone.sinks.common.steps import require_fence

__all__ = ["Begun", "BegunTransactions"]

_S = TransactionState


@dataclass(slots=True)
class Begun:
    """A transaction as far as this object knows it.

    Attributes:
        stagings: the tables that it opened for it; None for a transaction that another object began.
        is_new: nobody began it before this object did.
    """

    entry: Entry
    stagings: set[str] | None
    is_new: bool = False

    def opened(self, *stagings: str) -> None:
        if self.stagings is not None:
            self.stagings.update(stagings)

    def is_new_name(self, staging: str) -> bool:
        """Whether nobody opened a staging table of this name before. Otherwise a statement on it may still
        come."""
        return self.is_new and self.stagings is not None and staging not in self.stagings


class BegunTransactions:
    """The transactions that this object began and that had no error since."""

    def __init__(self, name: str, ledger: Ledger) -> None:
        self._name = name
        self._ledger = ledger
        self._begun: dict[TransactionId, Begun] = {}

    def __contains__(self, transaction: TransactionId) -> bool:
        return transaction in self._begun

    def clear(self) -> None:
        self._begun.clear()

    def add(self, entry: Entry, *, is_new: bool) -> None:
        self._begun[entry.intent.transaction] = Begun(entry, set(), is_new)

    def allowed(
        self, operation: Operation, transaction: TransactionId, fence: Fence, *, checked: bool = True
    ) -> TransactionState:
        """Where a transaction is, to which the operation may be done.

        Args:
            checked: false if the operation itself checks the fence of a transaction that is not decided.

        Raises:
            SinkFencedError: somebody else is the owner.
            SinkError: `SINK_TRANSACTION_STATE`.
        """
        begun = self._begun.get(transaction)
        if begun is None:
            standing = self._ledger.standing(transaction)
            highest, state = standing.fence, standing.state
        else:
            # Only the owner changes a transaction, and a newer one raises its fence first.
            state = begun.entry.state
            is_checked = checked or state not in (_S.INITIALIZED, _S.PREPARED)
            highest = self._ledger.highest_fence() if is_checked else fence
        require_fence(self._name, fence, highest)
        next_state(operation, state, transaction)
        return state

    @contextmanager
    def continued(self, transaction: TransactionId) -> Iterator[Begun]:
        """The transaction, to go on with it. After an error it is read from the server again."""
        begun = self._begun.pop(transaction, None) or Begun(self._ledger.entry(transaction), None)
        is_own = begun.stagings is not None
        yield begun
        if is_own:
            self._begun[transaction] = begun

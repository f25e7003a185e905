"""Drops what is staged in a participant's target for transactions that have ended.

A program may stage rows after its time-out, when a service has rolled it back, and another service that had
begun to prepare it may take them: they stay, and nobody calls the participant for that transaction again.

Only what belongs to an ended transaction of this store is dropped. What no transaction of the store explains
may be another installation's, and stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tautochrone.meta.protocols.transactions import Transactions
from tautochrone.model import events
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.sink import TransactionState
from tautochrone.model.transactions import CoordinatedTransaction, Participant, Staged, TidyParticipant
from tautochrone.redaction import redacted

__all__ = ["Leftovers"]

_MIN_AGE_MS = 60_000
"""Younger ones are those of running transactions, nearly always."""
_LATE_MS = 600_000
"""How long after the end of a transaction something may still be staged for it. What was staged later is not
of that transaction: another installation, which has the same database, may use the same ids."""
_LOOKED_BACK_MS = 7 * 24 * 3_600_000
_LOOKS_AGAIN_MS = 3_600_000
_PAGE = 1_000
_S = TransactionState


class Leftovers:
    """Used by one thread for each participant."""

    def __init__(
        self, store: Transactions, participants: Mapping[str, Participant], emit: events.Emit
    ) -> None:
        self._store, self._emit = store, emit
        self._participants: Mapping[str, TidyParticipant] = {
            name: each for name, each in participants.items() if isinstance(each, TidyParticipant)
        }
        self._unexplained: dict[str, dict[str, int]] = {name: {} for name in self._participants}
        """By participant and key when it was looked up last in vain."""

    @property
    def participants(self) -> Sequence[str]:
        """Those that can say what is staged."""
        return tuple(self._participants)

    def drop(self, name: str, now_ms: int) -> None:
        """Drop what ended transactions left in a participant. Repeatable, also by several services."""
        participant = self._participants[name]
        try:
            staged = [each for each in participant.staged() if each.age_ms >= _MIN_AGE_MS]
            for transaction in self._ended_transactions(name, participant, staged, now_ms):
                ended_ms_ago = now_ms - transaction.changed_at_ms
                key = participant.key_of(transaction.id)
                own = [s for s in staged if s.key == key and s.age_ms >= ended_ms_ago - _LATE_MS]
                dropped = participant.drop(transaction, own) if own else ()
                if dropped:
                    reason = Reason.of(ReasonCode.TRANSACTION_HAD_ENDED, state=transaction.state.value)
                    self._emit(
                        events.TransactionLeftoversDropped(
                            participant=name,
                            transaction=transaction.id,
                            tables=list(dropped),
                            reason=reason,
                        )
                    )
        except Exception as error:
            # The target does not answer, or refuses: the next time it is tried again.
            text = redacted(str(error)) or type(error).__name__
            self._emit(events.TransactionLeftoversNotDropped(participant=name, error=text))

    def _ended_transactions(
        self, name: str, participant: TidyParticipant, staged: Sequence[Staged], now_ms: int
    ) -> Sequence[CoordinatedTransaction]:
        """The ended transactions that may have staged something of this."""
        keys = {each.key for each in staged}
        unexplained = self._unexplained[name] = {
            key: at_ms
            for key, at_ms in self._unexplained[name].items()
            if key in keys and now_ms - at_ms < _LOOKS_AGAIN_MS
        }
        keys -= unexplained.keys()
        if keys:
            keys -= {participant.key_of(transaction) for transaction in self._unfinished()}
        if not keys:
            return ()
        ended = [
            transaction
            for transaction in self._store.ended(name, now_ms - _LOOKED_BACK_MS)
            if participant.key_of(transaction.id) in keys
        ]
        for key in keys - {participant.key_of(transaction.id) for transaction in ended}:
            unexplained[key] = now_ms
        return ended

    def _unfinished(self) -> set[str]:
        unfinished: set[str] = set()
        for state in (_S.INITIALIZED, _S.PREPARED, _S.COMMITTING, _S.ABORTING):
            after = ""
            while page := self._store.find(state=state, after=after, limit=_PAGE):
                unfinished.update(transaction.id for transaction in page)
                after = page[-1].id
        return unfinished

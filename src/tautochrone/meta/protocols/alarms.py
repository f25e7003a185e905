"""`store.alarms`. What somebody has to look at, and who was sent a message about it.

An evaluation is one transaction that compares what is so with the alarms that are open. So two processes that
evaluate at once fire an alarm once, and a restart forgets none.
"""

from __future__ import annotations

from typing import Protocol

from tautochrone.meta.protocols.marks import reads, writes
from tautochrone.model.alarms import Alarm, DueNotification

__all__ = ["Alarms"]


class Alarms(Protocol):
    """The alarms of all jobs."""

    @reads
    def current(self) -> tuple[Alarm, ...]:
        """What is so now, the critical ones first, whether an evaluation has seen it or not; changes nothing.
        An alarm has its newest evidence."""

    @writes
    def evaluate(self) -> tuple[Alarm, ...]:
        """Fire an alarm for each new condition, resolve those that are over. Repeatable.

        Returns:
            Those that are open now, as `current`.
        """

    @reads
    def resolved(self, limit: int = 50) -> tuple[Alarm, ...]:
        """The newest `limit` alarms that are over, newest first, with their evidence of when they fired."""

    @reads
    def changed_after(self, at_ms: int) -> tuple[Alarm, ...]:
        """The alarms that fired or were over after `at_ms` (epoch milliseconds), in the order in which they
        changed, with their evidence of when they fired."""

    @writes
    def acknowledge(self, alarm: int, by: str) -> Alarm:
        """Somebody looks after an open alarm. It stays acknowledged until it is over. Repeatable.

        Raises:
            MetaError: `ALARM_NOT_FOUND`, no alarm that is open has this id.
        """

    @writes
    def claim_notifications(self, target: str, lease_ms: int, limit: int = 20) -> tuple[DueNotification, ...]:
        """The messages that a target has to be sent now. Nobody else gets them for `lease_ms` milliseconds; a
        message whose end is not recorded by then is due again."""

    @writes
    def record_notified(
        self,
        alarm: int,
        target: str,
        message: str,
        error: str | None = None,
        *,
        attempts: int = 0,
        retry_ms: int = 0,
    ) -> None:
        """The target took a message, or refused it with `error`: then it is due again in `retry_ms`.
        Repeatable.

        Args:
            attempts: failed tries in a row, this one included.
        """

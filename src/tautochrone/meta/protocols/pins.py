"""`store.pins`. Leases of readers on versions, and which versions must stay readable."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from tautochrone.meta.protocols.marks import reads, writes
from tautochrone.model.checkpoint import Pin
from tautochrone.model.names import CheckpointNumber, TableName, Version

__all__ = ["Pins"]


class Pins(Protocol):
    """Leases of readers on versions, and which versions must stay readable."""

    @writes(for_readers=True)
    def renew(
        self, pin: str, lease_ms: int, *, if_within_ms: int | None = None, principal: str | None = None
    ) -> None:
        """Extend a lease.

        Args:
            pin: the id of the pin.
            lease_ms: milliseconds from now until the lease ends.
            if_within_ms: write nothing while more than so many milliseconds are left of the lease.
            principal: refuse a pin that was not made for this principal; None: any pin.

        Raises:
            AccessError: `PIN_NOT_YOURS`.
            CheckpointUnavailableError: `PIN_EXPIRED`: its versions may be deleted, resolve again;
                `CHECKPOINT_REVOKED`: its versions stay until the lease ends, but they are wrong.
        """

    @writes(for_readers=True)
    def release(self, pin: str, *, principal: str | None = None) -> None:
        """End a lease. Unknown and expired pins are no error.

        Args:
            pin: the id of the pin.
            principal: refuse a pin that was not made for this principal; None: any pin.

        Raises:
            AccessError: `PIN_NOT_YOURS`.
        """

    @reads
    def live(self) -> tuple[Pin, ...]:
        """The pins whose lease has not ended, by the end of their leases."""

    @reads
    def pinned_checkpoints(self, now_ms: int | None = None) -> frozenset[CheckpointNumber]:
        """The checkpoints of live pins.

        Args:
            now_ms: the time at which a lease counts as ended, in epoch milliseconds; None: now.
        """

    @reads
    def retained_versions(
        self, without: Collection[CheckpointNumber] = ()
    ) -> dict[TableName, frozenset[Version]]:
        """By table the versions that must stay readable: those of unexpired checkpoints, the newest of each
        table, and the pinned ones. Other versions older than the newest may be deleted from the lake.

        Args:
            without: answer as if these checkpoints were expired.
        """

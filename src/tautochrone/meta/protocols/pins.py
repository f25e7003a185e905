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

    @writes(for_readers=True, wire="renew_pin")
    def renew(
        self, pin: str, lease_ms: int, *, if_within_ms: int | None = None, principal: str | None = None
    ) -> None:
        """Extend a lease to `lease_ms` from now.

        With `if_within_ms` nothing is written while more than that is left of it. With `principal` the pin
        must have been made for that principal.

        Raises:
            AccessError: `PIN_NOT_YOURS`.
            CheckpointUnavailableError: `PIN_EXPIRED`; what it held may be gone, resolve again.
                `CHECKPOINT_REVOKED`; what it held is there until the lease ends, and wrong.
        """

    @writes(for_readers=True, wire="release_pin")
    def release(self, pin: str, *, principal: str | None = None) -> None:
        """Let go. Unknown and expired pins are fine. With `principal` the pin must have been
        made for that principal.

        Raises:
            AccessError: `PIN_NOT_YOURS`.
        """

    @reads(wire="pins")
    def live(self) -> tuple[Pin, ...]:
        """The live pins, those that end first coming first."""

    @reads
    def pinned_checkpoints(self, now_ms: int | None = None) -> frozenset[CheckpointNumber]:
        """Checkpoints that live pins hold."""

    @reads
    def retained_versions(
        self, without: Collection[CheckpointNumber] = ()
    ) -> dict[TableName, frozenset[Version]]:
        """Versions that must stay readable: of live checkpoints, the newest of each, the pinned.

        What isn't in it (and is older than the newest version) may be deleted from the lake. `without`
        asks what would be left if these checkpoints were expired.
        """

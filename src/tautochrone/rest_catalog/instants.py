"""What an instant's name means: `strong`, `weak`, `checkpoint-42`, or a mapping registered in process.

It must never know REST or table metadata: it answers names with versions.
"""

from __future__ import annotations

import re
from threading import RLock
from typing import Protocol

from tautochrone.errors import CheckpointUnavailableError, TautochroneError
from tautochrone.meta import DEFAULT_LEASE_MS, MetaStore
from tautochrone.model.checkpoint import Consistency
from tautochrone.model.instants import NEWEST, Lookup
from tautochrone.model.names import TableName, Version

__all__ = ["InstantResolver", "Instants", "checkpoint_instant"]

_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


def checkpoint_instant(number: int) -> str:
    """The instant's name of a checkpoint."""
    return f"checkpoint-{number}"


class InstantResolver(Protocol):
    """What the REST catalog asks."""

    def settle(self, instant: str) -> str:
        """The instant that a client which asks for `instant` keeps: `strong` becomes a checkpoint.

        Raises:
            CheckpointUnavailableError: no such instant.
        """

    def versions(self, instant: str) -> Lookup:
        """The versions at a settled instant.

        Raises:
            CheckpointUnavailableError: no such instant (any more).
        """

    def why_absent(self, instant: str, table: TableName) -> str:
        """Why `versions(instant)(table)` is None."""


class Instants:
    """The instants of one store, and those registered by the runtime and by readers.

    A client that comes with `strong` pins its checkpoint for `lease_ms`; while it keeps asking, the
    lease is extended.
    """

    def __init__(self, store: MetaStore, *, lease_ms: int = DEFAULT_LEASE_MS) -> None:
        self._store = store
        self._lease_ms = lease_ms
        # Re-entrant: `unregister` is also called by finalizers, in whatever their thread is doing.
        self._lock = RLock()
        self._registered: dict[str, Lookup] = {}
        self._leases: dict[str, str] = {}

    def register(self, instant: str, lookup: Lookup) -> None:
        """Give a name to a mapping of this process; asking it again may give newer answers.

        The runtime calls this before it evaluates views at an open target.
        """
        if instant in ("strong", "weak") or _CHECKPOINT.fullmatch(instant):
            raise ValueError(f"{instant!r} already means something")
        with self._lock:
            self._registered[instant] = lookup

    def unregister(self, instant: str) -> None:
        """Forget a registered instant. Unknown ones are fine."""
        with self._lock:
            self._registered.pop(instant, None)

    def settle(self, instant: str) -> str:
        if instant != Consistency.STRONG:
            self.versions(instant)
            return instant
        found = self._store.resolve(lease_ms=self._lease_ms, owner="rest catalog")
        settled = checkpoint_instant(found.checkpoint or 0)
        with self._lock:
            older = self._leases.get(settled)
            self._leases[settled] = found.pin
        if older is not None:
            self._store.release_pin(older)
        return settled

    def versions(self, instant: str) -> Lookup:
        with self._lock:
            registered = self._registered.get(instant)
        if registered is not None:
            return registered
        if instant == Consistency.STRONG:
            return self.versions(self.settle(instant))
        if instant == Consistency.WEAK:
            return self._or_newest(self._store.newest_versions())
        matched = _CHECKPOINT.fullmatch(instant)
        if matched is None:
            raise CheckpointUnavailableError(
                "INSTANT_NOT_FOUND",
                f"{instant!r} is no instant",
                hint="Use strong, weak or checkpoint-<n> as the catalog's warehouse.",
            )
        self._extend(instant)
        return self._or_newest(self._store.published_versions(int(matched[1])))

    def why_absent(self, instant: str, table: TableName) -> str:
        matched = _CHECKPOINT.fullmatch(instant)
        return self._store.why_absent(table, int(matched[1]) if matched else None)

    def _or_newest(self, versions: dict[TableName, Version]) -> Lookup:
        def lookup(table: TableName) -> Version | str | None:
            if table in versions:
                return versions[table]
            return None if self._store.knows(table) else NEWEST

        return lookup

    def _extend(self, instant: str) -> None:
        with self._lock:
            pin = self._leases.get(instant)
        if pin is None:
            return
        try:
            self._store.renew_pin(pin, self._lease_ms, if_within_ms=self._lease_ms // 2)
        except TautochroneError:
            # The client was idle too long. It may go on for as long as the checkpoint is there.
            with self._lock:
                self._leases.pop(instant, None)

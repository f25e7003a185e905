"""Resolves read points (`strong`, `weak`, `checkpoint-42`, or one registered in this process) to versions.

It must never know REST or table metadata: it answers names with versions.
"""

from __future__ import annotations

import re
from threading import RLock
from typing import Protocol

from tautochrone.errors import CheckpointUnavailableError, TautochroneError
from tautochrone.meta import DEFAULT_LEASE_MS, Store
from tautochrone.model.checkpoint import Consistency
from tautochrone.model.names import TableName, Version
from tautochrone.model.read_points import NEWEST, Lookup

__all__ = ["ReadPointResolver", "ReadPoints", "checkpoint_read_point"]

_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


def checkpoint_read_point(number: int) -> str:
    """The read point that shows a published checkpoint."""
    return f"checkpoint-{number}"


class ReadPointResolver(Protocol):
    """What the REST catalog asks."""

    def settle(self, read_point: str) -> str:
        """The read point that a client keeps after asking for `read_point`: `strong` becomes a checkpoint.

        Raises:
            CheckpointUnavailableError: no such read point.
        """

    def versions(self, read_point: str) -> Lookup:
        """The versions at a settled read point.

        Raises:
            CheckpointUnavailableError: no such read point (any more).
        """

    def why_absent(self, read_point: str, table: TableName) -> str:
        """Why `versions(read_point)(table)` is None."""


class ReadPoints:
    """The read points of one store, and those registered by the runtime and by readers.

    A client that comes with `strong` pins its checkpoint for `lease_ms`; while it keeps asking, the
    lease is extended.
    """

    def __init__(self, store: Store, *, lease_ms: int = DEFAULT_LEASE_MS) -> None:
        self._store = store
        self._lease_ms = lease_ms
        # Re-entrant: `unregister` is also called by finalizers, in whatever their thread is doing.
        self._lock = RLock()
        self._registered: dict[str, Lookup] = {}
        self._leases: dict[str, str] = {}

    def register(self, read_point: str, lookup: Lookup) -> None:
        """Give a name to a mapping of this process; asking it again may give newer answers.

        The runtime calls this before it evaluates views at an open target.
        """
        if read_point in ("strong", "weak") or _CHECKPOINT.fullmatch(read_point):
            raise ValueError(f"{read_point!r} already means something")
        with self._lock:
            self._registered[read_point] = lookup

    def unregister(self, read_point: str) -> None:
        """Forget a registered read point. Unknown ones are fine."""
        with self._lock:
            self._registered.pop(read_point, None)

    def settle(self, read_point: str) -> str:
        if read_point != Consistency.STRONG:
            self.versions(read_point)
            return read_point
        found = self._store.reads.resolve(lease_ms=self._lease_ms, owner="rest catalog")
        settled = checkpoint_read_point(found.checkpoint or 0)
        with self._lock:
            older = self._leases.get(settled)
            self._leases[settled] = found.pin
        if older is not None:
            self._store.pins.release(older)
        return settled

    def versions(self, read_point: str) -> Lookup:
        with self._lock:
            registered = self._registered.get(read_point)
        if registered is not None:
            return registered
        if read_point == Consistency.STRONG:
            return self.versions(self.settle(read_point))
        if read_point == Consistency.WEAK:
            return self._or_newest(self._store.reads.newest_versions())
        matched = _CHECKPOINT.fullmatch(read_point)
        if matched is None:
            raise CheckpointUnavailableError(
                "INSTANT_NOT_FOUND",
                f"{read_point!r} is no read point",
                hint="Use strong, weak or checkpoint-<n> as the catalog's warehouse.",
            )
        self._extend(read_point)
        return self._or_newest(self._store.reads.published_versions(int(matched[1])))

    def why_absent(self, read_point: str, table: TableName) -> str:
        matched = _CHECKPOINT.fullmatch(read_point)
        return self._store.reads.missing_reason(table, int(matched[1]) if matched else None)

    def _or_newest(self, versions: dict[TableName, Version]) -> Lookup:
        def lookup(table: TableName) -> Version | str | None:
            if table in versions:
                return versions[table]
            return None if self._store.reads.knows(table) else NEWEST

        return lookup

    def _extend(self, read_point: str) -> None:
        with self._lock:
            pin = self._leases.get(read_point)
        if pin is None:
            return
        try:
            self._store.pins.renew(pin, self._lease_ms, if_within_ms=self._lease_ms // 2)
        except TautochroneError:
            # The client was idle too long. It may go on for as long as the checkpoint is there.
            with self._lock:
                self._leases.pop(read_point, None)

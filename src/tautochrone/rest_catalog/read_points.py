"""Resolves read points (`strong`, `weak`, `checkpoint-42`, or one registered in this process) to versions.

This module must not know REST or table metadata.
"""

from __future__ import annotations

import logging
import re
from threading import RLock

from tautochrone.errors import CheckpointUnavailableError, MetaError
from tautochrone.meta import DEFAULT_LEASE_MS, Store
from tautochrone.model.catalog import NEWEST, Lookup
from tautochrone.model.checkpoint import Consistency
from tautochrone.model.names import TableName, Version

__all__ = ["ReadPoints", "checkpoint_read_point"]

_log = logging.getLogger(__name__)
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


def checkpoint_read_point(number: int) -> str:
    """The read point that shows a published checkpoint."""
    return f"checkpoint-{number}"


class ReadPoints:
    """The read points of one store, and those that the runtime and readers register.

    A client that opens `strong` pins its checkpoint for `lease_ms`. Each later request extends the lease.
    """

    def __init__(self, store: Store, *, lease_ms: int = DEFAULT_LEASE_MS) -> None:
        self._store = store
        self._lease_ms = lease_ms
        # Re-entrant: finalizers call `unregister`, and may run while their thread holds the lock.
        self._lock = RLock()
        self._registered: dict[str, Lookup] = {}
        self._leases: dict[str, str] = {}

    def register(self, read_point: str, lookup: Lookup) -> None:
        """Serve `lookup` under the name `read_point`. It may answer newer versions each time.

        The runtime calls this before it evaluates views at an open checkpoint.
        """
        if read_point in ("strong", "weak") or _CHECKPOINT.fullmatch(read_point):
            raise ValueError(f"{read_point!r} is the name of a built-in read point")
        with self._lock:
            self._registered[read_point] = lookup

    def unregister(self, read_point: str) -> None:
        """Remove a registered read point. Does nothing when there is none of this name."""
        with self._lock:
            self._registered.pop(read_point, None)

    def unregister_all(self) -> None:
        """Remove all registered read points, when nobody is served any more.

        FastAPI keeps the functions of the last apps for its own look-ups, and with them these read points,
        whose look-ups know the job: it would stay in memory.
        """
        with self._lock:
            self._registered.clear()

    def resolve(self, read_point: str) -> str:
        """The read point that a client uses from now on: `strong` becomes the newest readable checkpoint.

        Raises:
            CheckpointUnavailableError: no such read point.
        """
        if read_point != Consistency.STRONG:
            self.versions(read_point)
            return read_point
        resolution = self._store.reads.resolve(lease_ms=self._lease_ms, owner="rest catalog")
        fixed = checkpoint_read_point(resolution.checkpoint or 0)
        with self._lock:
            previous_pin = self._leases.get(fixed)
            self._leases[fixed] = resolution.pin
        if previous_pin is not None:
            self._store.pins.release(previous_pin)
        return fixed

    def versions(self, read_point: str) -> Lookup:
        """The version of each table at a resolved read point.

        Raises:
            CheckpointUnavailableError: no such read point, or its checkpoint expired or was revoked.
        """
        with self._lock:
            registered = self._registered.get(read_point)
        if registered is not None:
            return registered
        if read_point == Consistency.STRONG:
            return self.versions(self.resolve(read_point))
        if read_point == Consistency.WEAK:
            return self._or_newest(self._store.reads.newest_versions())
        matched = _CHECKPOINT.fullmatch(read_point)
        if matched is None:
            raise CheckpointUnavailableError(
                "INSTANT_NOT_FOUND",
                f"{read_point!r} is no read point",
                hint="Use strong, weak or checkpoint-<n> as the catalog's warehouse.",
            )
        self._extend_lease(read_point)
        return self._or_newest(self._store.reads.published_versions(int(matched[1])))

    def missing_reason(self, read_point: str, table: TableName) -> str:
        """Why `versions(read_point)(table)` is None, as the second half of a sentence."""
        matched = _CHECKPOINT.fullmatch(read_point)
        return self._store.reads.missing_reason(table, int(matched[1]) if matched else None)

    def _or_newest(self, versions: dict[TableName, Version]) -> Lookup:
        def lookup(table: TableName) -> Version | str | None:
            if table in versions:
                return versions[table]
            return None if self._store.reads.knows(table) else NEWEST

        return lookup

    def _extend_lease(self, read_point: str) -> None:
        with self._lock:
            pin = self._leases.get(read_point)
        if pin is None:
            return
        try:
            self._store.pins.renew(pin, self._lease_ms, if_within_ms=self._lease_ms // 2)
        except CheckpointUnavailableError:
            # The lease ended or the checkpoint was revoked.
            # A checkpoint that was not revoked stays readable until it expires.
            with self._lock:
                if self._leases.get(read_point) == pin:
                    del self._leases[read_point]
        except MetaError as error:
            if not error.retryable:
                raise
            # At least a part of the lease is left: the client's next request renews it.
            _log.warning("a lease could not be renewed: %s", error)

"""Keeps the versions of a checkpoint readable for as long as something reads them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

from tautochrone.errors import TautochroneError
from tautochrone.meta import DEFAULT_LEASE_MS, Store
from tautochrone.model.checkpoint import Consistency
from tautochrone.model.names import CheckpointNumber

__all__ = ["pinned"]

_log = logging.getLogger(__name__)


@contextmanager
def pinned(
    store: Store, checkpoint: CheckpointNumber, owner: str, *, lease_ms: int = DEFAULT_LEASE_MS
) -> Iterator[None]:
    """Pin all versions of a published checkpoint within the block. A thread renews the lease.

    Args:
        owner: who reads, for people.

    Raises:
        CheckpointUnavailableError: as of `Reads.resolve`.
        QueryError: `TOO_MANY_PINS`.
    """
    pin = store.reads.resolve(
        Consistency.STRONG, (), int(checkpoint), lease_ms=lease_ms, owner=owner, only_named=True
    ).pin
    stopped = Event()

    def renew() -> None:
        while not stopped.wait(lease_ms / 3000):
            try:
                store.pins.renew(pin, lease_ms)
            except TautochroneError as error:
                # What reads finds out itself when a file is gone.
                _log.warning("a pin of %s was not renewed: %s", owner, error)

    thread = Thread(target=renew, name="tautochrone-pin", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(timeout=30)
        try:
            store.pins.release(pin)
        except TautochroneError as error:
            _log.warning("a pin of %s was not released, it ends with its lease: %s", owner, error)

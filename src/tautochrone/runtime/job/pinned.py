"""Keeps the versions of a checkpoint readable for as long as something reads them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

from tautochrone.errors import CheckpointUnavailableError, TautochroneError
from tautochrone.meta import DEFAULT_LEASE_MS, Store
from tautochrone.model.checkpoint import Consistency
from tautochrone.model.names import CheckpointNumber

__all__ = ["pinned", "renewed"]

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
    try:
        with renewed(store, lambda: (pin, lease_ms), owner=owner):
            yield
    finally:
        try:
            store.pins.release(pin)
        except TautochroneError as error:
            _log.warning("a pin of %s was not released, it ends with its lease: %s", owner, error)


@contextmanager
def renewed(
    store: Store,
    lease: Callable[[], tuple[str, int]],
    *,
    owner: str,
    on_lost: Callable[[CheckpointUnavailableError], None] | None = None,
) -> Iterator[None]:
    """Renew a pin three times per lease within the block, in a thread.

    Args:
        lease: the pin, and for how many milliseconds it lasts; both may change.
        owner: who reads, for people.
        on_lost: called in the thread, once, when the versions are pinned no more: the process slept
            for longer than its lease, or a revision took the checkpoint back.
    """
    stopped = Event()

    def renew() -> None:
        while not stopped.wait(lease()[1] / 3000):
            try:
                store.pins.renew(*lease())
            except CheckpointUnavailableError as error:
                # Whoever reads learns it from a file that is gone.
                _log.warning("a pin of %s was lost: %s", owner, error)
                if on_lost is not None:
                    on_lost(error)
                return
            except TautochroneError as error:
                _log.warning("a pin of %s was not renewed: %s", owner, error)

    thread = Thread(target=renew, name="tautochrone-pin", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(timeout=30)

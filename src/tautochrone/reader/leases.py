"""Pins with the lifetime of a Python object: renewed while the object lives, released after it."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread

from tautochrone.errors import CheckpointUnavailableError, TautochroneError
from tautochrone.meta import Store

__all__ = ["Leases"]

_log = logging.getLogger(__name__)
_CLOSE = ""


class Leases:
    """The pins of one reader, renewed three times per lease.

    Args:
        before_renewal: called before each renewal.
    """

    def __init__(self, store: Store, lease_ms: int, before_renewal: Callable[[], None]) -> None:
        self._store = store
        self._lease_ms = lease_ms
        self._before_renewal = before_renewal
        self._pins: set[str] = set()
        # A finalizer may run while its thread holds a lock or a transaction, so it must take neither.
        # `SimpleQueue.put` is safe there.
        self._to_release: SimpleQueue[str] = SimpleQueue()
        self._thread = Thread(target=self._run, name="tautochrone-leases", daemon=True)
        self._thread.start()

    @property
    def pins(self) -> frozenset[str]:
        """The pins held now."""
        return frozenset(self._pins)

    def hold(self, pin: str, holder: object) -> None:
        """Renew `pin` until `holder` is garbage collected, or until `close`."""
        self._pins.add(pin)
        weakref.finalize(holder, self._to_release.put, pin).atexit = False

    def close(self) -> None:
        """Release all pins."""
        self._to_release.put(_CLOSE)
        self._thread.join(timeout=30)
        for pin in self.pins:
            if not self._release(pin):
                # The store does not answer: do not wait for it again for every other pin.
                break

    def _run(self) -> None:
        period_s = self._lease_ms / 3000
        renewal_at = time.monotonic() + period_s
        while True:
            try:
                pin = self._to_release.get(timeout=max(0.001, renewal_at - time.monotonic()))
            except Empty:
                renewal_at = time.monotonic() + period_s
                self._before_renewal()
                for current in self.pins:
                    self._renew(current)
                continue
            if pin == _CLOSE:
                return
            self._release(pin)

    def _renew(self, pin: str) -> None:
        try:
            self._store.pins.renew(pin, self._lease_ms)
        except CheckpointUnavailableError as error:
            # The process slept longer than its lease: the versions that it reads may be expired.
            self._pins.discard(pin)
            _log.warning("a pin was lost: %s", error)
        except TautochroneError as error:
            _log.warning("a lease could not be renewed: %s", error)

    def _release(self, pin: str) -> bool:
        self._pins.discard(pin)
        try:
            self._store.pins.release(pin)
        except TautochroneError as error:  # the lease runs out by itself
            _log.warning("a pin was not released, it ends with its lease: %s", error)
            return False
        return True

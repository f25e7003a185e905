"""Pins that live as long as a Python object: renewed by a heartbeat, released after its end.

It must never know what the objects are.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread

from tautochrone.errors import CheckpointUnavailableError, TautochroneError
from tautochrone.meta import MetaStore

__all__ = ["Leases"]

_log = logging.getLogger(__name__)
_CLOSE = ""


class Leases:
    """The pins of one reader. `on_beat` is called three times a lease."""

    def __init__(self, store: MetaStore, lease_ms: int, on_beat: Callable[[], None]) -> None:
        self._store = store
        self._lease_ms = lease_ms
        self._on_beat = on_beat
        self._pins: set[str] = set()
        # A finalizer may run inside a transaction of its own thread: it must not open another, nor
        # take a lock. Putting into this queue is safe even then.
        self._ended: SimpleQueue[str] = SimpleQueue()
        self._heart = Thread(target=self._run, name="tautochrone-leases", daemon=True)
        self._heart.start()

    @property
    def pins(self) -> frozenset[str]:
        """The pins held now."""
        return frozenset(self._pins)

    def hold(self, pin: str, holder: object) -> None:
        """Keep `pin` until `holder` is gone or `close()`."""
        self._pins.add(pin)
        weakref.finalize(holder, self._ended.put, pin).atexit = False

    def close(self) -> None:
        """Release everything."""
        self._ended.put(_CLOSE)
        self._heart.join(timeout=30)
        for pin in self.pins:
            if not self._release(pin):
                # The store is away: waiting for it once more for each of the others helps nobody.
                break

    def _run(self) -> None:
        period_s = self._lease_ms / 3000
        beat_at = time.monotonic() + period_s
        while True:
            try:
                pin = self._ended.get(timeout=max(0.001, beat_at - time.monotonic()))
            except Empty:
                beat_at = time.monotonic() + period_s
                self._on_beat()
                for held in self.pins:
                    self._renew(held)
                continue
            if pin == _CLOSE:
                return
            self._release(pin)

    def _renew(self, pin: str) -> None:
        try:
            self._store.renew_pin(pin, self._lease_ms)
        except CheckpointUnavailableError as error:
            # This process slept longer than its lease: what it reads may be expired under it.
            self._pins.discard(pin)
            _log.warning("a pin was lost: %s", error)
        except TautochroneError as error:
            _log.warning("a lease could not be renewed: %s", error)

    def _release(self, pin: str) -> bool:
        self._pins.discard(pin)
        try:
            self._store.release_pin(pin)
        except TautochroneError as error:  # the lease runs out by itself
            _log.warning("a pin was not released, it ends with its lease: %s", error)
            return False
        return True

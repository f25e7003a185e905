"""Waiting for a server, in a way that people see why a delivery does not go on."""

from __future__ import annotations

import time
from collections.abc import Callable

from tautochrone.model.reason import Reason

__all__ = ["Waits"]

_REPORT_EVERY_S = 10.0


class Waits:
    """Set `report` to be told of waits."""

    def __init__(self) -> None:
        self.report: Callable[[Reason], None] = lambda _reason: None

    def until_none(
        self, obstacle: Callable[[], Reason | None], limit_s: float, pause_s: float
    ) -> Reason | None:
        """Wait until there is no obstacle; the one that is left when the time is up.

        Args:
            obstacle: asked at once, and after every pause.
        """
        started = time.monotonic()
        next_report = started
        while True:
            reason = obstacle()
            now = time.monotonic()
            if reason is None or now - started > limit_s:
                return reason
            if now >= next_report:
                self.report(reason)
                next_report = now + _REPORT_EVERY_S
            time.sleep(pause_s)

"""Until when a flow has taken in all that its sources held.

The store's clock and this machine's need not agree, so times are not compared across them: the store is
asked for its time, and a trigger that begins afterwards by this machine's clock, which is Spark's too,
looks at its sources after that time. When such a trigger has taken all that it found, so it has for the time
that was asked for. A trigger that took a part (rate limits, a minimum that is not reached), or that ran a
batch planned earlier, says nothing. Must never know what a source is.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tautochrone.model import limits

__all__ = ["Looks", "took_all"]

# PySpark makes a text of every offset, also of one that is not there.
_UNTOLD = (None, "None")


def took_all(progress: Mapping[str, Any], *, limited: bool) -> bool:
    """Whether a trigger took all that it found when it looked.

    Args:
        progress: a `StreamingQueryProgress` of Spark's.
        limited: whether the flow reads files, and bounds how many a batch takes.
    """
    if "latestOffset" not in progress["durationMs"]:
        # The first batch after a start may be one that was planned before it.
        return False
    return all(_took_all_of(source, limited=limited) for source in progress["sources"])


def _took_all_of(source: Mapping[str, Any], *, limited: bool) -> bool:
    start, end, latest = (source[key] for key in ("startOffset", "endOffset", "latestOffset"))
    if latest not in _UNTOLD:
        return bool(end == latest)
    if end not in _UNTOLD and start == end:
        return True
    return not limited and str(source["description"]).startswith("FileStreamSource[")


@dataclass(slots=True)
class Looks:
    """The looks of one flow. `seen_ms` is the last that counts, by the store's clock."""

    seen_ms: int | None = None
    _asked: deque[tuple[int, int]] = field(default_factory=deque)

    def ask(self, store_ms: int) -> None:
        """It is `store_ms` now, or was a moment ago, by the store's clock."""
        if len(self._asked) >= limits.MAX_SOURCE_OBSERVATIONS:
            # A batch that runs for long: every second one will do, the newest among them.
            self._asked = deque(list(self._asked)[1::2])
        self._asked.append((store_ms, time.time_ns() // 1_000_000))

    def took(self, begun_ms: int) -> None:
        """What the sources held at `begun_ms`, by this machine's clock, is committed and reported."""
        while self._asked and self._asked[0][1] < begun_ms:
            self.seen_ms = self._asked.popleft()[0]

    def progressed(self, progress: Mapping[str, Any] | None, *, limited: bool) -> None:
        """A trigger ended; None: none did yet."""
        if progress is not None and took_all(progress, limited=limited):
            begun = datetime.fromisoformat(progress["timestamp"])
            self.took(round(begun.timestamp() * 1000))

"""How long to wait before something is tried again."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Backoff"]

_MOST_DOUBLINGS = 60
"""A float overflows after 1,023; something that is tried every minute fails as often within a day."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Twice as long after each failure in a row, up to a limit.

    >>> [Backoff(first_s=0.5, longest_s=3.0).wait_s(failures) for failures in (1, 2, 3, 4, 5_000)]
    [0.5, 1.0, 2.0, 3.0, 3.0]
    """

    first_s: float
    longest_s: float

    def wait_s(self, failures: int) -> float:
        """Seconds to wait.

        Args:
            failures: in a row, at least 1.
        """
        return min(self.longest_s, self.first_s * 2.0 ** min(failures - 1, _MOST_DOUBLINGS))

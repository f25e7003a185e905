"""Choices read from bytes. Hypothesis draws one byte string per case; smaller bytes make a simpler case."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class ByteChoices:
    """Each choice takes one byte. After the last byte only zeros follow: the first option, nothing, false."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def below(self, limit: int) -> int:
        """A number from 0 to `limit` - 1."""
        value = self._data[self._position] if self._position < len(self._data) else 0
        self._position += 1
        return value % limit

    def chance(self, percent: int) -> bool:
        """True in so many percent of cases. A zero byte is false."""
        return self.below(100) >= 100 - percent

    def choose(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def weighted(self, options: Sequence[tuple[T, int]]) -> T:
        """One of the options, in proportion to their weights. A zero byte gives the first."""
        value = self.below(sum(weight for _, weight in options))
        for option, weight in options:
            if value < weight:
                return option
            value -= weight
        raise AssertionError

    def sample(self, options: Sequence[T], least: int = 0, most: int = 3) -> list[T]:
        """Different options, in any order."""
        pool = list(options)
        number = min(len(pool), least + self.below(most - least + 1))
        return [pool.pop(self.below(len(pool))) for _ in range(number)]

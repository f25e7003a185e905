"""Choices read from bytes: one draw for a whole case, and smaller bytes are a simpler case."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Tape:
    """Where it ends only zeros follow: the first choice, none, false."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def below(self, n: int) -> int:
        value = self._data[self._at] if self._at < len(self._data) else 0
        self._at += 1
        return value % n

    def chance(self, percent: int) -> bool:
        """True so often. Zero is false."""
        return self.below(100) >= 100 - percent

    def choose(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def weighed(self, options: Sequence[tuple[T, int]]) -> T:
        """The first option for zero."""
        left = self.below(sum(weight for _, weight in options))
        for option, weight in options:
            if left < weight:
                return option
            left -= weight
        raise AssertionError

    def some(self, options: Sequence[T], least: int = 0, most: int = 3) -> list[T]:
        """Different ones, in any order."""
        pool = list(options)
        number = min(len(pool), least + self.below(most - least + 1))
        return [pool.pop(self.below(len(pool))) for _ in range(number)]

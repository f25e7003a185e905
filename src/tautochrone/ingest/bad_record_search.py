"""Finding the records on which a query fails, by halving. Pure, no I/O.

A batch of n records with k bad ones takes about k * log2(n) evaluations of ever fewer records. A record
counts as bad only when the query failed on it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from tautochrone.errors import TautochroneError

__all__ = ["BadRecord", "Search", "SearchTooLongError", "Span", "halves"]


@dataclass(frozen=True, slots=True)
class Span:
    """The records of a partition from offset `low` up to and without `high`; there may be gaps."""

    topic: str
    partition: int
    low: int
    high: int

    @property
    def width(self) -> int:
        return self.high - self.low


@dataclass(frozen=True, slots=True)
class BadRecord:
    """Where a record is, and what the query said of it."""

    topic: str
    partition: int
    offset: int
    error: TautochroneError

    @property
    def reason(self) -> str:
        """What the query said, without the flow that every error names."""
        return self.error.message.split(" failed: ", 1)[-1]

    @property
    def place(self) -> str:
        """For people."""
        return f"topic {self.topic}, partition {self.partition}, offset {self.offset}"


Spans: TypeAlias = Sequence[Span]
Probe = Callable[[Spans], TautochroneError | None]
"""Runs the query over some records; answers the error of the data that it raised."""


class SearchTooLongError(Exception):
    """More evaluations would be needed than are allowed; `found` is what was found by then."""

    def __init__(self, found: Sequence[BadRecord]) -> None:
        super().__init__(f"{len(found)} bad records found")
        self.found = found


def halves(spans: Spans) -> tuple[list[Span], list[Span]]:
    """The spans in two parts of the same width, but for one.

    >>> halves([Span("t", 0, 5, 8)])
    ([Span(topic='t', partition=0, low=5, high=6)], [Span(topic='t', partition=0, low=6, high=8)])
    """
    half = sum(span.width for span in spans) // 2
    left: list[Span] = []
    right: list[Span] = []
    for span in spans:
        taken = min(span.width, half)
        half -= taken
        if taken:
            left.append(replace(span, high=span.low + taken))
        if taken < span.width:
            right.append(replace(span, low=span.low + taken))
    return left, right


@dataclass(slots=True)
class Search:
    """One search.

    Args:
        probe: see `Probe`.
        most: so many evaluations at most.
        first: stop at the first bad record.
    """

    probe: Probe
    most: int
    first: bool = False
    probes: int = 0
    _found: list[BadRecord] = field(default_factory=list)

    def run(self, spans: Spans) -> list[BadRecord]:
        """The bad records in spans on which the query failed as a whole.

        Raises:
            SearchTooLongError: `most` evaluations did not suffice.
        """
        # Parts on which it fails, each with the error if it was asked for that part itself.
        waiting: list[tuple[list[Span], TautochroneError | None]] = [(list(spans), None)]
        while waiting and not (self.first and self._found):
            part, error = waiting.pop()
            if sum(span.width for span in part) <= 1:
                self._alone(part, error)
                continue
            left, right = halves(part)
            of_left = self._fails(left)
            if of_left is None:
                # Then it is the other half: that need not be asked.
                waiting.append((right, None))
                continue
            if not self.first:
                of_right = self._fails(right)
                waiting += [(right, of_right)] if of_right is not None else []
            waiting.append((left, of_left))
        return self._found

    def _alone(self, part: Spans, error: TautochroneError | None) -> None:
        error = error or self._fails(part)
        if error is not None:
            self._found.append(BadRecord(part[0].topic, part[0].partition, part[0].low, error))

    def _fails(self, part: Spans) -> TautochroneError | None:
        if self.probes >= self.most:
            raise SearchTooLongError(self._found)
        self.probes += 1
        return self.probe(part)

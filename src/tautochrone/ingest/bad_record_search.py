"""Finding the records on which a query fails, by halving. Pure, no I/O.

A batch of n records with k bad ones takes about k * log2(n) evaluations of ever fewer records. A record
counts as bad only when the query failed on it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from tautochrone.errors import TautochroneError

__all__ = ["BadRecord", "BadRecordSearch", "SearchTooLongError", "Span", "halves"]


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
    """A record and the error that the query raised on it."""

    topic: str
    partition: int
    offset: int
    error: TautochroneError

    @property
    def reason(self) -> str:
        """The error's text without the flow, which every error names."""
        return self.error.message.split(" failed: ", 1)[-1]

    @property
    def location(self) -> str:
        """For people."""
        return f"topic {self.topic}, partition {self.partition}, offset {self.offset}"


Spans: TypeAlias = Sequence[Span]
Probe = Callable[[Spans], TautochroneError | None]
"""Runs the query over some records; answers the error of the data that it raised."""


class SearchTooLongError(Exception):
    """More evaluations would be needed than are allowed; `bad_records` were found before that."""

    def __init__(self, bad_records: Sequence[BadRecord]) -> None:
        super().__init__(f"{len(bad_records)} bad records found")
        self.bad_records = bad_records


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
class BadRecordSearch:
    """One search.

    Args:
        probe: see `Probe`.
        max_probes: how many evaluations are allowed.
        first: stop at the first bad record.
    """

    probe: Probe
    max_probes: int
    first: bool = False
    probes: int = 0
    _bad_records: list[BadRecord] = field(default_factory=list)

    def run(self, spans: Spans) -> list[BadRecord]:
        """The bad records in spans on which the query failed as a whole.

        Raises:
            SearchTooLongError: `max_probes` evaluations did not suffice.
        """
        # Parts on which the query fails, each with its error if the query was run on that part.
        waiting: list[tuple[list[Span], TautochroneError | None]] = [(list(spans), None)]
        while waiting and not (self.first and self._bad_records):
            part, error = waiting.pop()
            if sum(span.width for span in part) <= 1:
                self._single_record(part, error)
                continue
            left, right = halves(part)
            left_error = self._fails(left)
            if left_error is None:
                # Then it fails on the other half: that one need not be run.
                waiting.append((right, None))
                continue
            if not self.first:
                right_error = self._fails(right)
                waiting += [(right, right_error)] if right_error is not None else []
            waiting.append((left, left_error))
        return self._bad_records

    def _single_record(self, part: Spans, error: TautochroneError | None) -> None:
        error = error or self._fails(part)
        if error is not None:
            self._bad_records.append(BadRecord(part[0].topic, part[0].partition, part[0].low, error))

    def _fails(self, part: Spans) -> TautochroneError | None:
        if self.probes >= self.max_probes:
            raise SearchTooLongError(self._bad_records)
        self.probes += 1
        return self.probe(part)

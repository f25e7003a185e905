"""Halving finds exactly the records on which the query fails, with few probes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tautochrone.errors import IngestError, TautochroneError
from tautochrone.ingest.bad_records import BadRecordSearch, SearchTooLongError, Span, halves

SPANS = [Span("a", 0, 5, 105), Span("a", 1, 0, 1), Span("b", 0, 7, 40)]
RECORDS = [(s.topic, s.partition, offset) for s in SPANS for offset in range(s.low, s.high)]


def failing(bad: set[tuple[str, int, int]]):  # type: ignore[no-untyped-def]
    """A query that fails on some records, with an error that names the first of them."""

    def probe(spans: Sequence[Span]) -> TautochroneError | None:
        hit = [p for s in spans for p in sorted(bad) if p[:2] == (s.topic, s.partition) and _in(s, p)]
        return IngestError("BAD", str(hit[0])) if hit else None

    return probe


def _in(span: Span, record: tuple[str, int, int]) -> bool:
    return span.low <= record[2] < span.high


@given(st.sets(st.sampled_from(RECORDS), min_size=1))
def test_search_finds_every_bad_record_with_its_error(bad: set[tuple[str, int, int]]) -> None:
    search = BadRecordSearch(failing(bad), max_probes=10_000)
    bad_records = search.run(SPANS)
    assert {(b.topic, b.partition, b.offset) for b in bad_records} == bad
    assert len(bad_records) == len(bad)
    assert all(b.error.message == str((b.topic, b.partition, b.offset)) for b in bad_records)
    assert search.probes <= len(bad) * 2 * (math.ceil(math.log2(len(RECORDS))) + 1)


@given(st.sampled_from(RECORDS))
def test_search_for_one_takes_a_probe_per_halving(bad: tuple[str, int, int]) -> None:
    search = BadRecordSearch(failing({bad}), max_probes=64, first=True)
    (bad_record,) = search.run(SPANS)
    assert (bad_record.topic, bad_record.partition, bad_record.offset) == bad
    assert search.probes <= math.ceil(math.log2(len(RECORDS))) + 2


@given(st.sets(st.sampled_from(RECORDS), min_size=1))
def test_search_stops_at_the_first(bad: set[tuple[str, int, int]]) -> None:
    (bad_record,) = BadRecordSearch(failing(bad), max_probes=64, first=True).run(SPANS)
    assert (bad_record.topic, bad_record.partition, bad_record.offset) == min(bad)


def test_record_that_fails_only_once_is_not_bad() -> None:
    """The failure was temporary: no single record is to blame."""
    assert BadRecordSearch(lambda _spans: None, max_probes=64).run(SPANS) == []


def test_search_gives_up_at_the_limit() -> None:
    with pytest.raises(SearchTooLongError) as caught:
        BadRecordSearch(failing(set(RECORDS)), max_probes=50).run(SPANS)
    assert 0 < len(caught.value.bad_records) < 50


def test_halves_cover_all_spans() -> None:
    left, right = halves(SPANS)
    assert sum(s.width for s in left) == len(RECORDS) // 2
    both = [(s.topic, s.partition, o) for s in [*left, *right] for o in range(s.low, s.high)]
    assert both == RECORDS

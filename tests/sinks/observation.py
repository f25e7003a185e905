"""Who only looks at a sink writes nothing: a suite for the formats that can be looked at."""

from __future__ import annotations

from contextlib import closing
from typing import Protocol

import pytest

from tautochrone.errors import SinkError
from tautochrone.model.names import CheckpointNumber, Fence
from tautochrone.model.sink import Published, RowAudit, Sink
from tautochrone.testing.sink_conformance import (
    LAKE,
    LINES,
    ORDERS,
    RENAMED,
    SinkBench,
    SinkConformance,
    new_intent,
)

__all__ = ["ObservedBench", "ObservedSink", "RefusesToWrite"]


class ObservedBench(SinkBench, Protocol):
    def observe(self) -> Sink:
        """As `adapters.observe_sink` opens the sink."""

    def objects(self) -> object:
        """What the system has: its objects, and what the sink stores of itself."""


def published_by_observation(bench: ObservedBench) -> Published | None:
    """As whoever only looks at the sink learns it."""
    try:
        with closing(bench.observe()) as observed:
            return observed.published()
    except SinkError as error:
        if error.error_class != "SINK_OBJECT_MISSING":
            raise
        return None


class ObservedSink:
    """Fixture: `bench`, an `ObservedBench`."""

    @pytest.fixture
    def delivered(self, bench: ObservedBench) -> Sink:
        sink = bench.open()
        sink.claim(LAKE)
        sink.fence(Fence(1))
        for table in (ORDERS, LINES):
            sink.ensure(table, bench.schema(), (), Fence(1))
        SinkConformance().deliver(bench, sink, new_intent(1), (1, "one"), (2, None))
        return sink

    def test_nothing_is_created(self, bench: ObservedBench) -> None:
        before = bench.objects()
        assert published_by_observation(bench) is None
        assert bench.objects() == before

    def test_what_was_delivered_is_seen(self, bench: ObservedBench, delivered: Sink) -> None:
        before = bench.objects()
        with closing(bench.observe()) as observed:
            assert observed.published() == delivered.published()
            assert observed.highest_fence() == 1
            assert not observed.changed_tables((ORDERS, LINES), 100)
            assert observed.changed_tables((RENAMED,), 100).keys() == {RENAMED}
        assert bench.objects() == before

    def test_what_was_delivered_is_audited(self, bench: ObservedBench, delivered: Sink) -> None:
        before, checkpoint = bench.objects(), CheckpointNumber(1)
        with closing(bench.observe()) as observed:
            rows, other_rows = bench.frame([(1, "one"), (2, None)]), bench.frame([(1, "one"), (3, None)])
            assert observed.digest(ORDERS, rows) == observed.audit(ORDERS, checkpoint)
            assert observed.audit(ORDERS, checkpoint) == delivered.audit(ORDERS, checkpoint)
            if isinstance(observed, RowAudit):
                assert len(observed.differences(ORDERS, checkpoint, other_rows, 10)) == 2
        assert bench.objects() == before


class RefusesToWrite(ObservedSink):
    """Also whatever else is asked of the sink writes nothing."""

    def test_writing_is_refused(self, bench: ObservedBench, delivered: Sink) -> None:
        before = bench.objects()
        with closing(bench.observe()) as observed:
            with pytest.raises(SinkError):
                observed.fence(Fence(2))
            with pytest.raises(SinkError):
                observed.ensure(RENAMED, bench.schema(), (), Fence(1))
        assert bench.objects() == before
        assert delivered.highest_fence() == 1

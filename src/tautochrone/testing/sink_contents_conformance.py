"""What every sink must do so that a delta only arrives on top of the content from which it starts.

The second part of the suite of `sink_conformance`: an adapter subclasses it beside that one, with the same
fixture `bench`. What damages there are, and how they are repaired, is each adapter's own; see
`tests/sinks/test_damages.py`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tautochrone.errors import SinkError
from tautochrone.model.lake import RowChange
from tautochrone.model.names import CheckpointNumber, Fence
from tautochrone.model.sink import Intent, Sink, TransactionId
from tautochrone.testing.sink_conformance import LAKE, LINES, ORDERS, Row, SinkBench, begin, new_intent

__all__ = ["SinkContentsConformance"]


def change(bench: SinkBench, *rows: Row) -> RowChange:
    return RowChange(added=bench.frame(rows), rows=len(rows))


def deliver(bench: SinkBench, sink: Sink, intent: Intent, *rows: Row) -> Intent:
    """New rows of `ORDERS`, on top of what the sink shows."""
    based = begin(sink, intent)
    sink.prepare(based.transaction, sink.write(based.transaction, ORDERS, change(bench, *rows)))
    sink.commit(based.transaction, based.transaction.fence)
    return based


class SinkContentsConformance:
    """Behaviours of `claim`, `changed_tables` and `Intent.base`. Fixture: `bench`."""

    @pytest.fixture
    def sink(self, bench: SinkBench) -> Sink:
        sink = bench.open()
        sink.claim(LAKE)
        sink.fence(Fence(1))
        for table in (ORDERS, LINES):
            sink.ensure(table, bench.schema(), (), Fence(1))
        return sink

    def test_a_database_belongs_to_one_lake(self, bench: SinkBench, sink: Sink) -> None:
        sink.claim(LAKE)
        bench.open().claim(LAKE)
        with pytest.raises(SinkError) as refused:
            bench.open().claim("lake-2")
        assert refused.value.error_class == "SINK_DATABASE_TAKEN"
        assert not refused.value.retryable
        deliver(bench, sink, new_intent(1), (1, "one"))
        assert bench.read(ORDERS) == [(1, "one")]

    @pytest.mark.parametrize("base", [None, "other"])
    def test_a_transaction_from_another_base_does_not_begin(
        self, bench: SinkBench, sink: Sink, base: str | None
    ) -> None:
        first = deliver(bench, sink, new_intent(1), (1, "one"))
        other = None if base is None else replace(first.transaction, attempt=9)
        with pytest.raises(SinkError) as refused:
            sink.begin(replace(new_intent(2), base=other))
        assert refused.value.error_class == "SINK_BASE_CHANGED"
        assert refused.value.retryable
        deliver(bench, sink, new_intent(2), (2, "two"))
        assert Counter(bench.read(ORDERS)) == Counter([(1, "one"), (2, "two")])

    def test_a_new_sink_shows_no_base(self, sink: Sink) -> None:
        base: TransactionId = new_intent(1).transaction
        with pytest.raises(SinkError) as refused:
            sink.begin(replace(new_intent(2), base=base))
        assert refused.value.error_class == "SINK_BASE_CHANGED"

    def test_what_is_delivered_is_not_changed(self, bench: SinkBench, sink: Sink) -> None:
        both = (ORDERS, LINES) if sink.capabilities.several_tables else (ORDERS,)
        deliver(bench, sink, new_intent(1), (1, "one"), (2, None), (2, None))
        for limit in (None, 0, 1000):
            assert not sink.changed_tables(both, limit)
        # New columns, a rebuild, an aborted transaction and another process change nothing.
        sink.ensure(ORDERS, bench.schema("more"), (), Fence(1))
        assert not sink.changed_tables(both, 0)
        aborted = begin(sink, new_intent(2, attempt=2)).transaction
        sink.write(aborted, ORDERS, change(bench, (3, "three")))
        sink.abort(aborted, Fence(1))
        deliver(bench, sink, new_intent(2, attempt=3), (3, "three"))
        if sink.capabilities.replaces:
            rebuilt = begin(sink, new_intent(3, replaced=(ORDERS,))).transaction
            sink.prepare(rebuilt, sink.replace(rebuilt, ORDERS, bench.frame([(7, "seven"), (7, "seven")])))
            sink.commit(rebuilt, Fence(1))
        again = bench.open()
        assert not again.changed_tables(both, None)
        again.fence(Fence(2))
        again.recover([], Fence(2))
        deliver(bench, again, new_intent(4, fence=2), (8, "eight"))
        assert not again.changed_tables(both, None)
        published = again.published()
        assert published is not None
        assert published.checkpoint == CheckpointNumber(4)

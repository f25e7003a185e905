"""What every sink must do so that a delta only arrives on top of the content from which it starts.

The second part of the suite of `sink_conformance`: an adapter subclasses it beside that one, with the same
fixture `bench`. What damages there are, and how they are repaired, is each adapter's own; see
`tests/sinks/test_damages.py`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from tautochrone.errors import SinkError
from tautochrone.model.lake import RowChange
from tautochrone.model.names import CheckpointNumber, Fence
from tautochrone.model.reason import ReasonCode
from tautochrone.model.sink import Intent, Operation, Sink, TransactionId, TransactionState
from tautochrone.testing.sink_conformance import LAKE, LINES, ORDERS, Row, SinkBench, begin, new_intent
from tautochrone.testing.sqlite_sink import ListRows

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

    # -- columns that change ----------------------------------------------------------------------

    @pytest.fixture(params=["type", "renamed"])
    def rebuild(self, request: pytest.FixtureRequest, bench: SinkBench, sink: Sink) -> Rebuild:
        """Both tables have rows at checkpoint 1, and `ORDERS` gets other columns."""
        before, after = {
            "type": (bench.schema(), bench.numbers()),
            "renamed": (bench.schema("more"), bench.schema("other")),
        }[request.param]
        if after is None:
            pytest.skip("keeps no types")
        is_numeric = request.param == "type"
        columns = ["id", "word", *([] if is_numeric else ["more"])]
        rebuild = Rebuild(bench, columns, before, after, is_numeric=is_numeric)
        sink.ensure(ORDERS, before, (), Fence(1))
        rebuild.deliver_older(sink)
        reason = sink.ensure(ORDERS, after, (), Fence(1))
        assert (reason is None) is bench.takes_any_columns
        if reason is None:
            pytest.skip("takes rows of any columns")
        return rebuild

    def test_other_columns_rebuild_one_table_at_the_commit(
        self, bench: SinkBench, sink: Sink, rebuild: Rebuild
    ) -> None:
        reason = sink.ensure(ORDERS, rebuild.after, (), Fence(1))
        assert reason is not None
        assert reason.code is ReasonCode.SINK_TABLE_REBUILT
        rebuild.stage(sink, new_intent(2))
        assert rebuild.shown() == rebuild.OLDER
        sink.commit(new_intent(2).transaction, Fence(1))
        assert rebuild.shown() == rebuild.NEWER
        again = bench.open()
        for opened in (sink, again):
            assert not opened.changed_tables((ORDERS, LINES), None)
        again.fence(Fence(2))
        again.recover([], Fence(2))
        assert again.ensure(ORDERS, rebuild.after, (), Fence(2)) is None
        rebuild.deliver_delta(again)

    def test_a_rebuild_that_is_given_up_leaves_the_older_table(
        self, bench: SinkBench, sink: Sink, rebuild: Rebuild
    ) -> None:
        rebuild.stage(sink, new_intent(2))
        sink.abort(new_intent(2).transaction, Fence(1))
        assert rebuild.shown() == rebuild.OLDER
        assert not bench.open().changed_tables((ORDERS, LINES), None)
        # The columns are what they were.
        assert sink.ensure(ORDERS, rebuild.before, (), Fence(1)) is None
        change = RowChange(added=rebuild.older_rows([(3, "three", "c")]), rows=1)
        intent = begin(sink, new_intent(2, attempt=2))
        sink.prepare(intent.transaction, sink.write(intent.transaction, ORDERS, change))
        sink.commit(intent.transaction, Fence(1))
        assert not bench.open().changed_tables((ORDERS, LINES), None)

    @pytest.mark.parametrize("operation", [Operation.WRITE, Operation.COMMIT])
    def test_a_rebuild_that_breaks_off_leaves_one_of_both(
        self, bench: SinkBench, sink: Sink, rebuild: Rebuild, operation: Operation
    ) -> None:
        intent = new_intent(2)
        if operation is Operation.COMMIT:
            intent = rebuild.stage(sink, intent)
            error = bench.break_during(operation) or bench.lose_answer()
            with pytest.raises(error):
                sink.commit(intent.transaction, Fence(1))
        else:
            error = bench.break_during(operation) or bench.lose_answer()
            with pytest.raises(error):
                rebuild.stage(sink, intent)
        assert rebuild.shown() in (rebuild.OLDER, rebuild.NEWER)
        rebuild.recover_and_go_on(intent)

    def test_a_rebuild_that_died_before_its_commit(self, sink: Sink, rebuild: Rebuild) -> None:
        rebuild.recover_and_go_on(rebuild.stage(sink, new_intent(2)))


class Rebuild:
    """`ORDERS` gets other columns, and all of its rows; `LINES` a delta."""

    OLDER = (Counter([1, 2]), Counter([1, 2]))
    NEWER = (Counter([1, 2, 3]), Counter([1, 2, 3]))

    def __init__(
        self, bench: SinkBench, columns: list[str], before: Any, after: Any, *, is_numeric: bool
    ) -> None:
        self.before = before
        self.after = after
        self._bench = bench
        self._columns = columns
        self._is_numeric = is_numeric

    def older_rows(self, rows: list[tuple[Any, ...]]) -> ListRows:
        return ListRows(self._columns, [row[: len(self._columns)] for row in rows])

    def newer_rows(self, rows: list[tuple[Any, ...]]) -> ListRows:
        names = [str(name) for name in self.after.fieldNames()]
        return ListRows(
            names, [(key, key if self._is_numeric else "x", "y")[: len(names)] for key, *_ in rows]
        )

    def deliver_older(self, sink: Sink) -> None:
        intent = begin(sink, new_intent(1))
        change = RowChange(added=self.older_rows([(1, "one", "a"), (2, "two", "b")]), rows=2)
        chunks = [*sink.write(intent.transaction, ORDERS, change)]
        lines = RowChange(added=self._bench.frame([(1, "one"), (2, "two")]), rows=2)
        chunks += sink.write(intent.transaction, LINES, lines)
        sink.prepare(intent.transaction, chunks)
        sink.commit(intent.transaction, Fence(1))

    def stage(self, sink: Sink, intent: Intent) -> Intent:
        """Up to the prepare."""
        fence = intent.transaction.fence
        sink.ensure(ORDERS, self.after, (), fence)
        intent = begin(sink, replace(intent, replaced=(ORDERS,)))
        chunks = [*sink.replace(intent.transaction, ORDERS, self.newer_rows([(1,), (2,), (3,)]))]
        lines = RowChange(added=self._bench.frame([(3, "three")]), rows=1)
        chunks += sink.write(intent.transaction, LINES, lines)
        sink.prepare(intent.transaction, chunks)
        return replace(intent, chunks=tuple(chunks))

    def shown(self) -> tuple[Counter[int], Counter[int]]:
        """The ids that readers see in both tables."""
        return Counter(self._bench.ids(ORDERS)), Counter(self._bench.ids(LINES))

    def deliver_delta(self, sink: Sink) -> None:
        """A row goes and one comes, in the table with the new columns."""
        fence = sink.highest_fence()
        intent = begin(sink, new_intent(3, fence=fence))
        change = RowChange(added=self.newer_rows([(4,)]), removed=self.newer_rows([(1,)]), rows=2)
        sink.prepare(intent.transaction, sink.write(intent.transaction, ORDERS, change))
        sink.commit(intent.transaction, fence)
        assert self.shown()[0] == Counter([2, 3, 4])
        expected = self.newer_rows([(2,), (3,), (4,)])
        assert sink.audit(ORDERS, CheckpointNumber(3)) == sink.digest(ORDERS, expected)
        assert not self._bench.open().changed_tables((ORDERS, LINES), None)

    def recover_and_go_on(self, intent: Intent) -> None:
        """Another process comes: readers see all of the older or all of the newer rows, in both tables."""
        again = self._bench.open()
        again.fence(Fence(2))
        (recovered,) = again.recover([intent], Fence(2))
        is_committed = recovered.state is TransactionState.COMMITTED
        assert self.shown() == (self.NEWER if is_committed else self.OLDER)
        assert not again.changed_tables((ORDERS, LINES), None)
        reason = again.ensure(ORDERS, self.after, (), Fence(2))
        assert (reason is None) is is_committed
        if not is_committed:
            staged = self.stage(again, new_intent(2, fence=2))
            again.commit(staged.transaction, Fence(2))
            assert self.shown() == self.NEWER
        self.deliver_delta(again)

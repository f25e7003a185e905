"""What every sink must do: one suite of behaviours, run by each adapter's tests.

An adapter subclasses `SinkConformance` and provides the fixture `bench`: how to open the sink, how to read
it as its users do, and how to break it in the middle of an operation. Behaviours that its capabilities
exclude skip themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import pytest

from tautochrone.errors import SinkContentError, SinkError, SinkFencedError
from tautochrone.model.lake import RowChange, Rows
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.sink import (
    TRANSITIONS,
    Digest,
    DropsMirrors,
    Intent,
    Operation,
    Recovered,
    RenamesMirrors,
    SentChunk,
    Sink,
    TransactionId,
    TransactionState,
)

__all__ = ["CELLS", "Columns", "SinkBench", "SinkConformance", "begin"]

LAKE = "lake-1"
ORDERS = TableName("lake", ("shop",), "orders")
LINES = TableName("lake", ("shop",), "lines")
RENAMED = TableName("lake", ("shop",), "purchases")
COLUMNS = ("id", "word")
Row = tuple[int, str | None]

CELLS = [(operation, state) for operation in Operation for state in TransactionState]
"""Every operation in every state."""


class Columns:
    """Stands for a pyspark StructType where only the names count."""

    def __init__(self, *names: str) -> None:
        self._names = list(names)

    def fieldNames(self) -> list[str]:  # noqa: N802
        return self._names


class SinkBench(Protocol):
    """What the suite needs of an adapter. A new one, with an empty sink, for each test."""

    takes_any_columns: bool
    """The sink takes rows of any columns as they come, and builds nothing anew."""

    def open(self) -> Sink:
        """Open the sink as another process would: only what the sink itself stores is known."""

    def schema(self, *columns: str) -> Any:
        """A schema with `id` BIGINT, `word` STRING and further nullable STRING columns."""

    def numbers(self) -> Any | None:
        """The columns `id` and `word`, both BIGINT; None: the adapter keeps no types."""

    def frame(self, rows: Sequence[tuple[Any, ...]]) -> Rows:
        """Rows of the columns `id` and `word`."""

    def read(self, table: TableName) -> Sequence[tuple[Any, ...]]:
        """What a user of the sink sees."""

    def ids(self, table: TableName) -> Sequence[int]:
        """The values of `id` that a user of the sink sees, whatever other columns there are."""

    def break_during(self, operation: Operation) -> type[Exception] | None:
        """Break the next such operation in its middle; the error that it then raises. None: the adapter
        cannot stop in the middle of it."""

    def lose_answer(self) -> type[Exception]:
        """The next operation is done and its answer lost; the error that it then raises."""

    def lose_row(self) -> None:
        """The next write loses a row before it reaches the sink."""


def transaction(checkpoint: int, fence: int = 1, attempt: int = 1, store: str = "store-1") -> TransactionId:
    return TransactionId(
        incarnation=store,
        sink="mirror",
        checkpoint=CheckpointNumber(checkpoint),
        fence=Fence(fence),
        attempt=attempt,
    )


def new_intent(checkpoint: int, fence: int = 1, attempt: int = 1, **fields: Any) -> Intent:
    versions = {ORDERS: Version(f"o{checkpoint}"), LINES: Version(f"l{checkpoint}")}
    return Intent(transaction=transaction(checkpoint, fence, attempt), versions=versions, **fields)


def begin(sink: Sink, intent: Intent) -> Intent:
    """Begin a transaction whose deltas start from what the sink shows; answers its intent."""
    published = sink.published()
    based = replace(intent, base=None if published is None else published.transaction)
    sink.begin(based)
    return based


class SinkConformance:
    """Behaviours of `model.sink.Sink`. Fixture: `bench`."""

    _sent: Sequence[SentChunk] = ()
    """What `advance_to` staged."""

    @pytest.fixture
    def sink(self, bench: SinkBench) -> Sink:
        sink = bench.open()
        sink.claim(LAKE)
        sink.fence(Fence(1))
        for table in (ORDERS, LINES):
            sink.ensure(table, bench.schema(), (), Fence(1))
        return sink

    # -- helpers -------------------------------------------------------------------------------

    @staticmethod
    def send(
        bench: SinkBench, sink: Sink, intent: Intent, *rows: Row, removed: Sequence[Row] = ()
    ) -> list[SentChunk]:
        """Stage the rows in both tables."""
        change = RowChange(
            added=bench.frame(rows) if rows else None,
            removed=bench.frame(removed) if removed else None,
            rows=len(rows) + len(removed),
        )
        tables = (ORDERS, LINES) if sink.capabilities.several_tables else (ORDERS,)
        return [chunk for table in tables for chunk in sink.write(intent.transaction, table, change)]

    def deliver(
        self, bench: SinkBench, sink: Sink, intent: Intent, *rows: Row, removed: Sequence[Row] = ()
    ) -> None:
        begin(sink, intent)
        sink.prepare(intent.transaction, self.send(bench, sink, intent, *rows, removed=removed))
        sink.commit(intent.transaction, intent.transaction.fence)

    def advance_to(self, bench: SinkBench, sink: Sink, state: TransactionState) -> Intent:
        """A transaction of checkpoint 1 that is brought into this state, with one row."""
        intent = new_intent(1)
        if state is TransactionState.UNKNOWN:
            return intent
        begin(sink, intent)
        self._sent = self.send(bench, sink, intent, (1, "one"))
        if state in (TransactionState.INITIALIZED, TransactionState.ABORTING, TransactionState.ABORTED):
            self._end(bench, state, Operation.ABORT, lambda: sink.abort(intent.transaction, Fence(1)))
            return intent
        sink.prepare(intent.transaction, self._sent)
        if state is not TransactionState.PREPARED:
            self._end(bench, state, Operation.COMMIT, lambda: sink.commit(intent.transaction, Fence(1)))
        return intent

    @staticmethod
    def _end(
        bench: SinkBench, state: TransactionState, operation: Operation, act: Callable[[], None]
    ) -> None:
        if state is TransactionState.INITIALIZED:
            return
        if state in (TransactionState.COMMITTED, TransactionState.ABORTED):
            act()
            return
        error = bench.break_during(operation)
        if error is None:
            pytest.skip(f"{operation} is never half done")
        with pytest.raises(error):
            act()

    def same_rows(self, bench: SinkBench, sink: Sink, *rows: Row) -> None:
        """Both tables show these rows, each as often as it is listed."""
        assert Counter(bench.read(ORDERS)) == Counter(rows)
        if sink.capabilities.several_tables:
            assert Counter(bench.read(LINES)) == Counter(rows)

    # -- one transaction -----------------------------------------------------------------

    def test_a_new_sink_shows_nothing(self, bench: SinkBench, sink: Sink) -> None:
        assert sink.published() is None
        self.same_rows(bench, sink)

    def test_a_commit_shows_rows_and_pointer(self, bench: SinkBench, sink: Sink) -> None:
        intent = new_intent(1)
        self.deliver(bench, sink, intent, (1, "one"), (2, None), (2, None))
        published = sink.published()
        assert published is not None
        assert published.transaction == intent.transaction
        assert published.versions == intent.versions
        self.same_rows(bench, sink, (1, "one"), (2, None), (2, None))

    def test_nothing_is_seen_before_the_commit(self, bench: SinkBench, sink: Sink) -> None:
        self.deliver(bench, sink, new_intent(1), (1, "one"))
        intent = new_intent(2)
        begin(sink, intent)
        chunks = self.send(bench, sink, intent, (2, "two"))
        self.same_rows(bench, sink, (1, "one"))
        sink.prepare(intent.transaction, chunks)
        self.same_rows(bench, sink, (1, "one"))
        published = sink.published()
        assert published is not None
        assert published.checkpoint == 1

    def test_a_delta_removes_one_copy_of_a_row(self, bench: SinkBench, sink: Sink) -> None:
        if not sink.capabilities.retractions:
            pytest.skip("takes no retractions")
        self.deliver(bench, sink, new_intent(1), (1, "one"), (2, None), (2, None))
        self.deliver(bench, sink, new_intent(2), (3, "three"), removed=[(2, None)])
        self.same_rows(bench, sink, (1, "one"), (2, None), (3, "three"))

    def test_a_checkpoint_without_changes_moves_the_pointer(self, bench: SinkBench, sink: Sink) -> None:
        self.deliver(bench, sink, new_intent(1), (1, "one"))
        intent = new_intent(2)
        begin(sink, intent)
        sink.prepare(intent.transaction, [])
        sink.commit(intent.transaction, Fence(1))
        published = sink.published()
        assert published is not None
        assert published.checkpoint == 2
        self.same_rows(bench, sink, (1, "one"))

    def test_a_rebuild_replaces_all_rows_at_the_commit(self, bench: SinkBench, sink: Sink) -> None:
        if not sink.capabilities.replaces:
            pytest.skip("takes deltas only")
        self.deliver(bench, sink, new_intent(1), (1, "one"), (2, "two"))
        intent = new_intent(2, replaced=(ORDERS, LINES))
        begin(sink, intent)
        chunks = [*sink.replace(intent.transaction, ORDERS, bench.frame([(7, "seven"), (7, "seven")]))]
        if sink.capabilities.several_tables:
            chunks += sink.replace(intent.transaction, LINES, bench.frame([]))
        sink.prepare(intent.transaction, chunks)
        self.same_rows(bench, sink, (1, "one"), (2, "two"))
        sink.commit(intent.transaction, Fence(1))
        assert Counter(bench.read(ORDERS)) == Counter({(7, "seven"): 2})
        if sink.capabilities.several_tables:
            assert not bench.read(LINES)

    def test_ensure_adds_columns_and_keeps_rows(self, bench: SinkBench, sink: Sink) -> None:
        self.deliver(bench, sink, new_intent(1), (1, "one"))
        for _ in range(2):
            sink.ensure(ORDERS, bench.schema("more"), (), Fence(1))
        assert bench.read(ORDERS) == [(1, "one", None)]

    # -- tables that leave or get another name ------------------------------------------------------

    def test_a_dropped_mirror_leaves_nothing(self, bench: SinkBench, sink: Sink) -> None:
        if not (isinstance(sink, DropsMirrors) and sink.capabilities.several_tables):
            pytest.skip("cannot drop what it has of a table")
        self.deliver(bench, sink, new_intent(1), (1, "one"))
        assert sink.mirror_of(ORDERS)
        for _ in range(2):
            sink.drop_mirror(ORDERS)
        assert sink.mirror_of(ORDERS) is None
        others = replace(new_intent(2), versions={LINES: Version("l2")})
        self._deliver_one(bench, sink, others, LINES, (2, "two"))
        assert Counter(bench.read(LINES)) == Counter([(1, "one"), (2, "two")])
        sink.ensure(ORDERS, bench.schema(), (), Fence(1))
        self.deliver(bench, sink, new_intent(3), (3, "three"))
        assert bench.read(ORDERS) == [(3, "three")]

    def test_a_renamed_mirror_goes_on(self, bench: SinkBench, sink: Sink) -> None:
        if not isinstance(sink, RenamesMirrors):
            pytest.skip("cannot rename what it has of a table")
        self.deliver(bench, sink, new_intent(1), (1, "one"), (2, "two"))
        for _ in range(2):
            sink.rename_mirror(ORDERS, RENAMED)
        assert sink.mirror_of(ORDERS) is None
        published = sink.published()
        assert published is not None
        assert published.versions == {RENAMED: Version("o1"), LINES: Version("l1")}
        again = bench.open()
        again.claim(LAKE)
        again.fence(Fence(1))
        again.ensure(RENAMED, bench.schema(), (), Fence(1))
        assert again.changed_tables([RENAMED, LINES], None) == {}
        intent = replace(new_intent(2), versions={RENAMED: Version("o2"), LINES: Version("l2")})
        self._deliver_one(bench, again, intent, RENAMED, (3, "three"), removed=[(1, "one")])
        assert Counter(bench.read(RENAMED)) == Counter([(2, "two"), (3, "three")])

    @staticmethod
    def _deliver_one(
        bench: SinkBench,
        sink: Sink,
        intent: Intent,
        table: TableName,
        *rows: Row,
        removed: Sequence[Row] = (),
    ) -> None:
        change = RowChange(
            added=bench.frame(rows), removed=bench.frame(removed) if removed else None, rows=len(rows)
        )
        begin(sink, intent)
        sink.prepare(intent.transaction, sink.write(intent.transaction, table, change))
        sink.commit(intent.transaction, intent.transaction.fence)

    # -- every operation in every state -----------------------------------------------------------

    @pytest.mark.parametrize(("operation", "state"), CELLS)
    def test_operation_in_state(
        self, bench: SinkBench, sink: Sink, operation: Operation, state: TransactionState
    ) -> None:
        intent = self.advance_to(bench, sink, state)
        again = bench.open() if sink.capabilities.resumable else sink
        following = TRANSITIONS[operation].get(state)
        if following is None:
            with pytest.raises(SinkError) as refused:
                self._operate(bench, again, operation, intent)
            assert refused.value.error_class == "SINK_TRANSACTION_STATE"
        else:
            for _ in range(2 if TRANSITIONS[operation].get(following) is following else 1):
                self._operate(bench, again, operation, intent)
        committed = following is TransactionState.COMMITTED or state is TransactionState.COMMITTED
        self.same_rows(bench, again, *([(1, "one")] if committed else []))

    def _operate(self, bench: SinkBench, sink: Sink, operation: Operation, intent: Intent) -> None:
        if operation is Operation.BEGIN:
            assert sink.begin(intent) is TransactionState.INITIALIZED
        elif operation is Operation.WRITE:
            self.send(bench, sink, intent, (1, "one"))
        elif operation is Operation.PREPARE:
            sink.prepare(intent.transaction, self._sent)
        elif operation is Operation.COMMIT:
            sink.commit(intent.transaction, Fence(1))
        else:
            sink.abort(intent.transaction, Fence(1))

    # -- lost answers and half states -------------------------------------------------------------

    @pytest.mark.parametrize("operation", Operation)
    def test_a_lost_answer_is_asked_again(self, bench: SinkBench, sink: Sink, operation: Operation) -> None:
        before = {
            Operation.BEGIN: TransactionState.UNKNOWN,
            Operation.WRITE: TransactionState.INITIALIZED,
            Operation.PREPARE: TransactionState.INITIALIZED,
            Operation.COMMIT: TransactionState.PREPARED,
            Operation.ABORT: TransactionState.PREPARED,
        }
        intent = self.advance_to(bench, sink, before[operation])
        error = bench.lose_answer()
        with pytest.raises(error):
            self._operate(bench, sink, operation, intent)
        self._operate(bench, sink, operation, intent)
        self.same_rows(bench, sink, *([(1, "one")] if operation is Operation.COMMIT else []))

    def test_writing_again_doubles_nothing(self, bench: SinkBench, sink: Sink) -> None:
        intent = new_intent(1)
        begin(sink, intent)
        self.send(bench, sink, intent, (1, "one"))
        chunks = self.send(bench, sink, intent, (1, "one"))
        sink.prepare(intent.transaction, chunks)
        sink.commit(intent.transaction, Fence(1))
        self.same_rows(bench, sink, (1, "one"))

    def test_a_row_lost_on_the_way_is_found_by_prepare(self, bench: SinkBench, sink: Sink) -> None:
        intent = new_intent(1)
        begin(sink, intent)
        bench.lose_row()
        chunks = self.send(bench, sink, intent, (1, "one"), (2, "two"))
        with pytest.raises(SinkContentError):
            sink.prepare(intent.transaction, chunks)
        with pytest.raises(SinkError):
            sink.commit(intent.transaction, Fence(1))
        sink.abort(intent.transaction, Fence(1))
        self.same_rows(bench, sink)

    def test_a_chunk_that_never_arrived_is_found_by_prepare(self, sink: Sink) -> None:
        intent = new_intent(1)
        begin(sink, intent)
        chunk = SentChunk(table=ORDERS, number=0, digest=Digest(1, "1"))
        with pytest.raises(SinkContentError):
            sink.prepare(intent.transaction, [chunk])

    @pytest.mark.parametrize("state", TransactionState)
    def test_recovery_decides_every_state(
        self, bench: SinkBench, sink: Sink, state: TransactionState
    ) -> None:
        intent = self.advance_to(bench, sink, state)
        again = bench.open()
        again.fence(Fence(2))
        for _ in range(2):
            (recovered,) = again.recover([intent], Fence(2))
            assert recovered.transaction == intent.transaction
            committed = recovered.state is TransactionState.COMMITTED
            if state in (TransactionState.COMMITTING, TransactionState.COMMITTED):
                assert committed
            elif state is not TransactionState.PREPARED:
                assert recovered == Recovered(intent.transaction, TransactionState.ABORTED)
            self.same_rows(bench, again, *([(1, "one")] if committed else []))
            assert (again.published() is not None) is committed
        if committed:
            self.deliver(bench, again, new_intent(2, fence=2), (2, "two"))
            self.same_rows(bench, again, (1, "one"), (2, "two"))
        else:
            self.deliver(bench, again, new_intent(1, fence=2, attempt=2), (1, "one"))
            self.same_rows(bench, again, (1, "one"))

    @pytest.mark.parametrize("operation", [Operation.WRITE, Operation.COMMIT, Operation.ABORT])
    def test_recovery_after_an_operation_broke(
        self, bench: SinkBench, sink: Sink, operation: Operation
    ) -> None:
        before = {Operation.WRITE: TransactionState.INITIALIZED}.get(operation, TransactionState.PREPARED)
        intent = self.advance_to(bench, sink, before)
        error = bench.break_during(operation)
        if error is None:
            pytest.skip(f"{operation} is never half done")
        with pytest.raises(error):
            self._operate(bench, sink, operation, intent)
        again = bench.open()
        again.fence(Fence(2))
        (recovered,) = again.recover([intent], Fence(2))
        rows = [(1, "one")] if recovered.state is TransactionState.COMMITTED else []
        assert (recovered.state is TransactionState.COMMITTED) is (operation is Operation.COMMIT)
        self.same_rows(bench, again, *rows)
        self.deliver(bench, again, new_intent(2, fence=2), (2, "two"))
        self.same_rows(bench, again, *rows, (2, "two"))

    def test_recovery_drops_what_no_intent_names(self, bench: SinkBench, sink: Sink) -> None:
        self.deliver(bench, sink, new_intent(1), (1, "one"))
        self.leave_transaction(bench, sink)
        again = bench.open()
        again.fence(Fence(2))
        assert not again.recover([], Fence(2))
        self.same_rows(bench, again, (1, "one"))
        self.deliver(bench, again, new_intent(2, fence=2), (2, "two"))
        self.same_rows(bench, again, (1, "one"), (2, "two"))

    def leave_transaction(self, bench: SinkBench, sink: Sink) -> None:
        """A transaction of checkpoint 2 that no intent names."""
        intent = new_intent(2)
        begin(sink, intent)
        sink.prepare(intent.transaction, self.send(bench, sink, intent, (2, "two")))

    # -- owners -----------------------------------------------------------------------------------

    def test_a_lower_fence_is_refused(self, bench: SinkBench, sink: Sink) -> None:
        sink.fence(Fence(3))
        sink.fence(Fence(3))
        assert bench.open().highest_fence() == 3
        with pytest.raises(SinkFencedError):
            sink.fence(Fence(2))
        with pytest.raises(SinkFencedError):
            sink.ensure(ORDERS, bench.schema(), (), Fence(2))

    @pytest.mark.parametrize("operation", Operation)
    def test_an_older_owner_can_do_nothing(self, bench: SinkBench, sink: Sink, operation: Operation) -> None:
        before = {
            Operation.BEGIN: TransactionState.UNKNOWN,
            Operation.COMMIT: TransactionState.PREPARED,
        }
        intent = self.advance_to(bench, sink, before.get(operation, TransactionState.INITIALIZED))
        bench.open().fence(Fence(2))
        with pytest.raises(SinkFencedError):
            self._operate(bench, sink, operation, intent)
        self.same_rows(bench, sink)

    def test_a_zombie_that_wakes_between_prepare_and_commit_moves_nothing(
        self, bench: SinkBench, sink: Sink
    ) -> None:
        zombie = self.advance_to(bench, sink, TransactionState.PREPARED)
        owner = bench.open()
        owner.fence(Fence(2))
        (recovered,) = owner.recover([zombie], Fence(2))
        rows: list[Row] = [(1, "one")]
        if recovered.state is not TransactionState.COMMITTED:
            self.deliver(bench, owner, new_intent(1, fence=2), *rows)
        with pytest.raises(SinkError):
            sink.commit(zombie.transaction, Fence(1))
        self.same_rows(bench, owner, *rows)

    # -- audit ------------------------------------------------------------------------------------

    def test_an_audit_answers_the_digest_of_the_rows(self, bench: SinkBench, sink: Sink) -> None:
        if not sink.capabilities.audits:
            pytest.skip("cannot tell what it holds")
        self.deliver(bench, sink, new_intent(1), (1, "one"), (2, None), (2, None))
        same = bench.frame([(2, None), (1, "one"), (2, None)])
        other = bench.frame([(2, None), (1, "one"), (1, "one")])
        checkpoint = CheckpointNumber(1)
        assert sink.audit(ORDERS, checkpoint) == sink.digest(ORDERS, same)
        assert sink.audit(ORDERS, checkpoint) != sink.digest(ORDERS, other)

    def test_an_audit_of_an_unknown_checkpoint_is_refused(self, bench: SinkBench, sink: Sink) -> None:
        if not sink.capabilities.audits:
            pytest.skip("cannot tell what it holds")
        self.deliver(bench, sink, new_intent(1), (1, "one"))
        with pytest.raises(SinkError) as refused:
            sink.audit(ORDERS, CheckpointNumber(5))
        assert refused.value.error_class == "SINK_CHECKPOINT_GONE"

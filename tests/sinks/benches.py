"""What the benches of several sinks share: rows of Spark's types, lost answers and rows, one delivery."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import pytest
from pyspark.sql import types as spark

from tautochrone.model.lake import RowChange
from tautochrone.model.names import TableName, Version
from tautochrone.model.sink import TRANSITIONS, Intent, Operation, Sink, TransactionId, TransactionState
from tautochrone.testing.sink_conformance import CELLS, COLUMNS, SinkBench, SinkConformance, begin
from tautochrone.testing.sqlite_sink import ListRows

__all__ = ["ORDERS", "FewRefusals", "LosesAnswers", "LostAnswerError", "SparkBench", "deliver", "stage"]

ORDERS = TableName("lake", ("default",), "orders")


class LostAnswerError(Exception):
    """The operation was done, and its answer did not arrive."""


def _cells() -> list[Any]:
    """Every operation in every state; of those that a state refuses one is in CI."""
    in_ci = {(operation, state) for operation in Operation for state in TRANSITIONS[operation]}
    in_ci |= {(Operation.WRITE, state) for state in TransactionState}
    in_ci.add((Operation.COMMIT, TransactionState.INITIALIZED))
    return [pytest.param(*cell, marks=() if cell in in_ci else pytest.mark.slow) for cell in CELLS]


class FewRefusals(SinkConformance):
    """The suite for sinks in which a transaction takes long: `next_state` refuses for all sinks, and over
    SQLite every refusal is in CI."""

    @pytest.mark.parametrize(("operation", "state"), _cells())
    def test_operation_in_state(
        self, bench: SinkBench, sink: Sink, operation: Operation, state: TransactionState
    ) -> None:
        super().test_operation_in_state(bench, sink, operation, state)


class _Closeable(Protocol):
    def close(self) -> None: ...


class SparkBench:
    """A bench (`testing.sink_conformance.SinkBench`) without the system itself.

    An adapter's bench adds `open`, which hands every sink to `opened`, and `read`. Its sink derives from
    `LosesAnswers`, and passes what it sends through `without_lost_row`.
    """

    takes_any_columns = False

    def __init__(self) -> None:
        self.loses_row = self.loses_answer = False
        self.columns: list[str] = list(COLUMNS)
        """Those of the newest schema."""
        self._sinks: list[_Closeable] = []

    def opened(self, sink: Any) -> Any:
        """Close the sink with the bench."""
        sink.bench = self
        self._sinks.append(sink)
        return sink

    def without_lost_row(self, rows: Any) -> Any:
        """What arrives of rows that are sent: after `lose_row` one less, once."""
        if self.loses_row:
            self.loses_row = False
            return rows[:-1]
        return rows

    def schema(self, *columns: str) -> Any:
        self.columns = [*COLUMNS, *columns]
        texts = [spark.StructField(name, spark.StringType()) for name in self.columns[1:]]
        return spark.StructType([spark.StructField("id", spark.LongType()), *texts])

    def numbers(self) -> Any:
        self.columns = list(COLUMNS)
        return spark.StructType([spark.StructField(name, spark.LongType()) for name in COLUMNS])

    def frame(self, rows: Sequence[tuple[Any, ...]]) -> ListRows:
        return ListRows(list(COLUMNS), rows)

    def read(self, table: TableName) -> Sequence[tuple[Any, ...]]:
        raise NotImplementedError

    def ids(self, table: TableName) -> Sequence[int]:
        columns, self.columns = self.columns, ["id"]
        try:
            return [row[0] for row in self.read(table)]
        finally:
            self.columns = columns

    def break_during(self, operation: Operation) -> type[Exception] | None:
        # A commit is one transaction, and what is staged ends with the connection.
        return None

    def lose_answer(self) -> type[Exception]:
        self.loses_answer = True
        return LostAnswerError

    def lose_row(self) -> None:
        self.loses_row = True

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()


class LosesAnswers:
    """The first base of a bench's sink."""

    bench: Any

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name not in tuple(Operation):
            return value

        def operate(*arguments: Any, **named: Any) -> Any:
            answer = value(*arguments, **named)
            if self.bench.loses_answer:
                self.bench.loses_answer = False
                raise LostAnswerError(name)
            return answer

        return operate


def stage(
    sink: Sink,
    opened: TransactionId,
    added: Sequence[tuple[Any, ...]],
    removed: Sequence[tuple[Any, ...]] = (),
    columns: Sequence[str] = COLUMNS,
) -> None:
    """A checkpoint with changed rows of `ORDERS`, up to the prepare."""
    begin(sink, Intent(transaction=opened, versions={ORDERS: Version(f"o{opened.checkpoint}")}))
    change = RowChange(
        added=ListRows(list(columns), added) if added else None,
        removed=ListRows(list(columns), removed) if removed else None,
        rows=len(added) + len(removed),
    )
    sink.prepare(opened, sink.write(opened, ORDERS, change))


def deliver(
    sink: Sink,
    opened: TransactionId,
    added: Sequence[tuple[Any, ...]],
    removed: Sequence[tuple[Any, ...]] = (),
    columns: Sequence[str] = COLUMNS,
) -> None:
    """A checkpoint with changed rows of `ORDERS`, up to the commit."""
    stage(sink, opened, added, removed, columns)
    sink.commit(opened, opened.fence)

"""The toy sink passes the suite of all sinks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.sinks.observation import ObservedSink

from tautochrone.errors import SinkError
from tautochrone.model.names import TableName
from tautochrone.model.sink import TRANSITIONS, Operation, Sink, TransactionState
from tautochrone.sinks import has_adapter, observe_sink, open_sink
from tautochrone.testing.sink_conformance import COLUMNS, Columns, SinkConformance
from tautochrone.testing.sink_contents_conformance import SinkContentsConformance
from tautochrone.testing.sqlite_sink import FORMAT, ListRows, Mishap, MishapError, SqliteSink

BREAKS = {
    Operation.WRITE: Mishap.HALF_WRITTEN,
    Operation.COMMIT: Mishap.HALF_COMMITTED,
    Operation.ABORT: Mishap.HALF_ABORTED,
}


class Bench:
    """The toy sink in a folder of the test."""

    takes_any_columns = False

    def __init__(self, folder: Path) -> None:
        self._path = str(folder / "mirror.db")
        self._mishaps = SqliteSink.mishaps.setdefault(self._path, [])

    def open(self) -> Sink:
        return SqliteSink("mirror", self._path, chunk_rows=1)

    def observe(self) -> Sink:
        return observe_sink("mirror", FORMAT, {"path": self._path})

    def objects(self) -> object:
        path = Path(self._path)
        return path.exists() and path.read_bytes()

    def schema(self, *columns: str) -> Any:
        return Columns(*COLUMNS, *columns)

    def frame(self, rows: Sequence[tuple[Any, ...]]) -> ListRows:
        return ListRows([*COLUMNS], rows)

    def read(self, table: TableName) -> Sequence[tuple[Any, ...]]:
        return SqliteSink("mirror", self._path).rows(table)

    def numbers(self) -> None:
        return None

    def ids(self, table: TableName) -> Sequence[int]:
        return [row[0] for row in self.read(table)]

    def break_during(self, operation: Operation) -> type[Exception] | None:
        if operation not in BREAKS:
            return None
        self._mishaps.append(BREAKS[operation])
        return MishapError

    def lose_answer(self) -> type[Exception]:
        self._mishaps.append(Mishap.ANSWER_LOST)
        return MishapError

    def lose_row(self) -> None:
        self._mishaps.append(Mishap.ROW_LOST)


class TestSqliteSink(SinkConformance):
    @pytest.fixture
    def bench(self, tmp_path: Path) -> Bench:
        return Bench(tmp_path)


class TestSqliteSinkContents(SinkContentsConformance):
    @pytest.fixture
    def bench(self, tmp_path: Path) -> Bench:
        return Bench(tmp_path)


class TestObservedSqliteSink(ObservedSink):
    @pytest.fixture
    def bench(self, tmp_path: Path) -> Bench:
        return Bench(tmp_path)


def test_the_registry_opens_sinks_by_format(tmp_path: Path) -> None:
    assert has_adapter(FORMAT)
    sink = open_sink("mirror", FORMAT.upper(), {"path": str(tmp_path / "x" / "mirror.db")})
    assert sink.published() is None


def test_a_format_without_adapter_is_refused() -> None:
    assert not has_adapter("console")
    with pytest.raises(SinkError) as refused:
        open_sink("mirror", "console", {})
    assert refused.value.error_class == "SINK_FORMAT_UNKNOWN"


def test_a_missing_option_is_named() -> None:
    with pytest.raises(SinkError, match="path"):
        open_sink("mirror", FORMAT, {})


def test_the_page_has_the_table_of_operations_and_states() -> None:
    lines = (Path(__file__).parents[2] / "docs" / "sinks.md").read_text().splitlines()
    assert "| | " + " | ".join(TransactionState) + " |" in lines
    for operation in Operation:
        cells = [TRANSITIONS[operation].get(state, "refused") for state in TransactionState]
        assert f"| {operation} | " + " | ".join(cells) + " |" in lines

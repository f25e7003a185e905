"""Rows come to a sink in as few batches as its chunks allow."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tautochrone.errors import SinkError
from tautochrone.sinks import batches
from tautochrone.sinks.batches import array_batches, column_batches, values_of_columns


class Frame:
    """Rows in Arrow batches of three, as Spark gives them in its own size."""

    columns = ("id",)

    def toArrow(self) -> pa.Table:  # noqa: N802
        parts = [pa.array(range(first, min(first + 3, 10)), pa.int64()) for first in range(0, 10, 3)]
        return pa.table({"id": pa.chunked_array([*parts, pa.array([], pa.int64())])})

    def toLocalIterator(self) -> Any:  # noqa: N802
        raise NotImplementedError


@pytest.mark.parametrize(("chunk_rows", "sizes"), [(100, [10]), (10, [10]), (4, [4, 4, 2]), (1, [1] * 10)])
def test_batches_have_the_rows_of_a_chunk(chunk_rows: int, sizes: list[int]) -> None:
    batches = list(array_batches(Frame(), chunk_rows, 10))
    assert [len(columns[0]) for _, columns in batches] == sizes
    assert [names for names, _ in batches] == [["id"]] * len(sizes)
    values = [value for _, (column,) in column_batches(Frame(), chunk_rows, 10) for value in column]
    assert values == list(range(10))


def test_tables_with_many_bytes_are_not_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_GATHERED_BYTES", 40)
    tables = iter([pa.table({"id": pa.array([number] * 3, pa.int64())}) for number in range(5)])
    assert [table.num_rows for table in batches._tables_of_chunks(tables, 1000)] == [6, 6, 3]


@pytest.mark.spark
def test_columns_with_dots_are_columns(spark: SparkSession) -> None:
    rows = spark.sql("SELECT 1 AS `a.b`, struct(2 AS b) AS a")
    ((names, columns),) = array_batches(rows, 10)
    assert (names, [column.to_pylist() for column in columns]) == (["a.b", "a"], [[1], [{"b": 2}]])


def test_only_a_column_that_rows_lack_is_null() -> None:
    assert values_of_columns(["id", "word"], ["word", "id"], [["a"], [1]]) == [[1], ["a"]]
    assert values_of_columns(["id", "word"], ["id"], [[1]]) == [[1], None]
    # The rows of another version, a column that was renamed, and one of another case.
    for names in (["id", "text"], ["Id", "word"], ["id", "word", "more"]):
        with pytest.raises(SinkError, match="SINK_ROWS_OF_OTHER_COLUMNS"):
            values_of_columns(["id", "word"], names, [[1]] * len(names))

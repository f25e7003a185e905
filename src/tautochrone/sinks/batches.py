"""Rows of the lake in batches of columns, for adapters that send them from the driver."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from tautochrone.errors import SinkError
from tautochrone.model.lake import Rows

__all__ = ["array_batches", "column_batches", "single_precision", "values_of_columns"]

_COLLECTED_ROWS = 100_000
"""So many changed rows at most come to the driver in one piece."""
_GATHERED_BYTES = 32 * 1024 * 1024
"""So many bytes are sent in one batch, however few rows they are."""


def column_batches(
    rows: Rows, chunk_rows: int, known_rows: int | None = None
) -> Iterator[tuple[Sequence[str], Sequence[Sequence[Any]]]]:
    """`array_batches` with Python's values."""
    for names, columns in array_batches(rows, chunk_rows, known_rows):
        yield names, [column.to_pylist() if isinstance(column, pa.Array) else column for column in columns]


def array_batches(
    rows: Rows, chunk_rows: int, known_rows: int | None = None
) -> Iterator[tuple[Sequence[str], Sequence[Any]]]:
    """Names of columns, and their values column by column. Empty batches are left out.

    Of many rows, or of an unknown number, only a part is in memory at a time. A column is an Arrow array, or
    a sequence of Python's values if the rows are not of Spark.
    """
    if not hasattr(rows, "toArrow"):
        # A list of rows without Spark.
        listed = [tuple(row) for row in rows.toLocalIterator()]
        for start in range(0, len(listed), chunk_rows):
            yield rows.columns, list(zip(*listed[start : start + chunk_rows], strict=True))
        return
    few = known_rows is not None and known_rows <= _COLLECTED_ROWS
    tables = iter([rows.toArrow()]) if few else _partition_tables(rows)
    for table in _tables_of_chunks(tables, chunk_rows):
        for batch in table.to_batches(max_chunksize=chunk_rows):
            yield table.column_names, batch.columns


def values_of_columns(columns: Sequence[str], names: Sequence[str], values: Sequence[Any]) -> list[Any]:
    """The values of rows for each column of a table of a sink; None for a column that the rows lack: they are
    of a version that does not have it, so it is NULL in them.

    Args:
        columns: of the sink's table.
        names: of the columns that the rows have.
        values: of these, each an array or a sequence.

    Raises:
        SinkError: `SINK_ROWS_OF_OTHER_COLUMNS`, the rows have a column that the table lacks, be it by a
            letter's case. Left out, it would be lost, and the one that it was called before would be NULL.

    Example:
        >>> values_of_columns(["id", "word"], ["id"], [[1, 2]])
        [[1, 2], None]
    """
    given = dict(zip(names, values, strict=True))
    unknown = [name for name in given if name not in columns]
    if unknown:
        raise SinkError(
            "SINK_ROWS_OF_OTHER_COLUMNS",
            f"Rows of the lake have the columns {', '.join(unknown)}, and the table of the sink has "
            f"{', '.join(columns)}",
            hint="The next delivery gives the table of the sink the columns of the lake: see `taut sinks`.",
            retryable=True,
            sqlstate="42703",
        )
    return [given.get(column) for column in columns]


def single_precision(number: float) -> float:
    """A value of Spark's type FLOAT, whose digits beyond 32 bits count for nothing.

    >>> single_precision(0.1)
    0.10000000149011612
    """
    return float(struct.unpack("<f", struct.pack("<f", number))[0])


def _tables_of_chunks(tables: Iterator[pa.Table], chunk_rows: int) -> Iterator[pa.Table]:
    """Tables of at least `chunk_rows` rows, or many bytes, but the last one, each in one piece.

    Spark's Arrow batches have 10,000 rows at most, and each batch would be a request to the sink.
    """
    gathered: list[pa.Table] = []
    rows = size = 0
    for table in tables:
        if not table.num_rows:
            continue
        gathered.append(table)
        # Not `nbytes`, which crashes: Spark writes empty arrays within arrays without their offsets.
        rows, size = rows + table.num_rows, size + table.get_total_buffer_size()
        if rows >= chunk_rows or size >= _GATHERED_BYTES:
            yield pa.concat_tables(gathered).combine_chunks()
            gathered, rows, size = [], 0, 0
    if gathered:
        yield pa.concat_tables(gathered).combine_chunks()


def _partition_tables(frame: Any) -> Iterator[pa.Table]:
    """A DataFrame in Arrow tables, one partition after the other."""

    # Nested, so that executors need nothing of this package.
    def packed(record_batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for record_batch in record_batches:
            buffer = pa.BufferOutputStream()
            with pa.ipc.new_stream(buffer, record_batch.schema) as writer:
                writer.write_batch(record_batch)
            yield pa.RecordBatch.from_arrays(
                [pa.array([buffer.getvalue().to_pybytes()], pa.binary())], names=["batch"]
            )

    # PySpark takes a dot in a column's name for a field of a struct.
    numbered: Any = (
        frame.toDF(*map(str, range(len(frame.columns)))) if isinstance(frame, DataFrame) else frame
    )
    for row in numbered.mapInArrow(packed, "batch binary").toLocalIterator():
        yield pa.ipc.open_stream(bytes(row.batch)).read_all().rename_columns(frame.columns)

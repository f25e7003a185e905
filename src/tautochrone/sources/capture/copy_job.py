"""The first copy as a Spark job: each task reads chunks, each by a connection of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tautochrone.errors import IngestError
from tautochrone.model.capture_files import CopiedFile
from tautochrone.model.lake import TaskStage, TaskWriter
from tautochrone.sources.capture.access import TEXT_NOT_DECODABLE, text_not_decodable
from tautochrone.sources.capture.copied_rows import ChunkRows, file_row, log_batches
from tautochrone.sources.capture.log_schema import SPARK_SCHEMA
from tautochrone.sources.capture.typed_rows import typed_rows

__all__ = ["ReadChunk", "connection_lost", "copy_by_tasks"]

T = TypeVar("T")
ReadChunk = Callable[[int], Iterator[ChunkRows | pa.RecordBatch]]
"""Reads the chunk with a number by one statement; record batches are rows of the log table. It is sent to
tasks."""


def copy_by_tasks(
    session: SparkSession,
    capture: str,
    count: int,
    tasks: int,
    read_chunk: ReadChunk,
    stage: Callable[[DataFrame], T],
    check_readable: Callable[[], object],
    extra: str,
) -> T:
    """Read so many chunks by so many tasks, or fewer.

    What `read_chunk` knows, such as a password, goes to the tasks within their serialised function, which no
    plan, event log or page shows.

    Args:
        stage: gets rows of the log table, which are read when it writes them. See `BulkOnExecutors`.
        check_readable: raises what the driver sees to be wrong with the database, its tables or rights.
        extra: of the package, with the database's driver.

    Raises:
        IngestError: `CAPTURE_COPY_FAILED`; and what `check_readable` raises.
    """
    writer, copies = (stage.writer, stage.copies) if isinstance(stage, TaskStage) else (None, {})
    schema = SPARK_SCHEMA if writer is None else writer.files_schema
    reader = _ChunkReader(read_chunk, writer, copies)
    frame = session.range(0, count, 1, min(count, tasks)).mapInArrow(reader, schema)
    try:
        return stage(frame)
    except BaseException as error:
        for of_table in copies.values():
            of_table.remove_files()
        if not isinstance(error, (PySparkException, Py4JError)):
            raise
        # The error of a task is only a text here: first look for what the driver can see itself.
        check_readable()
        if f"[{TEXT_NOT_DECODABLE}]" in str(error):
            raise text_not_decodable(f"A table of the capture {capture}", _last_line(error)) from error
        raise IngestError(
            "CAPTURE_COPY_FAILED",
            f"A task of Spark could not copy rows of the capture {capture}: {_last_line(error)}",
            hint=f"executors need Python with tautochrone[{extra}], and a way to the database; with "
            "capture(…, copy_tasks=0) the driver copies",
            retryable=True,
        ) from error


def connection_lost(source: str) -> IngestError:
    """For a connection that was open when a copy began and is not any more: the server may have crashed."""
    return IngestError(
        "CAPTURE_COPY_FAILED",
        f"The connection of {source} was lost while rows were copied",
        hint="the copy begins again where it was",
        retryable=True,
    )


@dataclass(frozen=True)
class _ChunkReader:
    read_chunk: ReadChunk
    writer: TaskWriter | None
    copies: Mapping[str, TaskWriter] = field(default_factory=dict)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = self._rows(batches)
        return rows if self.writer is None else self.writer(rows)

    def _rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch["id"].to_pylist():
                yield from _rows_of_chunk(self.read_chunk(number), self.copies)


def _rows_of_chunk(
    parts: Iterator[ChunkRows | pa.RecordBatch], copies: Mapping[str, TaskWriter]
) -> Iterator[pa.RecordBatch]:
    """Rows of the log table for a chunk. Where its table takes files, they name those with the chunk's rows,
    up to the first rows with a text that cannot be read here: these and all that follow are texts."""
    first = next(parts, None)
    writer = copies.get(first.relation) if isinstance(first, ChunkRows) else None
    if first is None or writer is None:
        yield from log_batches(chain([] if first is None else [first], parts))
        return
    left = [first]

    def typed() -> Iterator[pa.RecordBatch]:
        while left:
            part = left[0]
            rows = typed_rows(part.texts, len(part), writer.schema, part.text_format)
            if rows is None:
                return
            left[:] = [following] if (following := next(parts, None)) is not None else []
            yield rows

    for files in writer(typed()):
        for location in files["location"].to_pylist():
            name = location.rpartition("/")[2]
            snapshot = first.snapshots[0].as_py()
            file = CopiedFile(name, first.point, first.planned, snapshot)
            yield file_row(first.relation, file)
    yield from log_batches(chain(left, parts))


def _last_line(error: Exception) -> str:
    """What a Python task failed with stands below its traceback."""
    lines = [line for line in str(error).split("\n\tat ", 1)[0].splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__

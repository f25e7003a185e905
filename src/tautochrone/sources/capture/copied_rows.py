"""The first copy of a table: chunks of its key, their rows in the log table, the job that reads them.

In the Spark job each task reads chunks, each by a connection of its own. A chunk is a range of the key as
JSON. `from` is inclusive and `to` exclusive; a missing bound is open. What a bound is, only the source knows.
`planned` is when the copy was planned, in nanoseconds: it orders copies of one table. `bytes` is about how
many the chunk has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tautochrone.errors import IngestError
from tautochrone.model.lake import TaskStage, TaskWriter
from tautochrone.model.log_table import COPIED_FILE, FILE_NAME, CopiedFile
from tautochrone.model.source_position import BulkProgress
from tautochrone.sources.capture.errors import TEXT_NOT_DECODABLE, undecodable_text_error
from tautochrone.sources.capture.log_table import ARROW_SCHEMA, SPARK_SCHEMA
from tautochrone.sources.capture.typed_rows import TextFormat, typed_rows

__all__ = [
    "CHUNK_BYTES",
    "ChunkRows",
    "CopyChunk",
    "ReadChunk",
    "chunk_bytes",
    "chunks_between",
    "chunks_for_tasks",
    "completed_rows",
    "connection_lost_error",
    "copy_by_tasks",
    "log_batches",
    "parse_chunk",
]


CHUNK_BYTES = 16 * 1024 * 1024
"""About so much of a table, as stored, is copied by one statement; more of a very large one."""
_MAX_CHUNKS = 1_000
"""Of a table. Each commit of a copy lists those that are left."""
_MAX_CHUNKS_PER_TASK = 32
_MIN_BYTES = 2 * 1024 * 1024
"""A table is not divided further, so that all tasks have something to read."""


@dataclass(frozen=True, slots=True)
class CopyChunk:
    """
    Attributes:
        bounds: `from` and `to`, as far as the range is bounded.
    """

    bounds: Mapping[str, Any]
    planned: int
    bytes: int


def chunk_bytes(table_bytes: int, usual_bytes: int, tasks: int) -> int:
    """How large the chunks of a table are that so many tasks read.

    >>> chunk_bytes(100_000_000, 16_000_000, 4), chunk_bytes(50_000_000_000, 16_000_000, 4)
    (16000000, 50000000)
    >>> chunk_bytes(40_000_000, 16_000_000, 4), chunk_bytes(1_000_000, 16_000_000, 4)
    (10000001, 2097152)
    """
    for_all_tasks = max(_MIN_BYTES, table_bytes // max(1, tasks) + 1)
    return max(min(usual_bytes, for_all_tasks), table_bytes // _MAX_CHUNKS)


def chunks_between(bounds: Sequence[Any], planned: int, table_bytes: int) -> tuple[str, ...]:
    """The chunks that cover all keys.

    >>> chunks_between(["5"], 1, 80)
    ('{"to": "5", "planned": 1, "bytes": 40}', '{"from": "5", "planned": 1, "bytes": 40}')
    """
    properties = {"planned": planned, "bytes": table_bytes // (len(bounds) + 1)}
    return tuple(
        json.dumps({name: key for name, key in (("from", low), ("to", high)) if key is not None} | properties)
        for low, high in pairwise([None, *bounds, None])
    )


def parse_chunk(text: str) -> CopyChunk:
    parts = json.loads(text)
    bounds = {name: parts[name] for name in ("from", "to") if name in parts}
    return CopyChunk(bounds, parts.get("planned", 0), parts.get("bytes", 0))


def chunks_for_tasks(bulk: BulkProgress, tasks: int, max_bytes: int) -> Sequence[tuple[str, str]]:
    """The relations and chunks that are copied together next: one for each task, and more if they are small.
    Each such round has a Spark job and a commit."""
    chosen: list[tuple[str, str]] = []
    total = 0
    for relation, chunk in bulk.next_chunks(tasks * _MAX_CHUNKS_PER_TASK):
        total += parse_chunk(chunk).bytes
        if len(chosen) >= tasks and total > max_bytes:
            break
        chosen.append((relation, chunk))
    return chosen


@dataclass(frozen=True, slots=True)
class ChunkRows:
    """Rows of one statement, or some of them.

    Attributes:
        texts: by the name of a column, its values as the log has them.
        snapshots: what the reader of each row saw: the same for all of them.
        point: where the log was.
        planned: a number that is higher for a later copy of the relation: of two copies of a row at one place
            of the log the later one counts.
    """

    relation: str
    texts: Mapping[str, pa.Array]
    snapshots: pa.Array
    point: int
    planned: int
    text_format: TextFormat

    def __len__(self) -> int:
        return len(self.snapshots)

    def log_rows(self) -> pa.Table:
        """As rows of the log table."""
        count, width = len(self), len(self.texts)
        # Column by column they came; a map has the values of its row.
        order = np.arange(count)[:, None] + count * np.arange(width)
        columns = pa.MapArray.from_arrays(
            pa.array(np.arange(count + 1, dtype=np.int32) * width),
            pa.array(list(self.texts), pa.string()).take(pa.array(np.tile(np.arange(width), count))),
            pa.concat_arrays(list(self.texts.values())).take(pa.array(order.ravel())),
        )
        constant = {
            "point": self.point,
            "sequence": self.planned,
            "relation": self.relation,
            "operation": "copy",
        }
        return pa.table(
            [
                columns
                if field.name == "columns"
                else self.snapshots
                if field.name == "snapshot"
                else pa.repeat(pa.scalar(constant.get(field.name), field.type), count)
                for field in ARROW_SCHEMA
            ],
            ARROW_SCHEMA,
        )


def log_batches(parts: Iterable[ChunkRows | pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What a source read, as rows of the log table, which some are already."""
    for part in parts:
        if isinstance(part, ChunkRows):
            yield from part.log_rows().to_batches()
        else:
            yield part


def _file_row(relation: str, file: CopiedFile) -> pa.RecordBatch:
    """The row of the log table that stands for all rows in a data file of a table."""
    row: dict[str, Any] = {
        "point": file.point,
        "sequence": file.sequence,
        "relation": relation,
        "operation": COPIED_FILE,
        "columns": [(FILE_NAME, file.name)],
        "snapshot": file.snapshot,
    }
    return pa.RecordBatch.from_pylist([row], ARROW_SCHEMA)


def completed_rows(relations: Sequence[str], point: int) -> pa.Table:
    """One row for each relation of which the bulk is complete: see `model.source.ChangeLog`."""
    rows = [
        {"point": point, "sequence": 0, "relation": relation, "operation": "completed"}
        for relation in relations
    ]
    return pa.Table.from_pylist(rows, ARROW_SCHEMA)


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
            raise undecodable_text_error(f"A table of the capture {capture}", _last_line(error)) from error
        raise IngestError(
            "CAPTURE_COPY_FAILED",
            f"A task of Spark could not copy rows of the capture {capture}: {_last_line(error)}",
            hint=f"executors need Python with tautochrone[{extra}], and a way to the database; with "
            "capture(…, copy_tasks=0) the driver copies",
            retryable=True,
        ) from error


def connection_lost_error(source: str) -> IngestError:
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
            yield _file_row(first.relation, file)
    yield from log_batches(chain(left, parts))


def _last_line(error: Exception) -> str:
    """What a Python task failed with stands below its traceback."""
    lines = [line for line in str(error).split("\n\tat ", 1)[0].splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__

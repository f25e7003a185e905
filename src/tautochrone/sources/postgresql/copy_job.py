"""The first copy as a Spark job: each task reads one chunk by a connection of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from tautochrone.sources.capture.log_schema import SPARK_SCHEMA
from tautochrone.sources.postgresql.bulk import read_chunk
from tautochrone.sources.postgresql.connection import connect, explained
from tautochrone.sources.postgresql.tables import CapturedTable

__all__ = ["rows_of_chunks"]


def rows_of_chunks(
    session: SparkSession,
    capture: str,
    url: str,
    chunks: Sequence[tuple[CapturedTable, str]],
    point: int,
) -> DataFrame:
    """Rows of the log table; they are read when the frame is written.

    The url goes to the tasks within their serialised function, which no plan, event log or page shows.
    """
    count = len(chunks)
    read = _ChunkReader(capture, url, tuple(chunks), point)
    return session.range(0, count, 1, count).mapInArrow(read, SPARK_SCHEMA)


@dataclass(frozen=True)
class _ChunkReader:
    capture: str
    url: str = field(repr=False)
    chunks: tuple[tuple[CapturedTable, str], ...]
    point: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch["id"].to_pylist():
                table, chunk = self.chunks[number]
                with explained(self.capture), connect(self.url) as connection:
                    yield from read_chunk(connection, table, chunk, self.point)

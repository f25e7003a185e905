"""Spark's tasks write rows that they have as Arrow batches into data files, by pyarrow.

A row that goes from Python to the JVM is turned into one of Spark's first, and value by value into columns
again; maps take most of that time. So where pyarrow may write a table's files (see `arrow_files`) only the
names of the written files go to the driver.

A task that Spark repeats writes a file of its own, and the driver takes the files of the task that counted.
Files of the others belong to no version: they are removed with other orphans.
"""

from __future__ import annotations

import glob
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tautochrone.iceberg.commits.arrow_files import (
    codec_of,
    data_file,
    fitting_rows,
    new_location,
    spec_without_partitions,
)
from tautochrone.iceberg.commits.clock import now_ms, staged_at_ms
from tautochrone.iceberg.java.api import Iceberg
from tautochrone.iceberg.java.durable import local_folder
from tautochrone.iceberg.java.functions import items
from tautochrone.model.lake import Rows, Staged
from tautochrone.model.lake import TaskWriter as WritesInTasks
from tautochrone.model.names import TableName
from tautochrone.model.reason import Reason, ReasonCode

__all__ = ["TaskWriter", "files_by_name", "files_taken", "stage_task_files", "task_writer"]

_ROW_GROUP_BYTES = 32 * 1024 * 1024
"""So much is held in memory before it is compressed and written."""
_TOTAL_FILES = "total-data-files"
_FILE_SIZE = "write.target-file-size-bytes"
_DEFAULT_FILE_BYTES = 256 * 1024 * 1024
_SUFFIX = ".parquet"


@dataclass(frozen=True)
class TaskWriter:
    """Writes the batches of a task as data files of a table.

    Attributes:
        location: of a file that nobody writes; tasks write beside it.
        schema: the columns, with the field ids of the table.
        file_bytes: a file that is as large is closed, and the next one begun.
    """

    location: str
    schema: Any
    codec: str
    file_bytes: int

    files_schema = "location string"
    """Of what it gives, as Spark's DDL."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One row for each file."""
        rows = _row_groups(batches)
        group = next(rows, None)
        while group is not None:
            location = f"{self.location.removesuffix(_SUFFIX)}-{uuid.uuid4()}{_SUFFIX}"
            path = local_folder(location)
            assert path is not None
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with (
                    path.open("wb") as file,
                    pq.ParquetWriter(
                        file, self.schema, compression=self.codec, store_decimal_as_integer=True
                    ) as writer,
                ):
                    while group is not None and file.tell() < self.file_bytes:
                        writer.write_table(group.select(self.schema.names).cast(self.schema))
                        group = next(rows, None)
            except BaseException:
                path.unlink(missing_ok=True)
                raise
            yield pa.record_batch({"location": [location]})

    def remove_files(self) -> None:
        """Those that all tasks have written so far."""
        prefix = local_folder(self.location.removesuffix(_SUFFIX))
        assert prefix is not None
        for path in prefix.parent.glob(f"{glob.escape(prefix.name)}-*{_SUFFIX}"):
            path.unlink(missing_ok=True)


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    parts: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        parts.append(batch)
        size += batch.nbytes
        if size >= _ROW_GROUP_BYTES:
            yield pa.Table.from_batches(parts)
            parts, size = [], 0
    if parts:
        yield pa.Table.from_batches(parts)


def task_writer(iceberg: Iceberg, table: Any, columns: Sequence[str] | None) -> TaskWriter | Reason:
    """For batches with these columns, or with those of the table; or why Spark must write them."""
    if columns is None:
        columns = [str(column.name()) for column in items(table.schema().columns())]
    fitting = fitting_rows(iceberg, table, pa.table({name: pa.nulls(0) for name in columns}))
    if isinstance(fitting, Reason):
        return fitting
    if not table.sortOrder().isUnsorted():
        return Reason.of(ReasonCode.TABLE_SORTED)
    file_bytes = int(table.properties().getOrDefault(_FILE_SIZE, str(_DEFAULT_FILE_BYTES)))
    return TaskWriter(new_location(table), fitting.schema, codec_of(table), file_bytes)


def stage_task_files(
    name: TableName, iceberg: Iceberg, table: Any, writer: WritesInTasks, files: Rows
) -> Staged:
    """The files that `writer` writes when the DataFrame `files` is computed, which happens here."""
    at_ms = staged_at_ms(table)
    try:
        return _staged(name, iceberg, table, [row.location for row in files.collect()], at_ms)
    except BaseException:
        writer.remove_files()
        raise


def files_taken(table: Any, since_ms: int) -> Reason | None:
    """See `LakeTable.files_taken`."""
    for snapshot in items(table.snapshots()):
        files = int(snapshot.summary().getOrDefault(_TOTAL_FILES, "0"))
        # Where the clock went back since then, times do not tell.
        if files and (int(snapshot.timestampMillis()) >= since_ms or since_ms > now_ms()):
            return Reason.of(ReasonCode.FILES_TAKEN, version=str(snapshot.snapshotId()))
    return None


def files_by_name(
    name: TableName, iceberg: Iceberg, table: Any, file_names: Sequence[str], at_ms: int | None
) -> Staged | Reason:
    """See `LakeTable.files_by_name`."""
    if spec_without_partitions(table) is None:
        return Reason.of(ReasonCode.TABLE_PARTITIONED)
    provider = table.locationProvider()
    locations = [str(provider.newDataLocation(file_name)) for file_name in file_names]
    for location in locations:
        path = local_folder(location)
        if path is None:
            return Reason.of(ReasonCode.STORAGE_NOT_LOCAL, location=location.rpartition("/")[0])
        if not path.exists():
            return Reason.of(ReasonCode.FILE_NOT_READ, file=location, text="there is no such file")
    return _staged(name, iceberg, table, locations, staged_at_ms(table) if at_ms is None else at_ms)


def _staged(name: TableName, iceberg: Iceberg, table: Any, locations: Sequence[str], at_ms: int) -> Staged:
    written = []
    for location in locations:
        path = local_folder(location)
        assert path is not None
        written.append(data_file(iceberg, table, location, path))
    rows = sum(int(file.recordCount()) for file in written)
    return Staged(table=name, files=written, rows=rows, at_ms=at_ms)

"""The rows that changed between two versions, read by this process: of the data files of the change only the
row groups that have such rows are read, by pyarrow. A Spark job for a few rows would take many times as long
to plan.

What this cannot do (file formats other than Parquet, deletes by value, types that only Spark reads, many or
large files) is left to a Spark query: the answer is the reason then.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError

from tautochrone.iceberg.changes.changed_files import ChangedFiles, changed_files, commits_between, moves_rows
from tautochrone.iceberg.commits.compare_and_set import Loaded
from tautochrone.iceberg.java.api import Iceberg, first_line, items
from tautochrone.iceberg.reads.data_files import (
    LeftToSpark,
    TableColumn,
    deleted_positions,
    names_in_file,
    open_parquet_file,
    table_columns,
)
from tautochrone.model import limits
from tautochrone.model.lake import CollectedChange, local_folder
from tautochrone.model.names import TableName, Version
from tautochrone.model.reason import Reason, ReasonCode

__all__ = ["collected_append", "collected_change"]

_PARQUET, _NO_DELETES = "PARQUET", "[]"
_BATCH_ROWS = 10_000


def collected_append(
    iceberg: Iceberg, loaded: Loaded, old: Version, new: Version, rows: int
) -> CollectedChange | Reason:
    """See `model.lake.LakeTable.collected_change`.

    Args:
        loaded: a table to which rows were only appended between the versions, so many.
    """
    table = loaded.table
    try:
        _require_few(rows)
        scan = table.newIncrementalAppendScan().fromSnapshotExclusive(int(old)).toSnapshot(int(new))
        with contextlib.closing(scan.planWith(iceberg.functions.this_thread).planFiles()) as planned:
            tasks = iceberg.functions.tasks(planned)
        reader = _Reader(iceberg, table)
        return CollectedChange(added=reader.table_of(reader.whole(tasks)))
    except LeftToSpark as left:
        return left.reason


def collected_change(
    iceberg: Iceberg, name: TableName, loaded: Loaded, old: Version, new: Version
) -> CollectedChange | Reason:
    """The same for a table that was changed in any way."""
    try:
        _require_few_added(loaded, old, new)
        runs = list(changed_files(iceberg, name, loaded, old, new))
        # The rows of rewritten files are too many to count as changed.
        are_carried = any(files.before is not None and files.after is not None for files in runs)
        _require_few(sum(files.rows for files in runs), are_carried=are_carried)
        reader = _Reader(iceberg, loaded.table)
        added = [part for files in runs for part in reader.whole(files.after)]
        removed = [part for files in runs for part in reader.removed(files)]
        return CollectedChange(added=reader.table_of(added), removed=reader.table_of(removed))
    except LeftToSpark as left:
        return left.reason


def _require_few_added(loaded: Loaded, old: Version, new: Version) -> None:
    """Large changes are not planned twice: the commits say how many rows they added."""
    rows, are_carried = 0, False
    for snapshot in commits_between(loaded.metadata, old, new):
        if moves_rows(snapshot):
            rows += int(snapshot.summary.get("added-records") or 0)
            are_carried |= "deleted-data-files" in snapshot.summary
    _require_few(rows, are_carried=are_carried)


def _require_few(rows: int, *, are_carried: bool = False) -> None:
    limit = limits.MAX_DRIVER_ROWS
    if rows > limit and are_carried:
        raise LeftToSpark(ReasonCode.ROWS_CARRIED_OVER)
    if rows > limit:
        raise LeftToSpark(ReasonCode.MANY_ROWS_CHANGED, rows=rows, limit=limit)


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of one data file.

    Attributes:
        positions: in the file; None: all of its rows but those at `deleted`.
    """

    task: Any
    path: str
    positions: Collection[int] | None = None
    deleted: Collection[int] = ()


class _Reader:
    """Reads data files of one table, within the limits of this process."""

    def __init__(self, iceberg: Iceberg, table: Any) -> None:
        self._iceberg = iceberg
        self._table = table
        self._columns = table_columns(iceberg, table)
        self._schema = pa.schema([(column.name, column.arrow_type) for column in self._columns])
        self._files = 0
        self._bytes_left = limits.MAX_DRIVER_LOOKUP_BYTES
        self._remote_bytes = 0
        self._row_bytes_left = limits.MAX_ARROW_BYTES

    # -- which rows -------------------------------------------------------------------------------

    def whole(self, tasks: Any | None) -> list[_Part]:
        """All rows of files, without those that are deleted.

        Args:
            tasks: a Java list.
        """
        if tasks is None:
            return []
        functions = self._iceberg.functions
        paths = functions.task_paths(tasks)
        self._count_files(len(paths))
        deletes = functions.described_delete_files(tasks)
        return [
            self._part(task, path, deleted=() if described == _NO_DELETES else self._deleted(task, path))
            for task, path, described in zip(items(tasks), paths, deletes, strict=True)
        ]

    def removed(self, files: ChangedFiles) -> list[_Part]:
        parts = self.whole(files.before)
        self._count_files(len(files.marked) + len(files.listed))
        for task in files.marked:
            path = str(task.file().location())
            parts.append(self._part(task, path, positions=self._deleted(task, path)))
        positions: dict[str, list[int]] = {}
        for path, position in files.positions:
            positions.setdefault(path, []).append(position)
        for task in files.listed:
            path = str(task.file().location())
            parts.append(self._part(task, path, positions=positions[path]))
        return parts

    def _count_files(self, files: int) -> None:
        self._files += files
        limit = limits.MAX_DRIVER_LOOKUP_FILES
        if self._files > limit:
            raise LeftToSpark(ReasonCode.CHANGE_IN_MANY_FILES, files=self._files, limit=limit)

    def _part(self, task: Any, path: str, **rows: Collection[int]) -> _Part:
        if local_folder(path) is None:
            self._remote_bytes += int(task.file().fileSizeInBytes())
            limit = limits.MAX_DRIVER_LOOKUP_REMOTE_BYTES
            if self._remote_bytes > limit:
                raise LeftToSpark(
                    ReasonCode.CHANGE_IN_LARGE_REMOTE_FILES, bytes=self._remote_bytes, limit=limit
                )
        return _Part(task, path, **rows)

    def _deleted(self, task: Any, path: str) -> set[int]:
        try:
            return deleted_positions(self._iceberg, self._table, task, path)
        except Py4JError as error:
            raise LeftToSpark(ReasonCode.FILE_NOT_READ, file=path, text=first_line(error)) from error

    # -- their values -----------------------------------------------------------------------------

    def table_of(self, parts: Iterable[_Part]) -> pa.Table | None:
        """The rows in one table; None if there are none."""
        batches = [batch for part in parts for batch in self._batches(part)]
        rows = pa.Table.from_batches(batches, self._schema)
        return rows if rows.num_rows else None

    def _batches(self, part: _Part) -> list[pa.RecordBatch]:
        try:
            with open_parquet_file(self._table, part.path) as file:
                names = names_in_file(self._columns, file, part.path)
                return self._read(file, names, part, self._partition_values(names, part))
        except (pa.ArrowException, OSError, Py4JError) as error:
            # Spark reads the file in its way, or says what is wrong with it.
            file_format = str(part.task.file().format())
            if file_format != _PARQUET:
                raise LeftToSpark(ReasonCode.FILE_FORMAT_OF_SPARK, format=file_format) from error
            raise LeftToSpark(ReasonCode.FILE_NOT_READ, file=part.path, text=first_line(error)) from error

    def _partition_values(self, names: Sequence[str | None], part: _Part) -> dict[int, pa.Scalar]:
        """By id, the values of columns that a file lacks because its partition has them."""
        if None not in names or not self._are_partitioned:
            return {}
        parsers, file = self._iceberg.api, part.task.file()
        spec = json.loads(str(parsers.PartitionSpecParser.toJson(part.task.spec())))["fields"]
        values = json.loads(
            str(parsers.SingleValueParser.toJson(part.task.spec().partitionType(), file.partition()))
        )
        lacking = {
            column.field_id: column for name, column in zip(names, self._columns, strict=True) if name is None
        }
        constants = {}
        for field in spec:
            column = lacking.get(field["source-id"])
            if column is None:
                continue
            if field["transform"] != "identity":
                raise LeftToSpark(ReasonCode.KEY_COLUMN_NOT_IN_FILE, column=column.name, file=part.path)
            constants[column.field_id] = _constant(values.get(str(field["field-id"])), column)
        return constants

    @cached_property
    def _are_partitioned(self) -> bool:
        return any(spec.isPartitioned() for spec in self._table.specs().values())

    def _read(
        self, file: Any, names: Sequence[str | None], part: _Part, constants: Mapping[int, pa.Scalar]
    ) -> list[pa.RecordBatch]:
        stored = [name for name in names if name is not None]
        if not stored:
            # Nothing would say how many rows there are.
            raise LeftToSpark(ReasonCode.KEY_COLUMN_NOT_IN_FILE, column=self._columns[0].name, file=part.path)
        positions = None if part.positions is None else sorted(part.positions)
        batches, first = [], 0
        for number in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(number)
            end = first + group.num_rows
            if positions is None or bisect_left(positions, first) < bisect_left(positions, end):
                self._count_bytes(group, stored)
                for batch in file.iter_batches(_BATCH_ROWS, row_groups=[number], columns=stored):
                    chosen = _chosen(batch, first, positions, part.deleted)
                    batches.append(self._converted(chosen, names, constants))
                    first += batch.num_rows
            first = end
        return batches

    def _converted(
        self, batch: pa.RecordBatch, names: Sequence[str | None], constants: Mapping[int, pa.Scalar]
    ) -> pa.RecordBatch:
        arrays = [
            pa.repeat(constants[column.field_id], batch.num_rows)
            if column.field_id in constants
            else _column(batch, name, column)
            for name, column in zip(names, self._columns, strict=True)
        ]
        converted = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        self._row_bytes_left -= converted.nbytes
        if self._row_bytes_left < 0:
            raise LeftToSpark(ReasonCode.CHANGED_ROWS_LARGE, limit=limits.MAX_ARROW_BYTES)
        return converted

    def _count_bytes(self, group: Any, names: Collection[str]) -> None:
        for number in range(group.num_columns):
            chunk = group.column(number)
            if chunk.path_in_schema.split(".")[0] in names or chunk.path_in_schema in names:
                self._bytes_left -= chunk.total_uncompressed_size
        if self._bytes_left < 0:
            raise LeftToSpark(ReasonCode.CHANGE_IN_LARGE_FILES, limit=limits.MAX_DRIVER_LOOKUP_BYTES)


def _chosen(
    batch: pa.RecordBatch, first: int, positions: Sequence[int] | None, deleted: Collection[int]
) -> pa.RecordBatch:
    """
    Args:
        first: the position of the batch's first row in its file.
        positions: of the rows that are chosen, ascending; None: all but those at `deleted`.
    """
    end = first + batch.num_rows
    if positions is not None:
        chosen = positions[bisect_left(positions, first) : bisect_left(positions, end)]
        rows = [position - first for position in chosen]
    elif deleted:
        rows = [position - first for position in range(first, end) if position not in deleted]
    else:
        return batch
    return batch.take(pa.array(rows, pa.int64()))


def _constant(value: Any, column: TableColumn) -> pa.Scalar:
    """A value of a partition, as Iceberg's JSON has it."""
    kind = column.arrow_type
    if value is not None and pa.types.is_date(kind):
        value = dt.date.fromisoformat(value)
    elif value is not None and pa.types.is_timestamp(kind):
        value = dt.datetime.fromisoformat(value)
    elif value is not None and pa.types.is_decimal(kind):
        value = Decimal(value)
    elif value is not None and pa.types.is_binary(kind):
        value = bytes.fromhex(value)
    return pa.scalar(value, kind)


def _column(batch: pa.RecordBatch, name: str | None, column: TableColumn) -> pa.Array:
    if name is None:
        return pa.nulls(batch.num_rows, column.arrow_type)
    stored = batch.column(name)
    return stored if stored.type == column.arrow_type else stored.cast(column.arrow_type)

"""How many rows were appended to a table, by the values of a column, counted by this process: of the appended
data files only that column is read, by pyarrow, where a Spark job would take a hundred times as long."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError

from tautochrone.iceberg.java.api import Iceberg, first_line
from tautochrone.iceberg.java.durable import local_folder
from tautochrone.iceberg.reads.parquet_files import names_by_id, opened
from tautochrone.model.lake import AppendedRows
from tautochrone.model.names import Version
from tautochrone.model.reason import Reason, ReasonCode

__all__ = ["appended_rows"]

_BATCH_ROWS = 10_000


def appended_rows(
    iceberg: Iceberg, table: Any, old: Version, new: Version, column: str, max_bytes: int
) -> AppendedRows | Reason:
    """See `model.lake.LakeTable.appended_rows`.

    Args:
        table: the Java table; between the versions rows were only appended to it.
    """
    functions = iceberg.functions
    scan = table.newIncrementalAppendScan().fromSnapshotExclusive(int(old)).toSnapshot(int(new))
    with contextlib.closing(scan.planWith(functions.this_thread).planFiles()) as tasks:
        paths = functions.task_paths(functions.tasks(tasks, None))
    field = table.schema().findField(column)
    if field is None:
        return Reason.of(ReasonCode.KEY_COLUMN_NOT_IN_TABLE, column=column)
    field_id = int(field.fieldId())
    counts: Counter[Any] = Counter()
    size = 0 if max_bytes else None
    for path in paths:
        if local_folder(path) is None:
            return Reason.of(ReasonCode.STORAGE_NOT_LOCAL, location=path.rpartition("/")[0])
        try:
            with opened(table, path) as file:
                name = names_by_id(file).get(field_id)
                if name is None:
                    return Reason.of(ReasonCode.KEY_COLUMN_NOT_IN_FILE, column=column, file=path)
                for entry in pc.value_counts(file.read(columns=[name]).column(name)).to_pylist():
                    counts[entry["values"]] += entry["counts"]
                size = None if size is None else _size(file, size, max_bytes)
        except (pa.ArrowException, OSError, Py4JError) as error:
            # Spark reads the file in its way, or says what is wrong with it.
            return Reason.of(ReasonCode.FILE_NOT_READ, file=path, text=first_line(error))
    return AppendedRows(counts, size)


def _size(file: Any, size: int, max_bytes: int) -> int | None:
    """The size with the bytes of a file's rows in memory; None: it is above `max_bytes`. The file does not
    tell: a value may be stored once and occur often."""
    for batch in file.iter_batches(batch_size=_BATCH_ROWS):
        size += batch.nbytes
        if size > max_bytes:
            return None
    return size

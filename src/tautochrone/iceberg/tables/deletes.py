"""Deletes rows by file and position, with deletion vectors that the driver writes."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from tautochrone.errors import LakeError
from tautochrone.iceberg.changes.changed_files import file_tasks
from tautochrone.iceberg.commits.compare_and_set import staged_at_ms
from tautochrone.iceberg.java.api import Functions, Iceberg, items
from tautochrone.model.names import TableName, Version

__all__ = ["Removal", "write_removal"]

_VECTORS_SINCE = 3


@dataclass(slots=True)
class Removal:
    """The removals of a row delta, as Java values; nothing is committed yet.

    `at_ms` (epoch milliseconds) is before the start of writing. `unused` are new files of which no row is
    left.
    """

    at_ms: int
    vectors: list[Any] = field(default_factory=list)
    replaced: list[Any] = field(default_factory=list)
    emptied: list[Any] = field(default_factory=list)
    unused: set[str] = field(default_factory=set)
    rows: int = 0

    def put_into(self, delta: Any) -> None:
        """Add all removals to a Java `RowDelta`."""
        for file in self.emptied:
            delta.removeRows(file)
        for vector in self.vectors:
            delta.addDeletes(vector)
        for vector in self.replaced:
            delta.removeDeletes(vector)


def write_removal(
    iceberg: Iceberg,
    name: TableName,
    table: Any,
    version: Version,
    deletes: Mapping[str, Sequence[int]],
    known_tasks: Mapping[str, Any] | None = None,
    new_files: Mapping[str, Any] | None = None,
) -> Removal:
    """Write one Puffin file with a deletion vector for each data file of `deletes`.

    A data file has at most one vector, so the positions of an older vector are merged into the new one, which
    replaces it. A data file without remaining rows is removed instead.

    Args:
        known_tasks: scan tasks of the version by data file, from who planned them already.
        new_files: by location, data files that the same commit adds.

    Raises:
        LakeError: `FILE_NOT_IN_VERSION`, `NO_SUCH_ROW`, `ROW_DELETED_TWICE`, or
            `DELETION_VECTORS_UNSUPPORTED` for a table below format 3 or with equality deletes.
    """
    if int(table.operations().current().formatVersion()) < _VECTORS_SINCE:
        raise LakeError(
            "DELETION_VECTORS_UNSUPPORTED",
            f"{name} is below format version {_VECTORS_SINCE}, which has no deletion vectors",
            hint="upgrade it: ALTER TABLE … SET TBLPROPERTIES ('format-version' = '3')",
        )
    functions = iceberg.functions
    new_files = new_files or {}
    old_paths = deletes.keys() - new_files.keys()
    task_of_path = _task_of_path(functions, table, version, old_paths, known_tasks or {})
    removal = Removal(staged_at_ms(table))
    previous = iceberg.jvm.java.util.HashMap()
    output = iceberg.api.io.OutputFileFactory.builderFor(table, 0, 0)
    output = output.format(iceberg.api.FileFormat.PUFFIN).operationId(str(uuid.uuid4())).build()
    writer = iceberg.api.deletes.BaseDVFileWriter(output, functions.entries(previous))
    loader = iceberg.api.data.BaseDeleteLoader(functions.input_files(table.io()))
    for path, positions in deletes.items():
        if not positions:
            continue
        task = task_of_path.get(path)
        if task is None and path not in new_files:
            raise LakeError("FILE_NOT_IN_VERSION", f"{name} has no data file {path} at version {version}")
        file, older = (new_files[path], ()) if task is None else (task.file(), task.deletes())
        rows = int(file.recordCount())
        _require_deletable(name, path, positions, rows, older)
        index = functions.position_index(positions)
        deleted_count = len(positions)
        if len(older):
            older_positions = loader.loadPositionDeletes(older, path)
            previous.put(path, older_positions)
            deleted_count += int(older_positions.cardinality())
            index.merge(older_positions)
        if int(index.cardinality()) != deleted_count:
            raise LakeError("ROW_DELETED_TWICE", f"A row of {path} of {name} is deleted already")
        removal.rows += len(positions)
        if deleted_count < rows:
            writer.delete(path, index, table.specs().get(file.specId()), file.partition())
        elif task is None:
            removal.unused.add(path)
        else:
            # Iceberg removes the older vector together with its data file.
            removal.emptied.append(file)
    writer.close()
    result = writer.result()
    removal.vectors = items(result.deleteFiles())
    removal.replaced = items(result.rewrittenDeleteFiles())
    return removal


def _require_deletable(name: TableName, path: str, positions: Sequence[int], rows: int, older: Any) -> None:
    """
    Args:
        rows: of the file.
        older: its delete files.

    Raises:
        LakeError: `NO_SUCH_ROW`, `DELETION_VECTORS_UNSUPPORTED`.
    """
    if min(positions) < 0 or max(positions) >= rows:
        raise LakeError("NO_SUCH_ROW", f"{path} of {name} has {rows} rows; a position lies outside")
    if len(older) and any(str(delete.content()) == "EQUALITY_DELETES" for delete in items(older)):
        raise LakeError(
            "DELETION_VECTORS_UNSUPPORTED",
            f"{path} of {name} has equality deletes: its rows cannot be told by position alone",
        )


def _task_of_path(
    functions: Functions, table: Any, version: Version, paths: Set[str], known_tasks: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The scan tasks of data files that the version has."""
    if paths <= known_tasks.keys():
        return known_tasks
    tasks = file_tasks(functions, table, version, paths)
    return dict(zip(functions.task_paths(tasks), items(tasks), strict=True))

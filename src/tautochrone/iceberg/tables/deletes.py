"""Deletes rows by file and position, with deletion vectors that the driver writes."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from tautochrone.errors import LakeError
from tautochrone.iceberg.commits.compare_and_set import staged_at_ms
from tautochrone.iceberg.java.calls import iceberg_calls
from tautochrone.model.lake import NO_VERSION
from tautochrone.model.names import TableName, Version
from tautochrone.spark.jvm.driver_calls import java_object, joined_texts, split_texts

__all__ = ["Removal", "write_removal"]


@dataclass(frozen=True, slots=True)
class Removal:
    """Rows to remove, and what is written for them; nothing is committed yet.

    Attributes:
        at_ms: before the start of writing, epoch milliseconds.
        java: what a Java `RowDelta` gets for them.
        rows: their number.
        unused: new files of which no row is left.
    """

    at_ms: int
    java: Any
    rows: int
    unused: frozenset[str]

    def put_into(self, delta: Any) -> None:
        """Add all removals to a Java `RowDelta`."""
        iceberg_calls().putRemoval(delta, self.java)


def write_removal(
    name: TableName,
    table: Any,
    version: Version,
    deletes: Mapping[str, Sequence[int]],
    known_tasks: Mapping[str, Any],
    new_files: Mapping[str, Any],
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
    old_paths = {path for path, positions in deletes.items() if positions} - new_files.keys()
    task_of_path = _task_of_path(table, version, old_paths, known_tasks)
    at_ms = staged_at_ms(table)
    files = []
    for path, positions in deletes.items():
        if positions:
            file = task_of_path.get(path, new_files.get(path))
            if file is None:
                raise LakeError("FILE_NOT_IN_VERSION", f"{name} has no data file {path} at version {version}")
            files += [path, ",".join(map(str, positions)), file._get_object_id()]  # noqa: SLF001
    answer = iceberg_calls().removal(table, joined_texts(files), str(uuid.uuid4()))
    error, path, *texts = split_texts(str(answer))
    if error:
        raise _error(error, name, path)
    removal, rows, *unused = texts
    return Removal(at_ms, java_object(removal), int(rows), frozenset(unused))


def _error(error: str, name: TableName, path: str) -> LakeError:
    """What `IcebergCalls.removal` refused to do."""
    if error == "FORMAT_WITHOUT_VECTORS":
        return LakeError(
            "DELETION_VECTORS_UNSUPPORTED",
            f"{name} is below format version 3, which has no deletion vectors",
            hint="upgrade it: ALTER TABLE … SET TBLPROPERTIES ('format-version' = '3')",
        )
    if error == "EQUALITY_DELETES":
        return LakeError(
            "DELETION_VECTORS_UNSUPPORTED",
            f"{path} of {name} has equality deletes: its rows cannot be told by position alone",
        )
    if error == "NO_SUCH_ROW":
        return LakeError("NO_SUCH_ROW", f"{path} of {name} has fewer rows; a position lies outside")
    return LakeError("ROW_DELETED_TWICE", f"A row of {path} of {name} is deleted already")


def _task_of_path(
    table: Any, version: Version, paths: Set[str], known_tasks: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The scan tasks of data files that the version has."""
    if paths <= known_tasks.keys():
        return known_tasks
    if version == NO_VERSION:
        return {}
    texts = split_texts(str(iceberg_calls().tasksOf(table, version, joined_texts(paths))))
    # All at once: the JVM keeps an object until Python drops it, so each must come to exist here.
    return {path: java_object(task) for path, task in zip(texts[::2], texts[1::2], strict=True)}

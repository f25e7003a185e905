"""Plans scans: the data files of a version, each as a scan task with its delete files."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Any

from tautochrone.iceberg.commits.compare_and_set import NO_VERSION
from tautochrone.iceberg.java.functions import Functions
from tautochrone.model.names import Version

__all__ = ["planned", "rows_behind_vectors"]


def planned(
    functions: Functions,
    table: Any,
    version: Version,
    paths: Collection[str] | None = None,
    condition: Any | None = None,
) -> Any:
    """The file tasks of a version as a Java list, each with its delete files; only `paths` when given, and
    only files that may have rows that meet an Iceberg `condition`."""
    if version == NO_VERSION or (paths is not None and not paths):
        return functions.no_tasks()
    scan = table.newScan().useSnapshot(int(version)).planWith(functions.this_thread)
    if condition is not None:
        scan = scan.filter(condition)
    with contextlib.closing(scan.planFiles()) as tasks:
        return functions.tasks(tasks, paths)


def rows_behind_vectors(functions: Functions, table: Any, version: Version) -> int | None:
    """The number of rows of a version, or None if it has delete files other than deletion vectors.

    The total of deleted positions in the snapshot summary is not exact: it counts vectors of data files
    that a writer removed without their vectors, and positions that are listed twice.
    """
    tasks = planned(functions, table, version)
    if not functions.only_vectors(tasks):
        return None
    return functions.task_rows(tasks) - functions.deleted_rows(tasks)

"""Which data files a version has, each as a scan task with the delete files that belong to it."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Any

from tautochrone.iceberg.commits.compare_and_set import NO_VERSION
from tautochrone.iceberg.java.functions import Functions
from tautochrone.model.names import Version

__all__ = ["planned", "rows_behind_vectors"]


def planned(functions: Functions, table: Any, version: Version, paths: Collection[str] | None = None) -> Any:
    """The file tasks of a version as a Java list, each with its delete files; only `paths` when given."""
    if version == NO_VERSION or (paths is not None and not paths):
        return functions.no_tasks()
    scan = table.newScan().useSnapshot(int(version)).planWith(functions.this_thread)
    with contextlib.closing(scan.planFiles()) as tasks:
        return functions.tasks(tasks, paths)


def rows_behind_vectors(functions: Functions, table: Any, version: Version) -> int | None:
    """Rows that a version shows, when every delete file is a deletion vector of a file that it has.

    The summary's total of deleted positions will not do: it still counts vectors of files that were
    removed by a writer who did not clean up, and positions that are listed twice.
    """
    tasks = planned(functions, table, version)
    if not functions.only_vectors(tasks):
        return None
    return functions.task_rows(tasks) - functions.deleted_rows(tasks)

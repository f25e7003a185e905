"""Finds the data files of a log table that have old rows only, by Iceberg's statistics of their columns."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from tautochrone.iceberg.java.api import Iceberg
from tautochrone.model.names import Version

__all__ = ["old_log_files"]


def old_log_files(
    iceberg: Iceberg, table: Any, version: Version, column: str, before_ms: int | None
) -> Sequence[str]:
    """See `LakeTable.files_before`."""
    functions, expressions = iceberg.functions, iceberg.api.expressions.Expressions

    def paths(condition: Any = None) -> list[str]:
        """Of the files that may have rows that meet the condition."""
        scan = table.newScan().useSnapshot(int(version))
        scan = scan if condition is None else scan.filter(condition)
        with contextlib.closing(scan.planFiles()) as planned:
            tasks = functions.tasks(planned)
        return [] if functions.deleted_rows(tasks) else functions.task_paths(tasks)

    everything = paths()
    if before_ms is None or not everything:
        return everything
    before_us = before_ms * 1000
    young = set(paths(expressions.greaterThanOrEqual(column, before_us)))
    dated = set(paths(expressions.lessThan(column, before_us)))
    return [path for path in everything if path not in young] if dated - young else []

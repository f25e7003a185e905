"""Rewrites small data files into bigger ones with Iceberg's own planner, reader and writer.

Iceberg's commit is not used, because it retries without checks. Rows keep their `_row_id` because Iceberg's
rewrite tables are used for reading and writing.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from tautochrone.iceberg.java.api import Iceberg

__all__ = ["Rewritten", "rewrite_groups", "rewrite_options"]

_MIB = 1 << 20
_TIERS = ((8 * _MIB, 1), (128 * _MIB, 2))
"""Target size of a file, and the factor of `min_files` that it needs. With two tiers a row is rewritten a few
times until its file is big, and not again with each few small files."""

_HALF_DELETED = "0.5"


@dataclass(frozen=True, slots=True)
class Rewritten:
    """Java values of one group: files before and after, and deletion vectors of the files before."""

    before: Any
    vectors: Any
    after: Any
    bytes: int


def rewrite_options(min_files: int, max_files: int) -> list[Mapping[str, str]]:
    """The planner's options, tier by tier."""
    return [
        {
            "target-file-size-bytes": str(target),
            "min-input-files": str(min_files * times),
            "max-files-to-rewrite": str(max(max_files, min_files * times)),
            "delete-ratio-threshold": _HALF_DELETED,
        }
        for target, times in _TIERS
    ]


def rewrite_groups(
    iceberg: Iceberg, table: Any, version: int, options: Mapping[str, str]
) -> Iterator[Rewritten]:
    """Rewrite the files of each group that the planner selects; nothing is committed.

    A group holds files of one partition. Lazy: a group is rewritten when the iterator reaches it.
    """
    session = iceberg.session
    iceberg.activate(session)
    everything = iceberg.api.expressions.Expressions.alwaysTrue()
    planner = iceberg.api.actions.BinPackRewriteFilePlanner(table, everything, version, False)
    planner.init(iceberg.map(options))
    groups = planner.plan().groups().iterator()
    while groups.hasNext():
        yield _rewrite(iceberg, session, table, groups.next())


def _rewrite(iceberg: Iceberg, session: SparkSession, table: Any, group: Any) -> Rewritten:
    key = str(uuid.uuid4())
    tasks = iceberg.jvm.java.util.ArrayList(group.fileScanTasks())
    manager = iceberg.api.spark.ScanTaskSetManager.get()
    coordinator = iceberg.api.spark.FileRewriteCoordinator.get()
    cache = iceberg.table_cache()
    manager.stageTasks(table, key, tasks)
    cache.add(key, table)
    try:
        reader = session.read.format("iceberg").option("file-open-cost", "0")
        rows = reader.option("split-size", str(group.inputSplitSize())).load(key)
        # Each split has the target size of a file and is one task, so no shuffle is needed.
        writer = rows.write.format("iceberg").option("distribution-mode", "none")
        writer = writer.option("target-file-size-bytes", str(group.maxOutputFileSize()))
        writer.mode("append").save(key)
        after = coordinator.fetchNewFiles(table, key)
    finally:
        cache.remove(key)
        manager.removeTasks(table, key)
        coordinator.clearRewrite(table, key)
    size = int(group.inputFilesSizeInBytes())
    return Rewritten(group.rewrittenFiles(), group.danglingDVs(), after, size)

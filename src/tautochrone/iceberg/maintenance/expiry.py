"""Which snapshots of a table can expire, which files only they reference, and which files of a log are old.

Iceberg's own `expireSnapshots` selects by age and retries its commit without checks. Here a pure function of
the metadata selects the snapshots, and the commit is a compare-and-set like every other. Iceberg's code only
finds the files that became unreachable. The data files of a log table that have old rows only are found by
Iceberg's statistics of their columns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from tautochrone.iceberg.java.api import Iceberg
from tautochrone.model.lake import Retention
from tautochrone.model.names import Version

__all__ = ["expirable", "old_log_files", "unreachable_files"]


_CLEANUP = "org.apache.iceberg.ReachableFileCleanup"


def expirable(metadata: Mapping[str, Any], retention: Retention) -> list[int]:
    """Ids of the snapshots that can expire, oldest first.

    Args:
        metadata: a table's metadata, parsed from its JSON.
    """
    snapshots = {snapshot["snapshot-id"]: snapshot for snapshot in metadata.get("snapshots") or ()}
    needed_ids = {ref["snapshot-id"] for ref in (metadata.get("refs") or {}).values()}
    needed_ids.update(number for number, s in snapshots.items() if s["timestamp-ms"] >= retention.after_ms)
    needed_ids.update(int(version) for version in retention.readable)
    history = _history(snapshots, metadata.get("current-snapshot-id"))
    followed = {int(version) for version in retention.followed}
    # Snapshots between main and the oldest followed one stay: only the unbroken chain of parents proves
    # what changed.
    followed_indexes = [index for index, number in enumerate(history) if number in followed]
    needed_ids.update(history[: followed_indexes[-1] + 1] if followed_indexes else history[:1])
    unneeded = (snapshot for number, snapshot in snapshots.items() if number not in needed_ids)
    return [s["snapshot-id"] for s in sorted(unneeded, key=lambda s: s.get("sequence-number", 0))]


def _history(snapshots: Mapping[int, Mapping[str, Any]], main: int | None) -> list[int]:
    """Main and its ancestors up to the first expired one, newest first."""
    ids: list[int] = []
    current = main
    while current is not None and current in snapshots:
        ids.append(current)
        current = snapshots[current].get("parent-snapshot-id")
    return ids


def unreachable_files(iceberg: Iceberg, io: Any, before: Any, after: Any) -> Sequence[str]:
    """Paths of data files, delete files, manifests and manifest lists that are reachable from `before` and
    not from `after`.

    Args:
        io: the table's Java `FileIO`.
        before, after: Java `TableMetadata`; nothing is deleted.
    """
    consumer, paths = iceberg.functions.collector()
    loader = iceberg.jvm.java.lang.Thread.currentThread().getContextClassLoader()
    # This class is not public. The public `expireSnapshots` that uses it would also commit.
    constructor = loader.loadClass(_CLEANUP).getDeclaredConstructors()[0]
    constructor.setAccessible(True)
    pools = iceberg.api.util.ThreadPools
    arguments = iceberg.array(iceberg.jvm.java.lang.Object, [io, None, pools.getWorkerPool(), consumer])
    cleanup = constructor.newInstance(arguments)
    everything = (
        iceberg.jvm.java.lang.Class.forName("org.apache.iceberg.ExpireSnapshots$CleanupLevel", True, loader)
        .getField("ALL")
        .get(None)
    )
    _clean(iceberg, cleanup, before, after, everything)
    return iceberg.functions.texts(paths)


def _clean(iceberg: Iceberg, cleanup: Any, before: Any, after: Any, level: Any) -> None:
    """Call `cleanFiles` by reflection: Py4J calls only public methods of public classes."""
    metadata = iceberg.api.TableMetadata._java_lang_class  # noqa: SLF001
    kinds = iceberg.array(iceberg.jvm.java.lang.Class, [metadata, metadata, level.getClass()])
    method = cleanup.getClass().getDeclaredMethod("cleanFiles", kinds)
    method.setAccessible(True)
    method.invoke(cleanup, iceberg.array(iceberg.jvm.java.lang.Object, [before, after, level]))


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

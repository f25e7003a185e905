"""Which snapshots of a table nobody needs, and which files only they had.

Iceberg's own `expireSnapshots` chooses by age and retries its commit blindly. Here the choice is ours, a
pure function of the metadata; the commit is a compare-and-set like every other; only the question which
files have become unreachable is left to Iceberg's code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tautochrone.iceberg.java.api import Iceberg
from tautochrone.model.maintenance import Retention

__all__ = ["expirable", "unreachable_files"]

_CLEANUP = "org.apache.iceberg.ReachableFileCleanup"


def expirable(metadata: Mapping[str, Any], retention: Retention) -> list[int]:
    """Ids of the snapshots that may go, oldest first.

    Args:
        metadata: a table's metadata as its JSON says it.
    """
    snapshots = {snapshot["snapshot-id"]: snapshot for snapshot in metadata.get("snapshots") or ()}
    needed_ids = {ref["snapshot-id"] for ref in (metadata.get("refs") or {}).values()}
    needed_ids.update(number for number, s in snapshots.items() if s["timestamp-ms"] >= retention.after_ms)
    needed_ids.update(int(version) for version in retention.readable)
    history = _history(snapshots, metadata.get("current-snapshot-id"))
    followed = {int(version) for version in retention.followed}
    # Between two kept snapshots of this stretch none may go: the chain of parents is the only proof of
    # what changed.
    followed_indexes = [index for index, number in enumerate(history) if number in followed]
    needed_ids.update(history[: followed_indexes[-1] + 1] if followed_indexes else history[:1])
    unneeded = (snapshot for number, snapshot in snapshots.items() if number not in needed_ids)
    return [s["snapshot-id"] for s in sorted(unneeded, key=lambda s: s.get("sequence-number", 0))]


def _history(snapshots: Mapping[int, Mapping[str, Any]], main: int | None) -> list[int]:
    """Main and its ancestors up to the first that is gone, newest first."""
    ids: list[int] = []
    current = main
    while current is not None and current in snapshots:
        ids.append(current)
        current = snapshots[current].get("parent-snapshot-id")
    return ids


def unreachable_files(iceberg: Iceberg, io: Any, before: Any, after: Any) -> Sequence[str]:
    """Paths of data files, delete files, manifests and lists that `before` reaches and `after` does not.

    Args:
        io: the table's Java `FileIO`.
        before, after: Java `TableMetadata`; nothing is deleted.
    """
    consumer, paths = iceberg.functions.collector()
    loader = iceberg.jvm.java.lang.Thread.currentThread().getContextClassLoader()
    # Not public: the class behind `expireSnapshots`, which would also commit.
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
    """Py4J calls only public methods of public classes; this one is neither's."""
    metadata = iceberg.api.TableMetadata._java_lang_class  # noqa: SLF001
    kinds = iceberg.array(iceberg.jvm.java.lang.Class, [metadata, metadata, level.getClass()])
    method = cleanup.getClass().getDeclaredMethod("cleanFiles", kinds)
    method.setAccessible(True)
    method.invoke(cleanup, iceberg.array(iceberg.jvm.java.lang.Object, [before, after, level]))

"""Where Spark's Iceberg source begins a new stream, and why that is not always the beginning.

The source begins at the oldest snapshot that it finds and takes what that snapshot *added*. Once older
snapshots are expired, the rows that they added are skipped without a word; at a snapshot that took rows away
it stops. It can be told to take all files of a snapshot instead, by an offset in the place where it remembers
its first one; it does so rightly only for the newest snapshot that it sees.

A stream that goes on is refused when the snapshot of its first offset is gone, although nothing is read
from there: then the snapshot where it stands is as good a first offset.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame

from tautochrone.errors import LakeError
from tautochrone.lake.iceberg.history import moves_rows

__all__ = ["first_offsets"]

_NOTHING_YET = -1
_SOURCE = "org.apache.iceberg.spark.source.SparkTable"


def first_offsets(
    rows: DataFrame, remembered: Mapping[int, str], reached: Mapping[int, str]
) -> Mapping[int, str]:
    """See `model.catalog.LakeCatalog.first_offsets`."""
    found: dict[int, str] = {}
    for number, leaf in enumerate(_sources(rows)):
        if str(leaf.nodeName()) != "StreamingRelationV2" or str(leaf.table().getClass().getName()) != _SOURCE:
            continue
        table = leaf.table().table()
        newest = table.currentSnapshot()
        if number in remembered and _is_there(table, remembered[number]):
            continue
        if number in reached:
            if number in remembered:
                found[number] = _beginning_of(reached[number])
            continue
        if newest is None or _can_be_followed(table, newest, skips=_skips(leaf)):
            continue
        if str(newest.summary().get("total-delete-files") or "0") != "0":
            raise LakeError(
                "STREAM_HISTORY_EXPIRED",
                f"Rows were deleted from {table.name()} and its versions cannot be followed from the oldest: "
                "a stream cannot read it from the beginning any more",
                hint="read it as a batch, or compact it so that no deletes are left in it",
            )
        offset = {
            "version": 1,
            "snapshot_id": int(newest.snapshotId()),
            "position": 0,
            "scan_all_files": True,
        }
        found[number] = json.dumps(offset)
    return found


def _sources(rows: DataFrame) -> list[Any]:
    """The sources of a streaming query in the order in which Spark numbers them: each relation once,
    from left to right."""
    leaves = rows._jdf.queryExecution().analyzed().collectLeaves()  # noqa: SLF001
    found: list[Any] = []
    for index in range(leaves.size()):
        leaf = leaves.apply(index)
        if leaf.isStreaming() and not any(leaf.equals(other) for other in found):
            found.append(leaf)
    return found


def _is_there(table: Any, offset: str) -> bool:
    number = json.loads(offset)["snapshot_id"]
    return number == _NOTHING_YET or table.snapshot(number) is not None


def _beginning_of(offset: str) -> str:
    """The first position of the snapshot that an offset is in. With the last one as its beginning, the source
    fails when there is nothing new."""
    return json.dumps(json.loads(offset) | {"position": 0})


def _skips(leaf: Any) -> bool:
    """Whether the user told the source to go past versions that take rows away."""
    options = leaf.extraOptions()
    return any(
        options.getBoolean(f"streaming-skip-{kind}-snapshots", False) for kind in ("overwrite", "delete")
    )


def _can_be_followed(table: Any, snapshot: Any, *, skips: bool) -> bool:
    """Whether the source meets every version since the table's beginning, and appended rows only: it stops at
    any that takes rows away, unless told otherwise."""
    while snapshot is not None:
        if not skips and moves_rows(snapshot) and str(snapshot.operation()) != "append":
            return False
        parent = snapshot.parentId()
        if parent is None:
            return True
        snapshot = table.snapshot(parent)
    return False

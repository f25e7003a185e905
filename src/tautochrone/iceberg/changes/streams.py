"""Where Spark's Iceberg source begins a new stream, and why that is not always the beginning.

The source begins at the oldest snapshot that it finds and takes what that snapshot *added*. Once older
snapshots are expired, the rows that they added are skipped without a word; at a snapshot that took rows away
it stops. It can be told to take all files of a snapshot instead, by an offset in the place where it remembers
its first one. That is right only of a snapshot that added all files of the table, so such a one is shown
to it (`model.read_points.Streamed`); of any other it takes

- nothing, when it is a compaction, and it stops, when it is an update;
- a part, when the table has newer ones: as many files as the snapshot added;
- too much, when its manifests remember deleted files beside others: these as well.

A stream that goes on is refused when the snapshot of its first offset is gone, although nothing is read
from there: then the snapshot where it stands is as good a first offset.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame

from tautochrone.errors import LakeError
from tautochrone.iceberg.changes.history import moves_rows
from tautochrone.iceberg.java.api import Iceberg, translate
from tautochrone.iceberg.java.functions import items
from tautochrone.model.catalog import Beginning
from tautochrone.model.effects import Effects, Step
from tautochrone.model.names import TableName, Version
from tautochrone.model.read_points import FullSnapshotRead

__all__ = ["beginning"]

_NOTHING_YET = -1
_SOURCE = "org.apache.iceberg.spark.source.SparkTable"


def beginning(
    iceberg: Iceberg,
    effects: Effects,
    rows: DataFrame,
    remembered: Mapping[int, str],
    reached: Mapping[int, str],
    known: Sequence[FullSnapshotRead],
) -> Beginning:
    """See `model.catalog.LakeCatalog.beginning`."""
    told: dict[int, str] = {}
    whole: list[FullSnapshotRead] = []
    for number, leaf in enumerate(_sources(rows)):
        if str(leaf.nodeName()) != "StreamingRelationV2" or str(leaf.table().getClass().getName()) != _SOURCE:
            continue
        table = leaf.table().table()
        begun = number in remembered and _is_there(table, remembered[number])
        if number in reached:
            _require_all_versions(table, reached[number], skips=_skips(leaf))
            if number in remembered and not begun:
                told[number] = _beginning_of(reached[number])
        elif not begun:
            first = _first_offset(table, skips=_skips(leaf))
            if first is not None:
                told[number] = first
        stands = reached.get(number) or told.get(number) or remembered.get(number)
        if stands is not None:
            whole += _taken_whole(iceberg, effects, table, json.loads(stands), known)
    return Beginning(told, tuple(whole))


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


def _first_offset(table: Any, *, skips: bool) -> str | None:
    """Where a new stream must begin; None: where the source would."""
    newest = table.currentSnapshot()
    if newest is None or _can_be_followed(table, newest, skips=skips):
        return None
    if str(newest.summary().get("total-delete-files") or "0") != "0":
        raise LakeError(
            "STREAM_HISTORY_EXPIRED",
            f"Rows were deleted from {table.name()} and its versions cannot be followed from the oldest: "
            "a stream cannot read it from the beginning any more",
            hint="read it as a batch, or compact it so that no deletes are left in it",
        )
    offset = {"version": 1, "snapshot_id": int(newest.snapshotId()), "position": 0, "scan_all_files": True}
    return json.dumps(offset)


def _skips(leaf: Any) -> bool:
    """Whether the user told the source to go past versions that take rows away."""
    options = leaf.extraOptions()
    return any(
        options.getBoolean(f"streaming-skip-{kind}-snapshots", False) for kind in ("overwrite", "delete")
    )


def _can_be_followed(table: Any, snapshot: Any, *, skips: bool) -> bool:
    """Whether the source meets every version since the table held nothing, and appended rows only: it stops
    at any that takes rows away, unless told otherwise."""
    while True:
        if not skips and moves_rows(snapshot) and str(snapshot.operation()) != "append":
            return False
        if snapshot.parentId() is None:
            return True
        before = table.snapshot(snapshot.parentId())
        if before is None:
            return _added_everything(snapshot)
        snapshot = before


def _added_everything(snapshot: Any) -> bool:
    """Whether nothing was in the table before: no row is missed though what came before is expired."""
    summary = snapshot.summary()
    total, added = summary.get("total-data-files"), summary.get("added-data-files") or "0"
    return total is not None and total == added and (total == "0" or str(snapshot.operation()) == "append")


def _require_all_versions(table: Any, stands: str, *, skips: bool) -> None:
    """A stream that waited where a table had no rows begins at the oldest version, whatever it is told."""
    newest = table.currentSnapshot()
    if json.loads(stands)["snapshot_id"] != _NOTHING_YET or newest is None:
        return
    if not _can_be_followed(table, newest, skips=skips):
        raise LakeError(
            "STREAM_HISTORY_EXPIRED",
            f"A stream waits for the first rows of {table.name()}, whose versions cannot be followed from "
            "the oldest: some are expired, or took rows away",
            hint="rebuild what reads it with --full-refresh: it begins with the rows that are there",
        )


def _taken_whole(
    iceberg: Iceberg,
    effects: Effects,
    table: Any,
    offset: Mapping[str, Any],
    known: Sequence[FullSnapshotRead],
) -> list[FullSnapshotRead]:
    """The snapshot that a stream stands in, if it takes all of its files. It is shown so until the stream has
    left it: the source counts its files once more where it stands behind the last one."""
    snapshot = table.snapshot(offset["snapshot_id"]) if offset.get("scan_all_files") else None
    if snapshot is None:
        return []
    version = Version(str(snapshot.snapshotId()))
    before = [one for one in known if one.version == version]
    if before:
        return before
    name = TableName.parse(str(table.name()))
    files, remembers = 0, False
    try:
        for manifest in items(snapshot.dataManifests(table.io())):
            files += int(manifest.addedFilesCount() or 0) + int(manifest.existingFilesCount() or 0)
            remembers |= bool(manifest.hasDeletedFiles())
        if not remembers:
            return [FullSnapshotRead(version, files)]
        made = effects.perform(Step.LAKE_STAGE, str(name), lambda: _forgetful(iceberg, table, snapshot))
    except Py4JError as error:
        raise translate(error, name) from error
    return [FullSnapshotRead(version, files, made)]


def _forgetful(iceberg: Iceberg, table: Any, snapshot: Any) -> str:
    """A list of manifests with the same files that remembers no deleted ones. Nothing is committed; the same
    snapshot gives the same order of files, which positions count."""
    transaction = table.newTransaction()
    if table.currentSnapshot().snapshotId() != snapshot.snapshotId():
        transaction.manageSnapshots().setCurrentSnapshot(snapshot.snapshotId()).commit()
    functions = iceberg.functions
    rewrite = transaction.rewriteManifests().clusterBy(functions.by_spec())
    rewrite.rewriteIf(functions.remembers_deleted()).scanManifestsWith(functions.this_thread).commit()
    return str(transaction.table().currentSnapshot().manifestListLocation())

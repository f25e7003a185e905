"""The initial offset of a stream over Iceberg tables, so that it misses no rows; the versions in offsets.

Spark's Iceberg source begins at the oldest snapshot and reads only the files that this snapshot *added*. If
older snapshots are expired, it silently skips the rows that they added; at a snapshot that removed rows it
stops. An initial offset with `scan_all_files` makes it read all files of a snapshot. This is correct only if
the snapshot added all files of the table, so the source is shown such a snapshot
(`model.catalog.Streamed`). From any other snapshot it reads

- nothing if it is a compaction, and it fails if it is an update;
- too few files if the table has newer snapshots: as many as the snapshot added;
- too many files if its manifests also list deleted files: it reads these as well.

The source refuses to continue a stream if the snapshot of its initial offset is expired, although it reads
nothing from it. Then the snapshot of the stream's current offset becomes its initial offset.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame

from tautochrone.errors import LakeError
from tautochrone.iceberg.changes.changed_files import moves_rows
from tautochrone.iceberg.java.api import Iceberg, items, translate
from tautochrone.iceberg.java.calls import Snapshot, history
from tautochrone.model.catalog import Beginning, FullSnapshotRead
from tautochrone.model.effects import Effects, Step
from tautochrone.model.lake import NO_VERSION
from tautochrone.model.names import TableName, Version

__all__ = ["beginning", "versions_in_offsets", "waits_for_first_version"]


_SNAPSHOT_ID = re.compile(r'"snapshot_id"\s*:\s*(-?\d+)')


def versions_in_offsets(offsets: str) -> frozenset[Version]:
    """All versions named in offsets of Iceberg's streaming source, of any table.

    >>> sorted(versions_in_offsets('{"version":1,"snapshot_id":42,"position":0,"scan_all_files":false}'))
    ['42']
    """
    return frozenset(Version(snapshot) for snapshot in _SNAPSHOT_ID.findall(offsets))


def waits_for_first_version(offsets: str) -> bool:
    """Whether a stream has read a table that had no version yet.

    >>> waits_for_first_version('{"version":1,"snapshot_id":-1,"position":-1,"scan_all_files":false}')
    True
    """
    return NO_VERSION in versions_in_offsets(offsets)


_NO_SNAPSHOT = -1
_SOURCE = "org.apache.iceberg.spark.source.SparkTable"


def beginning(
    iceberg: Iceberg,
    effects: Effects,
    rows: DataFrame,
    initial_offsets: Mapping[int, str],
    current_offsets: Mapping[int, str],
    known: Sequence[FullSnapshotRead],
) -> Beginning:
    """See `model.catalog.LakeCatalog.beginning`."""
    corrected: dict[int, str] = {}
    whole: list[FullSnapshotRead] = []
    for number, leaf in enumerate(_sources(rows)):
        if str(leaf.nodeName()) != "StreamingRelationV2" or str(leaf.table().getClass().getName()) != _SOURCE:
            continue
        table = leaf.table().table()
        has_initial_offset = number in initial_offsets and _snapshot_exists(table, initial_offsets[number])
        if number in current_offsets:
            _require_all_versions(table, current_offsets[number], skips=_skips_row_removals(leaf))
            if number in initial_offsets and not has_initial_offset:
                corrected[number] = _beginning_of(current_offsets[number])
        elif not has_initial_offset:
            first = _initial_offset(table, skips=_skips_row_removals(leaf))
            if first is not None:
                corrected[number] = first
        current_offset = current_offsets.get(number) or corrected.get(number) or initial_offsets.get(number)
        if current_offset is not None:
            whole += _full_snapshot_reads(iceberg, effects, table, json.loads(current_offset), known)
    return Beginning(corrected, tuple(whole))


def _sources(rows: DataFrame) -> list[Any]:
    """The sources of a streaming query in the order in which Spark numbers them: each relation once,
    from left to right."""
    leaves = rows._jdf.queryExecution().analyzed().collectLeaves()  # noqa: SLF001
    sources: list[Any] = []
    for index in range(leaves.size()):
        leaf = leaves.apply(index)
        if leaf.isStreaming() and not any(leaf.equals(other) for other in sources):
            sources.append(leaf)
    return sources


def _snapshot_exists(table: Any, offset: str) -> bool:
    number = json.loads(offset)["snapshot_id"]
    return number == _NO_SNAPSHOT or table.snapshot(number) is not None


def _beginning_of(offset: str) -> str:
    """The offset of the first position in the same snapshot. If the initial offset is the snapshot's last
    position, the source fails when there are no new rows."""
    return json.dumps(json.loads(offset) | {"position": 0})


def _initial_offset(table: Any, *, skips: bool) -> str | None:
    """The initial offset of a new stream; None if the source's own choice is right."""
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


def _skips_row_removals(leaf: Any) -> bool:
    """Whether the user set the options that make the source skip versions which remove rows."""
    options = leaf.extraOptions()
    return any(
        options.getBoolean(f"streaming-skip-{kind}-snapshots", False) for kind in ("overwrite", "delete")
    )


def _can_be_followed(table: Any, snapshot: Any, *, skips: bool) -> bool:
    """Whether the source can read every version since the table was empty: none is expired, and all of them
    only append rows, unless `skips` allows others."""
    chain = history(table.operations().current(), Version(str(snapshot.snapshotId())))
    if not skips and any(moves_rows(commit) and commit.operation != "append" for commit in chain):
        return False
    return chain[-1].parent is None or _added_everything(chain[-1])


def _added_everything(snapshot: Snapshot) -> bool:
    """Whether the table was empty before this snapshot: then expired older snapshots hold no missed rows."""
    total, added = snapshot.summary.get("total-data-files"), snapshot.summary.get("added-data-files") or "0"
    return total is not None and total == added and (total == "0" or snapshot.operation == "append")


def _require_all_versions(table: Any, offset: str, *, skips: bool) -> None:
    """Refuse a stream that waits for the first rows of a table whose history is incomplete. The source
    starts such a stream at the oldest version, whatever its initial offset says."""
    newest = table.currentSnapshot()
    if json.loads(offset)["snapshot_id"] != _NO_SNAPSHOT or newest is None:
        return
    if not _can_be_followed(table, newest, skips=skips):
        raise LakeError(
            "STREAM_HISTORY_EXPIRED",
            f"A stream waits for the first rows of {table.name()}, whose versions cannot be followed from "
            "the oldest: some are expired, or took rows away",
            hint="rebuild what reads it with --full-refresh: it begins with the rows that are there",
        )


def _full_snapshot_reads(
    iceberg: Iceberg,
    effects: Effects,
    table: Any,
    offset: Mapping[str, Any],
    earlier_reads: Sequence[FullSnapshotRead],
) -> list[FullSnapshotRead]:
    """The snapshot of the stream's offset, if the stream reads all files of it. It stays listed until the
    stream moves to a newer snapshot, because the source counts its files again at the last position."""
    snapshot = table.snapshot(offset["snapshot_id"]) if offset.get("scan_all_files") else None
    if snapshot is None:
        return []
    version = Version(str(snapshot.snapshotId()))
    reused = [read for read in earlier_reads if read.version == version]
    if reused:
        return reused
    name = TableName.parse(str(table.name()))
    files, remembers = 0, False
    try:
        for manifest in items(snapshot.dataManifests(table.io())):
            files += int(manifest.addedFilesCount() or 0) + int(manifest.existingFilesCount() or 0)
            remembers |= bool(manifest.hasDeletedFiles())
        if not remembers:
            return [FullSnapshotRead(version, files)]
        manifest_list = effects.perform(
            Step.LAKE_STAGE, str(name), lambda: _without_deleted_entries(iceberg, table, snapshot)
        )
    except Py4JError as error:
        raise translate(error, name) from error
    return [FullSnapshotRead(version, files, manifest_list)]


def _without_deleted_entries(iceberg: Iceberg, table: Any, snapshot: Any) -> str:
    """Location of a new manifest list with the same files and without deleted entries. Nothing is
    committed. The order of files is the same each time, because positions in offsets count files."""
    transaction = table.newTransaction()
    if table.currentSnapshot().snapshotId() != snapshot.snapshotId():
        transaction.manageSnapshots().setCurrentSnapshot(snapshot.snapshotId()).commit()
    functions = iceberg.functions
    rewrite = transaction.rewriteManifests().clusterBy(functions.by_spec())
    rewrite.rewriteIf(functions.remembers_deleted()).scanManifestsWith(functions.this_thread).commit()
    return str(transaction.table().currentSnapshot().manifestListLocation())

"""What changed in each table at a checkpoint, from the store and the metadata of tables. No rows are read.

Of a dataset that is refreshed for checkpoints the history of refreshes knows the rows. Of the others, which
flows or somebody else writes, the summaries of their snapshots do; so they do where checkpoints in between
that had refreshes of the dataset cannot be read any more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tautochrone.errors import LakeError, TableMissingError
from tautochrone.meta import Store
from tautochrone.model.checkpoint import Checkpoint, CheckpointState, RefreshRecord
from tautochrone.model.names import CheckpointNumber, TableName, Version, is_clock
from tautochrone.rest_catalog.metadata import MetadataSource

__all__ = [
    "CheckpointChanges",
    "RowCounts",
    "RowsBetween",
    "TableChange",
    "changes_at",
    "rows_between_snapshots",
    "rows_from_metadata",
]

_STEPS = 20
"""So many readable checkpoints back one is looked for that shows a table."""
_METADATA_FILES = 50
"""Of so many tables the metadata is read for one answer."""


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Rows that were added and removed. An update is one of each."""

    added: int
    removed: int


RowsBetween = Callable[[TableName, Version | None, Version], RowCounts | None]
"""The rows that changed from one version of a table to another (from None: since it was empty); None where
that is not known. Raises `LakeError` where the lake cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChange:
    """One table at a checkpoint, beside what it was before.

    Attributes:
        compared: the newest earlier readable checkpoint that shows the table; None: it is new, or none does.
        before: its version at `compared`.
        changed: whether it has another version; None: there is no checkpoint to compare with.
        rows: that came and went since `compared`, or by its refresh where there is no checkpoint to compare
            with. None where nobody counted them.
        record: of the refresh for the checkpoint that gave the version, if it had news.
    """

    table: TableName
    version: Version
    compared: CheckpointNumber | None
    before: Version | None
    is_root: bool
    changed: bool | None
    rows: RowCounts | None
    record: RefreshRecord | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointChanges:
    """A checkpoint, its neighbours by number, and what changed since `compared`, the newest readable one
    before it. None: there is no such checkpoint any more. A table that this one does not show is compared
    with an older one. `problem`: why rows are missing that the lake would tell."""

    checkpoint: Checkpoint
    previous: CheckpointNumber | None
    following: CheckpointNumber | None
    compared: CheckpointNumber | None
    tables: tuple[TableChange, ...]
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class _Earlier:
    """A table's version at the readable checkpoint `number`; None: the table is new since then."""

    number: CheckpointNumber
    version: Version | None


def changes_at(store: Store, number: int, rows_between: RowsBetween) -> CheckpointChanges:
    """What changed at a checkpoint, by table. Those that changed come first.

    Raises:
        CheckpointUnavailableError: `CHECKPOINT_NOT_FOUND`.
    """
    checkpoint = store.checkpoints.get(number)
    previous, following = store.checkpoints.neighbours(number)
    readable = store.checkpoints.readable_before(number, _STEPS)
    versions = store.checkpoints.versions_at(number)
    earlier = _earlier_versions(store, versions.keys(), readable)
    oldest = min((each.number for each in earlier.values()), default=number)
    refreshed = store.history.refreshed_between(oldest, number)
    # A part of the checkpoint that was aborted also leaves refreshes, but none of its versions.
    records = {
        record.dataset: record
        for record in store.history.refreshes_at(number)
        if record.version == versions.get(record.dataset)
    }
    counted, problem = 0, None
    changes = []
    for table, version in sorted(versions.items()):
        known, record = earlier.get(table), records.get(table)
        before = None if known is None else known.version
        changed = None if known is None else before != version
        rows = None
        if changed is False:
            rows = RowCounts(0, 0)
        elif (
            record is not None
            and record.refresh is not None
            # A refresh at a checkpoint in between, which nobody can read, may be what this one started from.
            and (known is None or refreshed.get(table, 0) <= known.number)
        ):
            rows = RowCounts(record.refresh.rows_inserted, record.refresh.rows_deleted)
        elif changed and not is_clock(table) and counted < _METADATA_FILES and problem is None:
            counted += 1
            try:
                rows = rows_between(table, before, version)
            except LakeError as error:
                # The other tables are not tried: a lake that does not answer takes its time to say so.
                problem = str(error)
        changes.append(
            TableChange(
                table=table,
                version=version,
                compared=None if known is None or before is None else known.number,
                before=before,
                is_root=table in checkpoint.roots,
                changed=changed,
                rows=rows,
                record=record,
            )
        )
    changes.sort(key=lambda change: (change.changed is False, str(change.table)))
    return CheckpointChanges(
        checkpoint=checkpoint,
        previous=previous,
        following=following,
        compared=readable[0][0] if readable else None,
        tables=tuple(changes),
        problem=problem,
    )


def _earlier_versions(
    store: Store,
    tables: Collection[TableName],
    readable: Sequence[tuple[CheckpointNumber, CheckpointState]],
) -> dict[TableName, _Earlier]:
    """The newest version of each table at one of the `readable` checkpoints, which are newest first. Absent:
    none of them shows the table, and it need not be new."""
    earlier: dict[TableName, _Earlier] = {}
    missing = set(tables)
    for number, state in readable:
        versions = store.checkpoints.versions_at(number)
        earlier |= {table: _Earlier(number, versions[table]) for table in missing & versions.keys()}
        missing -= versions.keys()
        if not missing:
            break
        if state is CheckpointState.PUBLISHED:
            # All jobs did their part, so what neither has a version nor failed was not there yet.
            new = missing - store.checkpoints.failures_at(number).keys()
            earlier |= {table: _Earlier(number, None) for table in new}
            missing -= new
    return earlier


def rows_from_metadata(source: MetadataSource | None) -> RowsBetween:
    """Counts the rows by the summaries of a lake's snapshots. Without a lake nothing is known."""

    def rows_between(table: TableName, before: Version | None, version: Version) -> RowCounts | None:
        if source is None or table.catalog != source.catalog:
            return None
        try:
            _, metadata = source.load(table)
        except TableMissingError:
            # A page about checkpoints also shows those whose tables are gone.
            return None
        return rows_between_snapshots(metadata, before, version)

    return rows_between


def rows_between_snapshots(metadata: Mapping[str, Any], before: str | None, version: str) -> RowCounts | None:
    """The rows that a table's snapshots added and removed from one to another.

    Rows of a rewritten file count as removed and added again; those of a compaction do not. None where a
    snapshot in between is expired, does not say it, or removed rows by their values, which have no number.

    Args:
        metadata: of the Iceberg table.
        before: a snapshot id; None: the table was empty.
    """
    snapshots = {str(snapshot["snapshot-id"]): snapshot for snapshot in metadata.get("snapshots", ())}
    added = removed = 0
    current: str | None = version
    while current != before:
        snapshot = None if current is None else snapshots.get(current)
        if snapshot is None:
            return None
        summary: Mapping[str, str] = snapshot.get("summary", {})
        if summary.get("operation") != "replace":
            if int(summary.get("added-equality-deletes", 0)):
                return None
            added += int(summary.get("added-records", 0))
            removed += int(summary.get("deleted-records", 0))
            # Dropping a file with its deletes drops fewer rows than it has.
            removed += int(summary.get("added-position-deletes", 0))
            removed -= int(summary.get("removed-position-deletes", 0))
        parent = snapshot.get("parent-snapshot-id")
        current = None if parent in (None, -1) else str(parent)
    return RowCounts(added, max(0, removed))

"""What changed in each table at a checkpoint, from the store and the metadata of tables. No rows are read.

Of a dataset that is refreshed for checkpoints the history of refreshes knows the rows. Of the others, which
flows or somebody else writes, the summaries of their snapshots do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tautochrone.errors import TautochroneError
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

_COMPARED = (CheckpointState.PUBLISHED, CheckpointState.PARTIAL)
_STEPS = 20
"""So many checkpoints back one is looked for to compare with."""
_METADATA_FILES = 50
"""Of so many tables the metadata is read for one answer."""


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Rows that were added and removed. An update is one of each."""

    added: int
    removed: int


RowsBetween = Callable[[TableName, Version | None, Version], RowCounts | None]
"""The rows that changed from one version of a table to another (from None: since it was empty); None where
that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChange:
    """One table at a checkpoint, beside what it was before.

    Attributes:
        before: its version at the checkpoint that is compared with; None: it had none.
        changed: whether it has another version; None: there is no checkpoint to compare with.
        rows: None where nobody counted them.
        record: of its refresh for the checkpoint, if it had news.
    """

    table: TableName
    version: Version
    before: Version | None
    is_root: bool
    changed: bool | None
    rows: RowCounts | None
    record: RefreshRecord | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointChanges:
    """A checkpoint, its neighbours by number, and what changed since `compared`, the newest readable one
    before it. None: there is no such checkpoint any more."""

    checkpoint: Checkpoint
    previous: CheckpointNumber | None
    following: CheckpointNumber | None
    compared: CheckpointNumber | None
    tables: tuple[TableChange, ...]


def changes_at(store: Store, number: int, rows_between: RowsBetween) -> CheckpointChanges:
    """What changed at a checkpoint, by table. Those that changed come first.

    Raises:
        CheckpointUnavailableError: `CHECKPOINT_NOT_FOUND`.
    """
    checkpoint = store.checkpoints.get(number)
    previous, following = store.checkpoints.neighbours(number)
    compared = _readable_before(store, previous)
    versions = store.checkpoints.versions_at(number)
    before = {} if compared is None else store.checkpoints.versions_at(compared)
    records = {record.dataset: record for record in store.history.refreshes_at(number)}
    counted = 0
    changes = []
    for table, version in sorted(versions.items()):
        old, record = before.get(table), records.get(table)
        changed = None if compared is None else old != version
        rows = None
        if record is not None and record.refresh is not None and record.error is None:
            rows = RowCounts(record.refresh.rows_inserted, record.refresh.rows_deleted)
        elif changed is False:
            rows = RowCounts(0, 0)
        elif changed and not is_clock(table) and counted < _METADATA_FILES:
            counted += 1
            rows = rows_between(table, old, version)
        changes.append(
            TableChange(
                table=table,
                version=version,
                before=old,
                is_root=table in checkpoint.roots,
                changed=changed,
                rows=rows,
                record=record,
            )
        )
    changes.sort(key=lambda change: (change.changed is False, str(change.table)))
    return CheckpointChanges(
        checkpoint=checkpoint,
        previous=None if previous is None else previous.number,
        following=None if following is None else following.number,
        compared=compared,
        tables=tuple(changes),
    )


def _readable_before(store: Store, previous: Checkpoint | None) -> CheckpointNumber | None:
    for _ in range(_STEPS):
        if previous is None or previous.state in _COMPARED:
            break
        previous, _following = store.checkpoints.neighbours(previous.number)
    return None if previous is None or previous.state not in _COMPARED else previous.number


def rows_from_metadata(source: MetadataSource | None) -> RowsBetween:
    """Counts the rows by the summaries of a lake's snapshots. Without a lake nothing is known."""

    def rows_between(table: TableName, before: Version | None, version: Version) -> RowCounts | None:
        if source is None or table.catalog != source.catalog:
            return None
        try:
            _, metadata = source.load(table)
        except (TautochroneError, OSError, ValueError):
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
